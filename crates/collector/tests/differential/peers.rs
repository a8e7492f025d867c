//! The two servers: a collector in this process, and a Prometheus from Debian's package.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use collector::{Config, Running, Secret};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::Value;
use tempfile::TempDir;

use crate::answer::Answer;
use crate::grammar::Question;

/// Nothing here takes longer, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const ATTEMPTS: u32 = 3;
const ADMIN: &str = "admin-token-of-the-tests";
const DAY_MS: i64 = 24 * 3_600_000;

pub(crate) struct Ours {
    running: Running,
    _folder: TempDir,
    http: reqwest::Client,
}

pub(crate) struct Theirs {
    _child: Killed,
    _folder: TempDir,
    url: String,
    http: reqwest::Client,
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _gone_already = self.0.wait();
    }
}

impl Ours {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(folder.path());
        config.listen.set_port(0);
        config.admin_token = Some(Secret::new(ADMIN));
        // The samples are hours old when they arrive.
        config.store.out_of_order_ms = DAY_MS;
        let running = collector::start(config).await.unwrap();
        Self {
            running,
            _folder: folder,
            http: client(),
        }
    }

    pub(crate) async fn write(&self, body: &[u8]) {
        let request = self
            .http
            .post(format!("{}/api/v1/write", self.running.url()))
            .bearer_auth(ADMIN);
        write(request, body).await;
    }

    pub(crate) async fn ask(&self, question: &Question) -> Answer {
        let url = format!("{}/api/v1/{}", self.running.url(), question.path());
        answer(self.http.get(url).bearer_auth(ADMIN).query(&question.params())).await
    }
}

impl Theirs {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("prometheus.yml"), "global: { scrape_interval: 1m }\n").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new(program())
            .arg(format!("--config.file={}", path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--web.enable-remote-write-receiver")
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        let (url, http) = (format!("http://127.0.0.1:{port}"), client());
        let theirs = Self {
            _child: Killed(child),
            _folder: folder,
            url,
            http,
        };
        theirs.wait_until_ready().await;
        theirs
    }

    async fn wait_until_ready(&self) {
        let started = Instant::now();
        loop {
            let answer = self.http.get(format!("{}/-/ready", self.url)).send().await;
            if answer.is_ok_and(|answer| answer.status() == StatusCode::OK) {
                return;
            }
            assert!(
                started.elapsed() < DEADLINE,
                "waited in vain for Prometheus to be ready"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn write(&self, body: &[u8]) {
        write(self.http.post(format!("{}/api/v1/write", self.url)), body).await;
    }

    pub(crate) async fn ask(&self, question: &Question) -> Answer {
        let url = format!("{}/api/v1/{}", self.url, question.path());
        answer(self.http.get(url).query(&question.params())).await
    }
}

fn program() -> PathBuf {
    let named = std::env::var_os("LOCKSTEP_TEST_PROMETHEUS");
    let found = named.map_or_else(|| PathBuf::from("prometheus"), PathBuf::from);
    let version = Command::new(&found).arg("--version").output();
    assert!(
        version.is_ok_and(|output| output.status.success()),
        "prometheus does not run; `cargo xtask test --only rust` installs it, or `apt-get install prometheus`"
    );
    found
}

fn client() -> reqwest::Client {
    let _installed_by_another_test = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(DEADLINE)
        .no_proxy()
        .build()
        .unwrap()
}

async fn write(request: RequestBuilder, body: &[u8]) {
    let request = request
        .header("content-encoding", "snappy")
        .header("content-type", "application/x-protobuf")
        .header("x-prometheus-remote-write-version", "0.1.0");
    let response = request.body(body.to_vec()).send().await.unwrap();
    let status = response.status();
    assert!(
        status.is_success(),
        "{status}: {}",
        response.text().await.unwrap()
    );
}

/// Repeats a query after a timeout: a machine that was suspended is no difference.
async fn answer(request: RequestBuilder) -> Answer {
    for attempt in 1.. {
        let request = request.try_clone().expect("a request without a body");
        match request.send().await {
            Ok(response) => {
                let text = response.text().await.unwrap();
                let body: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                return Answer::read(&body);
            }
            Err(error) => assert!(error.is_timeout() && attempt < ATTEMPTS, "{error}"),
        }
    }
    unreachable!("the last attempt is an answer or a panic")
}
