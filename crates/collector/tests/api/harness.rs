//! One collector per test, in its own folder, on a free loopback port.

use std::path::Path;
use std::time::{Duration, Instant};

use collector::{Config, Running, Secret};
use domain::api::session::{CreateToken, NewToken, Role};
use domain::ident::RunId;
use domain::series::Frame;
use domain::topology::Inventory;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use store::state::runs::{RunAction, RunUpdate};
use store::{Store, StoreConfig};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tonic::{Code, Status};
use wire::proto::{Definitions, Hello, HelloAck, Series, telemetry_down, telemetry_up};
use wire::telemetry::{Endpoint, OpenError, Receiving, Sending};

/// The longest wait. It only ends a test that hangs, so it is long enough for a machine that is busy or stalls for seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);
/// The admin token of every collector under test.
pub(crate) const ADMIN: &str = "admin-token-of-the-tests";

pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) folder: TempDir,
    http: reqwest::Client,
}

pub(crate) fn config(folder: &Path) -> Config {
    let mut config = Config::new(folder);
    config.listen.set_port(0);
    config.admin_token = Some(Secret::new(ADMIN));
    config
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn start_in(folder: TempDir) -> Self {
        let config = config(folder.path());
        Self::start_with(folder, config).await
    }

    pub(crate) async fn start_with(folder: TempDir, config: Config) -> Self {
        let running = collector::start(config).await.unwrap();
        Self {
            running,
            folder,
            http: client(),
        }
    }

    /// Shuts the collector down, changes the stored state of a run, adds actions to it, and starts the collector again.
    pub(crate) async fn restarted_with(
        self,
        run: &str,
        actions: &[RunAction],
        change: impl FnOnce(&mut Value),
    ) -> Self {
        let Self { running, folder, .. } = self;
        running.shutdown().await;
        let run = RunId::new(run).unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let mut record = store.state.run(&run).await.unwrap().unwrap();
        change(&mut record.machine);
        let update = RunUpdate {
            run: &run,
            expected_version: record.version,
            machine: &record.machine.to_string(),
            summary: &record.summary,
            actions,
            event_ids: &[],
            done: &[],
            pins: None,
        };
        store.state.update_run(update, 1).await.unwrap();
        store.close().await;
        Self::start_in(folder).await
    }

    /// Shuts the collector down and starts it again on the same folder.
    pub(crate) async fn restart(self) -> Self {
        let Self { running, folder, .. } = self;
        running.shutdown().await;
        Self::start_in(folder).await
    }

    /// Starts another collector on a copy of the current files: what a power failure would leave.
    pub(crate) async fn start_from_copy(&self) -> Self {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
        }
        Self::start_in(copy).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running.url())
    }

    /// Creates a request without a credential.
    pub(crate) fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path))
    }

    /// Creates a request as the admin.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).bearer_auth(ADMIN)
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn token(&self, role: Role, expires_s: Option<u64>) -> NewToken {
        let wanted = CreateToken {
            role,
            note: "test".into(),
            expires_s,
        };
        let response = self
            .request(Method::POST, "/api/tokens")
            .json(&wanted)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        response.json().await.unwrap()
    }

    pub(crate) async fn join_token(&self) -> String {
        self.token(Role::Join, None).await.token
    }

    /// Repeats a query until it has a result: samples become visible at most shortly after their acknowledgement.
    pub(crate) async fn query(&self, text: &str, at_ms: i64) -> Vec<(Value, String)> {
        let time = format!("{}", at_ms as f64 / 1_000.0);
        let request = self
            .request(Method::GET, "/api/v1/query")
            .query(&[("query", text), ("time", &time)]);
        let (status, body) = answer(request).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let samples = body["data"]["result"].as_array().unwrap().clone();
        let sample = |sample: Value| {
            (
                sample["metric"].clone(),
                sample["value"][1].as_str().unwrap().to_owned(),
            )
        };
        samples.into_iter().map(sample).collect()
    }
}

pub(crate) fn client() -> reqwest::Client {
    let _installed_by_another_test = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(DEADLINE)
        // A rejected body ends its connection. The next request must not use that connection.
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap()
}

pub(crate) async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Waits for a condition, never for a fixed time.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The telemetry stream of an agent.
pub(crate) struct Agent {
    sending: Mutex<Sending>,
    pub(crate) receiving: Receiving,
    pub(crate) ack: HelloAck,
}

impl Agent {
    pub(crate) async fn connect(server: &Server, token: &str, node: &str) -> Result<Self, Status> {
        Self::connect_with(server, token, Self::hello(node)).await
    }

