//! The collector's API, as a program uses it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

/// No response takes longer on two busy cores.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A client of one collector.
pub(crate) struct Api {
    pub(crate) url: String,
    data: PathBuf,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    /// Makes a client of the collector at `url`. Its data folder contains the admin token.
    pub(crate) fn new(url: String, data: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        // Keep no idle connections: the client would not notice that the collector has closed one.
        let http = reqwest::Client::builder()
            .timeout(ANSWER_WITHIN)
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        Self {
            url,
            data: data.to_owned(),
            http,
            runtime,
        }
    }

    /// `GET` of JSON; `null` if the collector does not answer or refuses.
    pub(crate) fn get(&self, path: &str) -> Value {
        json(self.text_at(&format!("{}{path}", self.url)))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        json(self.answer(self.http.post(format!("{}{path}", self.url)).json(body)))
    }

    /// `GET` of any text from a Lockstep address.
    pub(crate) fn text_at(&self, url: &str) -> Option<String> {
        self.answer(self.http.get(url))
    }

    /// Returns the process ID of a rank of a run's newest attempt.
    pub(crate) fn pid_of(&self, run: &str, rank: u32) -> Option<i32> {
        let view = self.get(&format!("/api/runs/{run}"));
        let nodes = view["attempts"].as_array()?.last()?["nodes"].as_array()?;
        let mut ranks = nodes.iter().filter_map(|node| node["ranks"].as_array()).flatten();
        let rank = ranks.find(|known| known["rank"] == rank)?;
        i32::try_from(rank["pid"].as_i64()?).ok()
    }

    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        self.ask(&[("query", query)])
    }

    /// Returns the result of an instant query with these parameters.
    pub(crate) fn ask(&self, parameters: &[(&str, &str)]) -> Vec<Value> {
        self.query_answer(parameters)["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the whole response to an instant query, which may be an error.
    pub(crate) fn query_answer(&self, parameters: &[(&str, &str)]) -> Value {
        let url = format!("{}/api/v1/query", self.url);
        json(self.answer(self.http.get(url).query(parameters)))
    }

    /// Returns the samples `(milliseconds, value)` of each series that matches a range selector.
    pub(crate) fn curves(&self, selector: &str) -> Vec<Vec<(i64, f64)>> {
        curves(&self.query(selector))
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.data.join("admin.token"))
            .unwrap()
            .trim()
            .to_owned()
    }

    fn answer(&self, request: reqwest::RequestBuilder) -> Option<String> {
        let request = request.bearer_auth(self.token());
        self.runtime
            .block_on(async { request.send().await.ok()?.text().await.ok() })
    }
}

/// Returns the samples of each series in the result of a range selector.
pub(crate) fn curves(found: &[Value]) -> Vec<Vec<(i64, f64)>> {
    let sample = |pair: &Value| {
        let value = pair[1].as_str().unwrap().parse().unwrap_or(f64::INFINITY);
        ((pair[0].as_f64().unwrap() * 1_000.0).round() as i64, value)
    };
    let values = found.iter().map(|series| series["values"].as_array());
    values
        .map(|values| values.into_iter().flatten().map(sample).collect())
        .collect()
}

fn json(answer: Option<String>) -> Value {
    answer
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}
