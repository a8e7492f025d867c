//! Runs `loadgen` and reads the line of JSON it prints.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::peer::Running;
use crate::child::Child;
use crate::layout::Layout;

/// Nodes × GPUs × metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fleet {
    pub(crate) nodes: u64,
    pub(crate) gpus: u64,
    pub(crate) metrics: u64,
}

impl Fleet {
    pub(crate) fn series(self) -> u64 {
        self.nodes * self.gpus * self.metrics
    }

    fn args(self) -> Vec<String> {
        let pairs = [
            ("--nodes", self.nodes),
            ("--gpus", self.gpus),
            ("--metrics", self.metrics),
        ];
        pairs
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect()
    }
}

/// Runs one subcommand against a server; `args` are added. When the server died meanwhile, that is the error.
pub(crate) fn run(
    layout: &Layout,
    server: &mut Running,
    fleet: Fleet,
    command: &str,
    args: &[String],
    limit: Duration,
) -> Result<Value> {
    let step = format!("bench-{}-{command}", server.name());
    let program = layout.target().join("release/loadgen");
    let mut child = Child::new(layout, &step, program, limit)
        .args([command, "--url", &server.url()])
        .args(fleet.args())
        .args(args);
    for (name, secret) in server.secrets() {
        child = child.env(name, secret);
    }
    let ended = child.end();
    server.check()?;
    let ended = ended?;
    let printed =
        fs::read_to_string(&ended.log).with_context(|| format!("cannot read {}", ended.log.display()))?;
    match outcome(&printed) {
        // Losses are figures too: the caller decides what they mean.
        Some(outcome) => Ok(outcome),
        None => bail!("loadgen {command} failed ({}): {}", ended.status, printed.trim()),
    }
}

fn outcome(printed: &str) -> Option<Value> {
    let line = printed.lines().rev().find(|line| line.starts_with('{'))?;
    serde_json::from_str(line).ok()
}

/// A number of an outcome.
pub(crate) fn number(outcome: &Value, pointer: &str) -> Result<f64> {
    outcome
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("loadgen printed no {pointer}: {outcome}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn the_last_line_of_json_counts() {
        let found = outcome("a warning\n{\"x\":{\"y\":2.5}}\n").unwrap();
        assert_eq!(number(&found, "/x/y").unwrap(), 2.5);
        assert!(number(&found, "/x/z").is_err());
        assert!(outcome("error: no").is_none());
    }
}
