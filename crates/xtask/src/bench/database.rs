//! The compared servers: how each is started, when it is ready, and how it is ended.
//!
//! Each runs as its users run it, with defaults except for: the address, the data folder, the option that enables remote write, and options
//! that would hide work from the measurement (VictoriaMetrics' cache of answers, and the last 30 s that it leaves out of answers).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::layout::Layout;
use crate::measure::http::{Address, escape, first_value};
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{folder, process};
use crate::progress::say;
use crate::toolchain::apt;

/// How long a merge may take.
const MERGE_WITHIN: Duration = Duration::from_secs(600);

/// The retention of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// The server's default.
    Default,
    /// More than a month; also accepts samples that are a month late.
    Month,
}

impl Retention {
    fn options(self, database: Database) -> &'static [&'static str] {
        match (self, database) {
            (Self::Default, _) => &[],
            (Self::Month, Database::Prometheus) => &["--storage.tsdb.retention.time=45d"],
            (Self::Month, Database::VictoriaMetrics) => &["-retentionPeriod=45d"],
            (Self::Month, Database::Lockstep) => &["--retention=45d", "--out-of-order=31d"],
        }
    }
}

/// A compared server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Database {
    Prometheus,
    VictoriaMetrics,
    Lockstep,
}

impl Database {
    pub(crate) const ALL: [Self; 3] = [Self::Prometheus, Self::VictoriaMetrics, Self::Lockstep];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prometheus => "prometheus",
            Self::VictoriaMetrics => "victoriametrics",
            Self::Lockstep => "lockstep",
        }
    }

    /// Starts a server in an empty folder and waits until it is ready.
    pub(crate) fn start(self, layout: &Layout, retention: Retention) -> Result<RunningDatabase> {
        self.start_program(layout, retention, self.name(), None)
    }

    /// The same with another binary. `name` names its folder and logs, so that two can run at the same time.
    pub(crate) fn start_program(
        self,
        layout: &Layout,
        retention: Retention,
        name: &str,
        program: Option<&Path>,
    ) -> Result<RunningDatabase> {
        let folder = layout.target().join("bench").join(name);
        folder::empty(&folder)?;
        let mut plan = self.plan(layout, name, &folder, retention)?;
        if let Some(program) = program {
            plan.program = program.to_owned();
        }
        let server = Server::start(layout, plan)?;
        Ok(RunningDatabase {
            database: self,
            server,
            folder,
        })
    }

    fn plan(self, layout: &Layout, name: &str, folder: &Path, retention: Retention) -> Result<Plan> {
        let (step, data) = (format!("bench-{name}"), folder.join("data"));
        let (port, at) = (free_port()?, data.display());
        let (tool, ready, mut arguments) = match self {
            Self::Lockstep => return Plan::collector(layout, &step, &data, retention.options(self)),
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
        arguments.extend(retention.options(self).iter().map(ToString::to_string));
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

/// A running server. On drop, it is killed and its data is removed.
pub(crate) struct RunningDatabase {
    pub(crate) database: Database,
    pub(crate) server: Server,
    folder: PathBuf,
}

impl RunningDatabase {
    pub(crate) fn name(&self) -> &'static str {
        self.database.name()
    }

    /// Returns the folder of its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Kills the server and starts it again on its data. Returns seconds until the result of `query` was the single value `expected`.
    pub(crate) fn kill_and_restart(&mut self, query: &str, expected: f64) -> Result<f64> {
        self.server.kill();
        let took = self.server.start_until("at its first full answer", |address| {
            value(address, query).is_some_and(|found| (found - expected).abs() < 0.5)
        })?;
        Ok(took.as_secs_f64())
    }

    /// Merges all data, as the server would do over time, and waits until the merge has ended. Describes what it did.
    pub(crate) fn merge(&mut self) -> Result<&'static str> {
        match self.database {
            Database::Prometheus => {
                self.server
                    .address()
                    .post("/api/v1/admin/tsdb/snapshot", "")?
                    .success("snapshot")?;
                Ok("a snapshot: the head written as a block")
            }
            Database::VictoriaMetrics => {
                for path in ["/internal/force_flush", "/internal/force_merge"] {
                    self.server.address().get(path)?.success(path)?;
                }
                self.wait_merged()?;
                Ok("force_merge")
            }
            Database::Lockstep => match self.server.address().post("/api/store/compact", "")? {
                answer if matches!(answer.status, 404 | 405) => {
                    say(
                        self.name(),
                        "has no POST /api/store/compact: measured without a merge",
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

    /// A forced merge answers at once and continues in the background.
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

impl Drop for RunningDatabase {
    fn drop(&mut self) {
        self.server.kill();
        // The data of a benchmark is large and not needed afterwards; the log stays.
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            say(
                self.name(),
                &format!("its folder {} stays: {error}", self.folder.display()),
            );
        }
    }
}

/// Returns the value of an instant query with one result.
fn value(address: &Address, query: &str) -> Option<f64> {
    let answer = address.get(&format!("/api/v1/query?{query}")).ok()?;
    first_value(&answer.json(query).ok()?)
}

/// Returns the parameters of an instant query.
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
