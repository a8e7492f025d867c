//! The servers that are compared: how each is started, when it is ready, and how it is ended.
//!
//! Each runs as its users run it: defaults, but for the address, the data folder, what makes it take remote write, and what would
//! hide work from the measurement (VictoriaMetrics' cache of answers, and the 30 s it leaves out of answers).

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::ask::{Address, escape};
use super::process;
use crate::child;
use crate::layout::Layout;
use crate::progress::{block, say};
use crate::toolchain::apt;

/// How long a server may take to be ready; the longest part is another one's replay of its log.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// How often readiness is asked for; start-up times are as exact as this.
const READY_POLL: Duration = Duration::from_millis(10);
/// How long a merge may take.
const MERGE_WITHIN: Duration = Duration::from_secs(600);

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
    pub(crate) fn start(self, layout: &Layout) -> Result<Running> {
        let folder = layout.target().join("bench").join(self.name());
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let program = match self {
            Self::Prometheus => apt::unpacked(layout, &apt::PROMETHEUS)?,
            Self::VictoriaMetrics => apt::unpacked(layout, &apt::VICTORIA_METRICS)?,
            Self::Lockstep => layout.target().join("release/lockstep"),
        };
        let token = (self == Self::Lockstep).then(secret).transpose()?;
        let port = free_port()?;
        let mut running = Running {
            peer: self,
            address: Address { port, token },
            join: None,
            log: layout.logs().join(format!("bench-{}.log", self.name())),
            process: None,
            program,
            folder,
        };
        fs::create_dir_all(layout.logs()).context("cannot make the folder of logs")?;
        // Restarts add to the log, a new run begins it.
        File::create(&running.log).with_context(|| format!("cannot write {}", running.log.display()))?;
        running.spawn()?;
        running.wait_ready()?;
        running.join = running.join_token()?;
        Ok(running)
    }

    fn arguments(self, folder: &Path, port: u16) -> Result<Vec<String>> {
        let data = folder.join("data").display().to_string();
        let listen = format!("127.0.0.1:{port}");
        Ok(match self {
            Self::Prometheus => {
                let config = folder.join("prometheus.yml");
                fs::write(&config, "scrape_configs: []\n")
                    .context("cannot write Prometheus' configuration")?;
                vec![
                    format!("--config.file={}", config.display()),
                    format!("--storage.tsdb.path={data}"),
                    format!("--web.listen-address={listen}"),
                    "--web.enable-remote-write-receiver".to_owned(),
                    "--web.enable-admin-api".to_owned(),
                ]
            }
            Self::VictoriaMetrics => vec![
                format!("-storageDataPath={data}"),
                format!("-httpListenAddr={listen}"),
                "-search.disableCache".to_owned(),
                "-search.latencyOffset=1ms".to_owned(),
            ],
            Self::Lockstep => vec![
                "collector".to_owned(),
                format!("--listen={listen}"),
                format!("--data={data}"),
            ],
        })
    }
}

/// One that runs. Killed when dropped.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    pub(crate) address: Address,
    join: Option<String>,
    log: PathBuf,
    process: Option<Process>,
    program: PathBuf,
    folder: PathBuf,
}

impl Running {
    pub(crate) fn name(&self) -> &'static str {
        self.peer.name()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.address.port)
    }

    /// Where its data lies.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process
            .as_ref()
            .map(Process::id)
            .with_context(|| format!("{} does not run", self.name()))
    }

    /// What the generator must know, for its environment: arguments are visible to everybody on the machine.
    pub(crate) fn secrets(&self) -> Vec<(&'static str, String)> {
        let named = [
            ("LOCKSTEP_TOKEN", &self.address.token),
            ("LOCKSTEP_JOIN", &self.join),
        ];
        named
            .into_iter()
            .filter_map(|(name, secret)| Some((name, secret.clone()?)))
            .collect()
    }

    /// An error with the end of its log when it does not run any more.
    pub(crate) fn check(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            bail!("{} does not run", self.name());
        };
        if let Some(status) = process.try_wait().context("cannot ask for the server's end")? {
            block(
                &format!("{} printed, at the end", self.name()),
                &child::tail(&self.log)?,
            );
            bail!(
                "{} died ({status}); its log is {}",
                self.name(),
                self.log.display()
            );
        }
        Ok(())
    }

    /// Kills it as a power switch would, as far as a process can feel it, and starts it again on its data. Returns seconds
    /// until it answered `query` with `expected` as its one value.
    pub(crate) fn kill_and_restart(&mut self, query: &str, expected: f64) -> Result<f64> {
        self.kill();
        let begin = Instant::now();
        self.spawn()?;
        self.wait_for("its first full answer", |address| {
            value(address, query).is_some_and(|found| (found - expected).abs() < 0.5)
        })?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended meanwhile: nothing to do then.
            process.kill().ok();
            process.wait().ok();
        }
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args(self.peer.arguments(&self.folder, self.address.port)?)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stderr(
                log.try_clone()
                    .context("cannot share the log between two streams")?,
            )
            .stdout(log);
        if let Some(token) = &self.address.token {
            command.env("LOCKSTEP_ADMIN_TOKEN", token);
        }
        let process = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.process = Some(process);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        let path = if self.peer == Peer::VictoriaMetrics {
            "/health"
        } else {
            "/-/ready"
        };
        self.wait_for("ready", |address| {
            address.get(path).is_ok_and(|answer| answer.status == 200)
        })
    }

    fn wait_for(&mut self, what: &str, is_there: impl Fn(&Address) -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_there(&self.address) {
            self.check()?;
            if begin.elapsed() > READY_WITHIN {
                block(
                    &format!("{} printed, at the end", self.name()),
                    &child::tail(&self.log)?,
                );
                bail!("{}: not {what} within {} s", self.name(), READY_WITHIN.as_secs());
            }
            thread::sleep(READY_POLL);
        }
        Ok(())
    }

    fn join_token(&self) -> Result<Option<String>> {
        if self.peer != Peer::Lockstep {
            return Ok(None);
        }
        let wish = r#"{"role":"join","expires_s":7200}"#;
        let made = self
            .address
            .post("/api/tokens/join", wish)?
            .success("/api/tokens/join")?;
        let made: Value = serde_json::from_str(&made).context("the answer is no JSON")?;
        Ok(made["token"].as_str().map(str::to_owned))
    }

    /// Merges all there is, as each does it by itself in time, and waits until that has ended. Says what it did.
    pub(crate) fn merge(&mut self) -> Result<&'static str> {
        match self.peer {
            Peer::Prometheus => {
                self.address
                    .post("/api/v1/admin/tsdb/snapshot", "")?
                    .success("snapshot")?;
                Ok("a snapshot: the head written as a block")
            }
            Peer::VictoriaMetrics => {
                for path in ["/internal/force_flush", "/internal/force_merge"] {
                    self.address.get(path)?.success(path)?;
                }
                self.wait_merged()?;
                Ok("force_merge")
            }
            Peer::Lockstep => match self.address.post("/api/store/compact", "")? {
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
            process::quiet(self.pid()?, self.name())?;
            let metrics = self.address.get("/metrics")?.success("/metrics")?;
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
        self.kill();
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

/// A port that was free a moment ago; a collision shows as a server that dies.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr().context("a bound port has a number")?.port())
}

/// An admin token nobody else on the machine can guess.
fn secret() -> Result<String> {
    let mut bytes = [0; 24];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    std::io::Read::read_exact(&mut random, &mut bytes).context("cannot read /dev/urandom")?;
    Ok(hex::encode(bytes))
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
