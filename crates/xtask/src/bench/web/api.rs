//! Requests to a collector: the value of a query, a submitted run, and waits for a condition.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::measure::http::{Address, escape, first_value};
use crate::measure::server::Server;

/// Poll interval of a wait. Each poll costs the collector a response.
const POLL: Duration = Duration::from_millis(500);

/// Waits for a condition. An error of the condition ends the wait.
pub(super) fn wait_until(
    what: &str,
    within: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while !condition()? {
        if Instant::now() > deadline {
            bail!("not within {} s: {what}", within.as_secs());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Waits until the result of a query is at least `at_least`. Returns an error if the server ends before.
pub(super) fn wait_for_value(
    server: &mut Server,
    address: &Address,
    query: &str,
    at_least: f64,
    within: Duration,
) -> Result<()> {
    wait_until(&format!("{query} ≥ {at_least}"), within, || {
        server.check()?;
        Ok(value(address, query)?.is_some_and(|value| value >= at_least))
    })
}

/// Returns the response to a `GET`.
pub(super) fn get(address: &Address, path: &str) -> Result<Value> {
    address.get(path)?.json(path)
}

/// Returns the result of an instant query.
pub(super) fn query(address: &Address, query: &str) -> Result<Value> {
    get(address, &format!("/api/v1/query?query={}", escape(query)))
}

/// Submits a run. Returns its id.
pub(super) fn submit(address: &Address, spec: &Value) -> Result<String> {
    let path = "/api/runs";
    let made = address.post(path, &spec.to_string())?.json(path)?;
    let id = made["id"].as_str();
    Ok(id.context("the response to a run has no id")?.to_owned())
}

/// Returns the first value of a query; `None` if the query returns no series.
pub(super) fn value(address: &Address, text: &str) -> Result<Option<f64>> {
    Ok(first_value(&query(address, text)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_without_series_has_no_value() {
        let answer =
            |result: Value| json!({"status": "success", "data": {"resultType": "vector", "result": result}});
        let one = answer(json!([{"metric": {}, "value": [1_000.5, "8000"]}]));
        assert_eq!(first_value(&one), Some(8_000.0));
        assert_eq!(first_value(&answer(json!([]))), None);
    }
}
