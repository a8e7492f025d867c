//! The servers that are compared: how each is started, when it is ready, and how it is ended.
//!
//! Each runs as its users run it: defaults, but for the address, the data folder, what makes it take remote write, and what would
//! hide work from the measurement (VictoriaMetrics' cache of answers, and the 30 s it leaves out of answers).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::layout::Layout;
use crate::measure::ask::{Address, escape};
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{folder, process};
use crate::progress::say;
use crate::toolchain::apt;

/// How long a merge may take.
const MERGE_WITHIN: Duration = Duration::from_secs(600);

/// For how long a server is told to keep samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As it does by itself.
    Default,
    /// More than a month, and it takes samples that are a month late.
    Month,
}

impl Keep {
    fn options(self, peer: Peer) -> &'static [&'static str] {
        match (self, peer) {
            (Self::Default, _) => &[],
            (Self::Month, Peer::Prometheus) => &["--storage.tsdb.retention.time=45d"],
            (Self::Month, Peer::VictoriaMetrics) => &["-retentionPeriod=45d"],
            (Self::Month, Peer::Lockstep) => &["--retention=45d", "--out-of-order=31d"],
        }
    }
}

/// One of the compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Prometheus,
    VictoriaMetrics,
    Lockstep,
}

impl Peer {
    pub(crate) const ALL: [Self; 3] = [Self::Prometheus, Self::VictoriaMetrics, Self::Lockstep];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prometheus => "prometheus",
            Self::VictoriaMetrics => "victoriametrics",
            Self::Lockstep => "lockstep",
        }
    }

    /// Starts one in an empty folder and waits until it is ready.
    pub(crate) fn start(self, layout: &Layout, keep: Keep) -> Result<Running> {
        self.start_program(layout, keep, self.name(), None)
    }

    /// The same from another binary than its usual one. `name` is that of its folder and logs, so that two can run at the same time.
    pub(crate) fn start_program(
        self,
        layout: &Layout,
        keep: Keep,
        name: &str,
        program: Option<&Path>,
    ) -> Result<Running> {
        let folder = layout.target().join("bench").join(name);
        folder::empty(&folder)?;
        let mut plan = self.plan(layout, name, &folder, keep)?;
        if let Some(program) = program {
            plan.program = program.to_owned();
        }
        let server = Server::start(layout, plan)?;
        Ok(Running {
            peer: self,
            server,
            folder,
        })
    }

    fn plan(self, layout: &Layout, name: &str, folder: &Path, keep: Keep) -> Result<Plan> {
        let (step, data) = (format!("bench-{name}"), folder.join("data"));
        let (port, at) = (free_port()?, data.display());
        let (tool, ready, mut arguments) = match self {
            Self::Lockstep => return Plan::collector(layout, &step, &data, keep.options(self)),
            Self::Prometheus => {
                let config = folder.join("prometheus.yml");
                fs::write(&config, "scrape_configs: []\n")
                    .context("cannot write Prometheus' configuration")?;
                let arguments = vec![
                    format!("--config.file={}", config.display()),
                    format!("--storage.tsdb.path={at}"),
                    format!("--web.listen-address=127.0.0.1:{port}"),
                    "--web.enable-remote-write-receiver".to_owned(),
                    "--web.enable-admin-api".to_owned(),
                ];
                (apt::PROMETHEUS, "/-/ready", arguments)
            }
            Self::VictoriaMetrics => {
                let arguments = vec![
                    format!("-storageDataPath={at}"),
                    format!("-httpListenAddr=127.0.0.1:{port}"),
                    "-search.disableCache".to_owned(),
                    "-search.latencyOffset=1ms".to_owned(),
                ];
                (apt::VICTORIA_METRICS, "/health", arguments)
            }
        };
        arguments.extend(keep.options(self).iter().map(ToString::to_string));
        Ok(Plan {
            step,
            program: apt::unpacked(layout, &tool)?,
            arguments,
            variables: Vec::new(),
            folder: folder.to_owned(),
            address: Address { port, token: None },
            ready,
        })
    }
}

/// One that runs. Killed when dropped, and its data with it.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    pub(crate) server: Server,
    folder: PathBuf,
}

impl Running {
    pub(crate) fn name(&self) -> &'static str {
        self.peer.name()
    }

    /// Where its data lies.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Kills it and starts it again on its data. Returns seconds until it answered `query` with `expected` as its one value.
    pub(crate) fn kill_and_restart(&mut self, query: &str, expected: f64) -> Result<f64> {
        self.server.kill();
        let took = self.server.start_until("at its first full answer", |address| {
            value(address, query).is_some_and(|found| (found - expected).abs() < 0.5)
        })?;
        Ok(took.as_secs_f64())
    }

    /// Merges all there is, as each does it by itself in time, and waits until that has ended. Says what it did.
    pub(crate) fn merge(&mut self) -> Result<&'static str> {
        match self.peer {
            Peer::Prometheus => {
                self.server
                    .address()
                    .post("/api/v1/admin/tsdb/snapshot", "")?
                    .success("snapshot")?;
                Ok("a snapshot: the head written as a block")
            }
            Peer::VictoriaMetrics => {
                for path in ["/internal/force_flush", "/internal/force_merge"] {
                    self.server.address().get(path)?.success(path)?;
                }
                self.wait_merged()?;
                Ok("force_merge")
            }
            Peer::Lockstep => match self.server.address().post("/api/store/compact", "")? {
                answer if matches!(answer.status, 404 | 405) => {
                    say(
                        self.name(),
                        "has no POST /api/store/compact: measured as it lies on disk",
                    );
                    Ok("none: this revision has no compaction on demand")
                }
                answer => {
                    answer.success("/api/store/compact")?;
                    Ok("compaction on demand")
                }
            },
        }
    }

    /// A forced merge answers at once and goes on behind.
    fn wait_merged(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            process::quiet(self.server.pid()?, self.name())?;
            let metrics = self.server.address().get("/metrics")?.success("/metrics")?;
            if active_merges(&metrics) == 0.0 {
                return Ok(());
            }
            if begin.elapsed() > MERGE_WITHIN {
                bail!("{} still merges after {} s", self.name(), MERGE_WITHIN.as_secs());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.kill();
        // Data of a benchmark is of no use afterwards, and there is much of it; the log stays.
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            say(
                self.name(),
                &format!("its folder {} stays: {error}", self.folder.display()),
            );
        }
    }
}

/// The value of an instant query with one result.
fn value(address: &Address, query: &str) -> Option<f64> {
    let answer = address
        .get(&format!("/api/v1/query?{query}"))
        .ok()?
        .success(query)
        .ok()?;
    let answer: Value = serde_json::from_str(&answer).ok()?;
    answer.pointer("/data/result/0/value/1")?.as_str()?.parse().ok()
}

/// The parameters of an instant query.
pub(crate) fn instant(query: &str, at_s: i64) -> String {
    format!("query={}&time={at_s}", escape(query))
}

fn active_merges(metrics: &str) -> f64 {
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("vm_active_merges"));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_merges_are_summed_over_all_kinds() {
        let metrics =
            "vm_active_merges{type=\"storage/big\"} 1\nvm_active_merges{type=\"indexdb\"} 2\nvm_other 9\n";
        assert_eq!(active_merges(metrics), 3.0);
        assert_eq!(active_merges(""), 0.0);
    }
}
