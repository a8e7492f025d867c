//! Runs `loadgen` against a server and reads the line of JSON that it prints.

use std::fs;
use std::path::PathBuf;
use std::process::Child as Process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::build;
use super::server::Server;
use crate::child::{self, Child, outcome};
use crate::layout::Layout;

/// The settings of vmagent on two cores: twice as many connections as cores, ten thousand samples per request.
pub(crate) const CONNECTIONS: &str = "--connections=4";
/// See [`CONNECTIONS`].
pub(crate) const REQUEST: &str = "--samples-per-request=10000";
/// Poll interval for the end of a generator that runs beside a measurement.
const POLL: Duration = Duration::from_millis(100);

/// The names of the series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Names {
    /// Those of a GPU exporter, with values that are hard to store: for comparisons with other servers.
    Dcgm,
    /// Lockstep's own, with values of a healthy training: rules and analysers read them.
    Lockstep,
}

/// Nodes × GPUs × metrics, and their names.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Fleet {
    /// Number of nodes.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) nodes: u64,
    /// GPUs per node.
    #[arg(long, default_value_t = 8)]
    pub(crate) gpus: u64,
    /// Metrics per GPU.
    #[arg(long, default_value_t = 30)]
    pub(crate) metrics: u64,
    /// Names of the series.
    #[arg(long, value_enum, default_value = "lockstep")]
    pub(crate) names: Names,
}

impl Fleet {
    /// The usual size in measurements: nodes of 8 GPUs × 30 metrics, with Lockstep's own names.
    pub(crate) const fn of_nodes(nodes: u64) -> Self {
        Self {
            nodes,
            gpus: 8,
            metrics: 30,
            names: Names::Lockstep,
        }
    }

    /// Returns the same fleet with the names of an exporter.
    pub(crate) const fn with_exporter_names(self) -> Self {
        Self {
            names: Names::Dcgm,
            ..self
        }
    }

    pub(crate) fn series(self) -> u64 {
        self.nodes * self.gpus * self.metrics
    }

    /// Returns the arguments for `loadgen` and `cargo xtask soak`.
    pub(crate) fn to_arguments(self) -> String {
        let names = match self.names {
            Names::Dcgm => "dcgm",
            Names::Lockstep => "lockstep",
        };
        format!(
            "--nodes {} --gpus {} --metrics {} --names {names}",
            self.nodes, self.gpus, self.metrics
        )
    }
}

/// A prepared run of the generator.
pub(crate) struct Generator {
    command: String,
    child: Child,
}

impl Generator {
    /// Prepares a subcommand of `loadgen`; `args` are added.
    pub(crate) fn new(
        layout: &Layout,
        server: &Server,
        fleet: Fleet,
        command: &str,
        args: &[String],
        limit: Duration,
    ) -> Result<Self> {
        let program = build::program(layout, "loadgen");
        let mut child = Child::new(layout, &format!("{}-{command}", server.step()), program, limit)
            .args([command, "--url", &server.url()])
            .args(fleet.to_arguments().split(' '))
            .args(args);
        for (name, secret) in server.secrets()? {
            child = child.env(name, secret);
        }
        Ok(Self {
            command: command.to_owned(),
            child,
        })
    }

    /// Runs the generator until it ends. Losses are results too: the caller decides what they mean.
    pub(crate) fn run(self) -> Result<Value> {
        let ended = self.child.end()?;
        let printed = ended.printed()?;
        match outcome(&printed) {
            Some(outcome) => Ok(outcome),
            None => bail!(
                "loadgen {} failed ({}): {}",
                self.command,
                ended.status,
                printed.trim()
            ),
        }
    }
}

/// A generator that runs beside a measurement. Killed when dropped.
pub(crate) struct RunningGenerator {
    command: &'static str,
    process: Process,
    log: PathBuf,
}

impl RunningGenerator {
    /// Starts a subcommand of `loadgen`; `args` are added.
    pub(crate) fn start(
        layout: &Layout,
        server: &Server,
        fleet: Fleet,
        command: &'static str,
        args: &[String],
    ) -> Result<Self> {
        // It has no time limit: the caller ends it.
        let prepared = Generator::new(layout, server, fleet, command, args, Duration::MAX)?;
        let (process, log) = prepared.child.start()?;
        Ok(Self {
            command,
            process,
            log,
        })
    }

    /// Returns an error with the end of its log if the generator has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait().context("cannot wait for loadgen")? {
            let printed = child::tail(&self.log)?;
            bail!(
                "loadgen {} has ended early ({status}): {}",
                self.command,
                printed.trim()
            );
        }
        Ok(())
    }

    /// Waits until the generator ends by itself, and returns its outcome.
    pub(crate) fn finish(mut self, within: Duration) -> Result<Value> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().context("cannot wait for loadgen")? {
                break status;
            }
            if begin.elapsed() > within {
                bail!(
                    "loadgen {} has not ended after {} s",
                    self.command,
                    within.as_secs()
                );
            }
            thread::sleep(POLL);
        };
        let printed = fs::read_to_string(&self.log);
        let printed = printed.with_context(|| format!("cannot read {}", self.log.display()))?;
        outcome(&printed)
            .with_context(|| format!("loadgen {} failed ({status}): {}", self.command, printed.trim()))
    }
}

impl Drop for RunningGenerator {
    fn drop(&mut self) {
        // The process may have ended meanwhile.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Runs the generator from start to end. Returns an error if the server died meanwhile.
pub(crate) fn run(
    layout: &Layout,
    server: &mut Server,
    fleet: Fleet,
    command: &str,
    args: &[String],
    limit: Duration,
) -> Result<Value> {
    let outcome = Generator::new(layout, server, fleet, command, args, limit)?.run();
    server.check()?;
    outcome
}

/// Returns a number of an outcome.
pub(crate) fn number(outcome: &Value, pointer: &str) -> Result<f64> {
    let found = outcome.pointer(pointer).and_then(Value::as_f64);
    found.with_context(|| format!("loadgen printed no {pointer}: {outcome}"))
}

/// Returns the time of the first tick.
pub(crate) fn start_ms(outcome: &Value) -> Result<i64> {
    let found = outcome["start_ms"].as_i64();
    found.with_context(|| format!("loadgen printed no start: {outcome}"))
}

/// Returns the number of samples that were lost, changed, duplicated or unknown when all were read back.
pub(crate) fn damaged(outcome: &Value) -> Result<f64> {
    ["/lost", "/changed", "/doubled", "/strange"]
        .into_iter()
        .map(|pointer| number(outcome, pointer))
        .sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn the_last_line_of_json_is_the_outcome() {
        let found = outcome("a warning\n{\"lost\":1,\"changed\":2,\"doubled\":0,\"strange\":4}\n").unwrap();
        assert_eq!(damaged(&found).unwrap(), 7.0);
        assert!(number(&found, "/ack/p99_ms").is_err() && start_ms(&found).is_err());
        assert!(outcome("error: no").is_none());
    }
}
