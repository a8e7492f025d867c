//! A real Prometheus (Debian's package) that scrapes a target and writes all samples to the collector.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::get;
use domain::api::session::Role;
use serde_json::Value;

use crate::harness::{Server, client, until};

/// Number of scrapes, which the target counts itself.
const SCRAPES: f64 = 6.0;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _gone_already = self.0.wait();
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

/// A target with 300 gauges whose value is the number of the scrape, a counter, and values that are hard to write.
async fn target() -> String {
    let scrapes = Arc::new(AtomicU64::new(0));
    let page = move || {
        let n = scrapes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = String::from("# HELP odd Values that are hard to write down.\n# TYPE odd gauge\n");
        text += "odd{is=\"nan\"} NaN\nodd{is=\"inf\"} +Inf\nodd{is=\"tiny\"} 5e-324\nodd{is=\"zero\"} 0\n";
        text += "# TYPE scrape gauge\n";
        for gpu in 0..300 {
            text += &format!("scrape{{gpu=\"{gpu}\",name=\"GPU é {gpu}\"}} {n}\n");
        }
        std::future::ready(text)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/metrics", get(page))).await });
    address
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_of_a_scraped_target_arrives() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let token = server.token(Role::Operator, None).await.token;
    std::fs::write(path("token"), token).unwrap();
    let config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s, external_labels: {{ site: lab }} }}\n\
         scrape_configs:\n- {{ job_name: target, static_configs: [{{ targets: ['{}'] }}] }}\n\
         remote_write:\n- url: {}\n  authorization: {{ credentials_file: {} }}\n  \
         queue_config: {{ max_samples_per_send: 100, batch_send_deadline: 500ms }}\n  \
         metadata_config: {{ send_interval: 2s }}\n",
        target().await,
        server.url("/api/v1/write"),
        path("token"),
    );
    std::fs::write(path("prometheus.yml"), config).unwrap();
    let port = free_port();
    let child = Command::new(program())
        .arg(format!("--config.file={}", path("prometheus.yml")))
        .arg(format!("--storage.tsdb.path={}", path("data")))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(path("log")).unwrap())
        .spawn()
        .unwrap();
    let _prometheus = Killed(child);

    // All samples that Prometheus has up to a scrape are queried on both servers, and must be identical to the bit.
    let newest = until("Prometheus to have written several scrapes", async || {
        let now_ms = collector::clock::now_ms();
        let scrapes = server.query("min(count_over_time(scrape[5m]))", now_ms).await;
        let enough = scrapes.first()?.1.parse::<f64>().ok()? >= SCRAPES;
        enough.then_some(now_ms)
    })
    .await;
    // A scrape has the time of its beginning. Scrapes that began before this time are complete.
    let at_ms = newest - 1_500;
    for query in ["scrape[5m]", "odd[5m]", "up[5m]", "scrape_samples_scraped[5m]"] {
        let theirs = matrix(&format!("http://127.0.0.1:{port}"), "", query, at_ms).await;
        assert!(!theirs.is_empty(), "{query}");
        until(&format!("the same answer to {query}: {theirs:?}"), async || {
            let ours = matrix(&server.url(""), crate::harness::ADMIN, query, at_ms).await;
            (ours == theirs).then_some(())
        })
        .await;
    }
    until("what the metrics mean", async || {
        let (_, body) = server.get("/api/v1/metadata?metric=odd").await;
        (body["data"]["odd"][0]["help"] == "Values that are hard to write down.").then_some(())
    })
    .await;
    let log = std::fs::read_to_string(path("log")).unwrap();
    let complaints: Vec<_> = log
        .lines()
        .filter(|line| line.contains("level=warn") || line.contains("level=error"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// Returns labels and samples of each series, sorted. External labels are added on the way, so they are removed here. Numbers are compared
/// as values, not as text.
async fn matrix(url: &str, token: &str, query: &str, at_ms: i64) -> Vec<(String, Vec<(String, u64)>)> {
    let time = (at_ms as f64 / 1_000.0).to_string();
    let request = client()
        .get(format!("{}/api/v1/query", url.trim_end_matches('/')))
        .bearer_auth(token)
        .query(&[("query", query), ("time", &time)]);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let sample = |pair: &Value| {
        let value: f64 = pair[1].as_str().unwrap().parse().unwrap();
        (pair[0].to_string(), value.to_bits())
    };
    let series = answer["data"]["result"].as_array().unwrap().iter().map(|series| {
        let mut labels = series["metric"].as_object().unwrap().clone();
        labels.remove("site");
        let samples = series["values"].as_array().unwrap().iter().map(sample).collect();
        (Value::Object(labels).to_string(), samples)
    });
    let mut series: Vec<_> = series.collect();
    series.sort();
    series
}
