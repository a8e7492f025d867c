//! A release collector on loopback, in a folder of its own: started, asked, killed and started again.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::http::{self, Answer};
use crate::child;
use crate::layout::Layout;
use crate::progress::block;

/// How long it may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How often readiness is asked for; start-up times are as exact as this.
const POLL: Duration = Duration::from_millis(2);

/// One that runs. Killed when dropped.
pub(crate) struct Collector {
    program: PathBuf,
    data: PathBuf,
    /// Arguments besides address and data folder.
    options: Vec<String>,
    log: PathBuf,
    port: u16,
    token: String,
    process: Option<Process>,
    first_start: Duration,
}

impl Collector {
    /// Starts one on a data folder and waits until it is ready.
    pub(crate) fn start(layout: &Layout, program: &Path, data: &Path, options: &[&str]) -> Result<Self> {
        let log = layout.logs().join("soak-collector.log");
        fs::create_dir_all(layout.logs()).context("cannot make the folder of logs")?;
        // Restarts add to the log, a new one begins it.
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut collector = Self {
            program: program.to_owned(),
            data: data.to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            log,
            port: free_port()?,
            token: secret()?,
            process: None,
            first_start: Duration::MAX,
        };
        collector.first_start = collector.start_again()?;
        Ok(collector)
    }

    /// How long it took to be ready for the first time.
    pub(crate) fn first_start(&self) -> Duration {
        self.first_start
    }

    /// Starts the process; returns how long it took from there until it was ready.
    pub(crate) fn start_again(&mut self) -> Result<Duration> {
        let log = File::options().append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args(["collector", &format!("--listen=127.0.0.1:{}", self.port)])
            .arg("--data")
            .arg(&self.data)
            .args(&self.options)
            .env("LOCKSTEP_ADMIN_TOKEN", &self.token)
            .stdin(Stdio::null())
            .stderr(
                log.try_clone()
                    .context("cannot share the log between two streams")?,
            )
            .stdout(log);
        let began = Instant::now();
        let process = command.spawn();
        self.process = Some(process.with_context(|| format!("cannot start {}", self.program.display()))?);
        while !self.get("/-/ready").is_ok_and(|answer| answer.status == 200) {
            self.check()?;
            if began.elapsed() > READY_WITHIN {
                bail!(
                    "not ready within {} s; log: {}",
                    READY_WITHIN.as_secs(),
                    self.log.display()
                );
            }
            thread::sleep(POLL);
        }
        Ok(began.elapsed())
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended meanwhile: nothing to do then.
            process.kill().ok();
            process.wait().ok();
        }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Answer> {
        http::ask(self.port, &self.token, "GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, json: &str) -> Result<Answer> {
        http::ask(self.port, &self.token, "POST", path, json)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// What the generator must know, for its environment: arguments are visible to everybody on the machine.
    pub(crate) fn secrets(&self) -> Result<[(&'static str, String); 2]> {
        let made = self.post("/api/tokens/join", r#"{"role":"join","expires_s":86400}"#)?;
        if made.status >= 300 {
            bail!("no join token was made ({}): {}", made.status, made.body);
        }
        let made: serde_json::Value = serde_json::from_str(&made.body).context("the answer is no JSON")?;
        let join = made["token"].as_str().context("the answer has no token")?;
        Ok([
            ("LOCKSTEP_TOKEN", self.token.clone()),
            ("LOCKSTEP_JOIN", join.to_owned()),
        ])
    }

    /// An error with the end of its log when it does not run any more.
    pub(crate) fn check(&mut self) -> Result<()> {
        let process = self.process.as_mut().context("the collector does not run")?;
        if let Some(status) = process.try_wait().context("cannot ask for the collector's end")? {
            block("the collector printed, at the end", &child::tail(&self.log)?);
            bail!("the collector died ({status}); its log is {}", self.log.display());
        }
        Ok(())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An empty folder for what a part keeps.
pub(crate) fn fresh_folder(layout: &Layout, name: &str) -> Result<PathBuf> {
    let folder = layout.target().join("soak").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// A port that was free a moment ago; a collision shows as a collector that dies.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr().context("a bound port has a number")?.port())
}

/// An admin token nobody else on the machine can guess.
fn secret() -> Result<String> {
    let mut bytes = [0; 24];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    random
        .read_exact(&mut bytes)
        .context("cannot read /dev/urandom")?;
    Ok(hex::encode(bytes))
}