    /// Connects like a real agent: waits and retries when asked to. Also returns how often it was asked.
    pub(crate) async fn connect_patiently(server: &Server, token: &str, node: &str) -> (Self, u32) {
        let mut asked = 0;
        loop {
            let refused = match Self::connect(server, token, node).await {
                Ok(agent) => return (agent, asked),
                Err(refused) => refused,
            };
            let wait = wire::busy::retry_after(&refused);
            let wait = wait.unwrap_or_else(|| panic!("{node} was refused: {refused}"));
            tokio::time::sleep(wait.mul_f64(1.0 + 2.0 * rand::random::<f64>())).await;
            asked += 1;
        }
    }

    pub(crate) async fn connect_with(server: &Server, token: &str, hello: Hello) -> Result<Self, Status> {
        Self::over(&Endpoint::new(&server.running.url(), None).unwrap(), token, hello).await
    }

    pub(crate) fn hello(node: &str) -> Hello {
        let inventory = Inventory {
            hostname: node.into(),
            ..Inventory::default()
        };
        Hello {
            protocol_min: wire::version::PROTOCOL_MIN,
            protocol_max: wire::version::PROTOCOL_MAX,
            node: node.into(),
            agent_version: "test".into(),
            instance: "i".into(),
            now_ms: collector::clock::now_ms(),
            inventory_json: serde_json::to_string(&inventory).unwrap(),
            lock: String::new(),
        }
    }

    pub(crate) async fn over(endpoint: &Endpoint, token: &str, hello: Hello) -> Result<Self, Status> {
        let opened = endpoint.open(token).await.map_err(|error| match error {
            OpenError::Refused(status) => status,
            other => Status::unavailable(other.to_string()),
        });
        let (mut sending, mut receiving) = opened?;
        sending.send(telemetry_up::Message::Hello(hello)).await?;
        match receiving.next().await? {
            Some(telemetry_down::Message::Hello(ack)) => Ok(Self {
                sending: Mutex::new(sending),
                receiving,
                ack,
            }),
            other => panic!("an answer to the hello, not {other:?}"),
        }
    }

    pub(crate) async fn send(&self, message: telemetry_up::Message) {
        self.sending.lock().await.send(message).await.unwrap();
    }

    /// Defines series by metric name and the label `gpu`.
    pub(crate) async fn define(&self, segment: &str, first: u32, names: &[(&str, &str)]) {
        let labels = names.iter().map(|(name, gpu)| vec!["__name__", name, "gpu", gpu]);
        self.define_labels(segment, first, labels.collect()).await;
    }

    /// Defines series by all their labels: names and values, alternating.
    pub(crate) async fn define_labels(&self, segment: &str, first: u32, series: Vec<Vec<&str>>) {
        let series = series.into_iter().map(|labels| Series {
            labels: labels.into_iter().map(String::from).collect(),
        });
        let definitions = Definitions {
            segment: segment.into(),
            first,
            series: series.collect(),
        };
        self.send(telemetry_up::Message::Definitions(definitions)).await;
    }

    /// Sends one value for each series at one time.
    pub(crate) async fn sample(&self, segment: &str, seq: u64, time_ms: i64, values: &[f64]) {
        let series = (0..values.len() as u32).collect();
        let frame = Frame {
            series,
            times_ms: vec![time_ms],
            values: values.to_vec(),
        };
        self.batch(segment, seq, frame).await;
    }

    pub(crate) async fn batch(&self, segment: &str, seq: u64, frame: Frame<u32>) {
        let batch = wire::frame::encode(segment, seq, &[frame]);
        self.send(telemetry_up::Message::Batch(batch)).await;
    }

    pub(crate) async fn next(&mut self) -> telemetry_down::Message {
        let next = tokio::time::timeout(DEADLINE, self.receiving.next()).await;
        next.unwrap().unwrap().unwrap()
    }

    /// Waits until everything up to `seq` is acknowledged. Acknowledged numbers never decrease.
    pub(crate) async fn acked(&mut self, segment: &str, seq: u64) {
        let mut before = 0;
        loop {
            match self.next().await {
                telemetry_down::Message::Ack(ack) if ack.segment == segment => {
                    assert!(ack.seq > before, "{} after {before}", ack.seq);
                    before = ack.seq;
                    if ack.seq >= seq {
                        return;
                    }
                }
                telemetry_down::Message::Ack(_) => {}
                other => panic!("an acknowledgement, not {other:?}"),
            }
        }
    }
}

/// Returns the code of a refusal, or `Ok`.
pub(crate) fn code(result: Result<Agent, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

pub(crate) fn is_problem(body: &Value, status: StatusCode) -> bool {
    body["status"] == json!(status.as_u16())
        && body["detail"].as_str().is_some_and(|detail| !detail.is_empty())
}
