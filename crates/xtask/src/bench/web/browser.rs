//! Chromium, driven by the scripts in e2e/bench. A script gets its settings as JSON on the command line and prints its outcome as JSON in
//! its last line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::child::{Child, outcome};
use crate::layout::Layout;
use crate::measure::http::Address;
use crate::toolchain::{apt, npm};

/// A script of e2e/bench.
#[derive(Debug, Clone, Copy)]
pub(super) enum Script {
    Paint,
    Frames,
    Heap,
    Log,
    Live,
}

impl Script {
    fn file(self) -> &'static str {
        match self {
            Self::Paint => "e2e/bench/paint.mjs",
            Self::Frames => "e2e/bench/frames.mjs",
            Self::Heap => "e2e/bench/heap.mjs",
            Self::Log => "e2e/bench/log.mjs",
            Self::Live => "e2e/bench/live.mjs",
        }
    }
}

/// Node, Chromium and its driver.
pub(super) struct Browser {
    layout: Layout,
    node: PathBuf,
    chromium: PathBuf,
    modules: PathBuf,
}

impl Browser {
    /// Finds or installs the programs.
    pub(super) fn ensure(layout: &Layout) -> Result<Self> {
        Ok(Self {
            layout: layout.clone(),
            node: npm::node()?,
            chromium: apt::installed(layout, &apt::CHROMIUM)?,
            modules: npm::ensure(layout, "e2e")?,
        })
    }

    /// Runs a script against a collector and returns its outcome. `step` names the log. `settings` is an object; the collector's URL is
    /// added.
    pub(super) fn run(
        &self,
        script: Script,
        step: &str,
        collector: &Address,
        mut settings: Value,
        limit: Duration,
    ) -> Result<Value> {
        settings["url"] = format!("http://127.0.0.1:{}", collector.port).into();
        let token = collector.token.as_deref().context("the collector has no token")?;
        let ended = Child::new(&self.layout, step, &self.node, limit)
            .args([script.file(), &settings.to_string()])
            .env("LOCKSTEP_TEST_CHROMIUM", &self.chromium)
            .env("LOCKSTEP_TEST_NODE_MODULES", &self.modules)
            .env("LOCKSTEP_TOKEN", token)
            .succeed()?;
        let printed = ended.printed()?;
        outcome(&printed).with_context(|| format!("{} printed no outcome", script.file()))
    }
}

/// Returns a number of an outcome.
pub(super) fn number(outcome: &Value, pointer: &str) -> Result<f64> {
    let found = outcome.pointer(pointer).and_then(Value::as_f64);
    found.with_context(|| format!("the browser reported no {pointer}: {outcome}"))
}

/// Returns a list of numbers of an outcome.
pub(super) fn numbers(outcome: &Value, pointer: &str) -> Result<Vec<f64>> {
    let list = outcome.pointer(pointer).and_then(Value::as_array);
    let found: Option<Vec<f64>> = list.and_then(|list| list.iter().map(Value::as_f64).collect());
    found.with_context(|| format!("the browser reported no list of numbers {pointer}: {outcome}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn the_last_line_of_json_is_the_outcome() {
        let printed = "load 1 of 2\n{\"old\":1}\nload 2 of 2\n{\"ms\":[1.5,2],\"slowdown\":3.9}\n";
        let found = outcome(printed).unwrap();
        assert_eq!(numbers(&found, "/ms").unwrap(), [1.5, 2.0]);
        assert_eq!(number(&found, "/slowdown").unwrap(), 3.9);
        assert!(number(&found, "/ms").is_err() && numbers(&found, "/slowdown").is_err());
        assert!(outcome("Error: no\n").is_none());
    }
}
