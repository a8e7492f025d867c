//! A server on loopback, in its own folder: started, queried, killed and restarted. A collector, or a server that it is compared with.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::build;
use super::http::Address;
use crate::child;
use crate::layout::Layout;
use crate::progress::block;

/// The longest time until a server is ready; mainly the replay of another server's log.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// Poll interval for readiness, which is the precision of start-up times.
const READY_POLL: Duration = Duration::from_millis(2);

/// How a server is started.
pub(crate) struct Plan {
    /// Names its log, and the logs of programs that run against it.
    pub(crate) step: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Additional environment variables.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// The folder in which it is started.
    pub(crate) folder: PathBuf,
    /// The port is the one in its arguments. A server with a token is a collector.
    pub(crate) address: Address,
    /// The path that returns 200 as soon as the server is ready.
    pub(crate) ready: &'static str,
}

impl Plan {
    /// The collector of the last release build on a data folder, with these options besides the data folder and its address.
    pub(crate) fn collector(layout: &Layout, step: &str, data: &Path, options: &[&str]) -> Result<Self> {
        let (port, token) = (free_port()?, Some(secret()?));
        let mut arguments = vec![
            "collector".to_owned(),
            format!("--listen=127.0.0.1:{port}"),
            format!("--data={}", data.display()),
        ];
        arguments.extend(options.iter().map(ToString::to_string));
        Ok(Self {
            step: step.to_owned(),
            program: build::program(layout, "lockstep"),
            arguments,
            variables: Vec::new(),
            folder: data.parent().context("a data folder lies in a folder")?.into(),
            address: Address { port, token },
            ready: "/-/ready",
        })
    }
}

/// A started server. Killed when dropped.
pub(crate) struct Server {
    plan: Plan,
    log: PathBuf,
    process: Option<Process>,
    first_start: Duration,
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(layout: &Layout, plan: Plan) -> Result<Self> {
        let log = layout.logs().join(format!("{}.log", plan.step));
        fs::create_dir_all(layout.logs()).context("cannot make the folder of logs")?;
        // Restarts append to the log; a new server starts a new log.
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut server = Self {
            plan,
            log,
            process: None,
            first_start: Duration::MAX,
        };
        server.first_start = server.start_again()?;
        Ok(server)
    }

    /// Returns how long the first start took until the server was ready.
    pub(crate) fn first_start(&self) -> Duration {
        self.first_start
    }

    /// Starts the process again. Returns how long it took until the server was ready.
    pub(crate) fn start_again(&mut self) -> Result<Duration> {
        let ready = self.plan.ready;
        self.start_until("ready", |address| {
            address.get(ready).is_ok_and(|answer| answer.status == 200)
        })
    }

    /// Starts the process again and waits for another condition; `what` names it.
    pub(crate) fn start_until(&mut self, what: &str, is_so: impl Fn(&Address) -> bool) -> Result<Duration> {
        let began = Instant::now();
        self.spawn()?;
        while !is_so(&self.plan.address) {
            self.check()?;
            if began.elapsed() > READY_WITHIN {
                self.show_log()?;
                bail!("{}: not {what} within {} s", self.step(), READY_WITHIN.as_secs());
            }
            thread::sleep(READY_POLL);
        }
        Ok(began.elapsed())
    }

    /// Pauses the server until [`Server::resume`], so that it uses no CPU meanwhile.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes the server.
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.as_ref().map(Pid::from_child);
        let pid = pid.with_context(|| format!("{} does not run", self.step()))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.step()))
    }

    /// Sends SIGKILL: for the process, the same as a power loss.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process may have ended meanwhile.
            process.kill().ok();
            process.wait().ok();
        }
    }

    /// Returns an error with the end of its log if the server does not run.
    pub(crate) fn check(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            bail!("{} does not run", self.step());
        };
        if let Some(status) = process.try_wait().context("cannot read the server's status")? {
            self.show_log()?;
            bail!(
                "{} died ({status}); its log is {}",
                self.step(),
                self.log.display()
            );
        }
        Ok(())
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.plan.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.plan.address.port)
    }

    /// Returns the name of its log.
    pub(crate) fn step(&self) -> &str {
        &self.plan.step
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        let pid = self.process.as_ref().map(Process::id);
        pid.with_context(|| format!("{} does not run", self.step()))
    }

    /// Returns what the generator needs from a collector, as environment variables: other users of the machine can see arguments.
    pub(crate) fn secrets(&self) -> Result<Vec<(&'static str, OsString)>> {
        match &self.plan.address.token {
            Some(token) => Ok(vec![("LOCKSTEP_TOKEN", token.into()), self.join_secret()?]),
            None => Ok(Vec::new()),
        }
    }

    /// Returns what an agent needs to join this collector, as an environment variable.
    pub(crate) fn join_secret(&self) -> Result<(&'static str, OsString)> {
        let path = "/api/tokens/join";
        let made = self
            .address()
            .post(path, r#"{"role":"join","expires_s":86400}"#)?
            .json(path)?;
        let join = made["token"].as_str().context("the response has no token")?;
        Ok(("LOCKSTEP_JOIN", join.into()))
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = Command::new(&self.plan.program);
        command
            .args(&self.plan.arguments)
            .envs(self.plan.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.plan.folder)
            .stdin(Stdio::null())
            .stderr(
                log.try_clone()
                    .context("cannot share the log between two streams")?,
            )
            .stdout(log);
        if let Some(token) = &self.plan.address.token {
            command.env("LOCKSTEP_ADMIN_TOKEN", token);
        }
        let process = command.spawn();
        let process = process.with_context(|| format!("cannot start {}", self.plan.program.display()))?;
        self.process = Some(process);
        Ok(())
    }

    fn show_log(&self) -> Result<()> {
        let heading = format!("{} printed, at the end", self.step());
        block(&heading, &child::tail(&self.log)?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a port that was free a moment ago. After a collision the server fails to start.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr().context("a bound port has a number")?.port())
}

/// Returns an admin token that no other user of the machine can guess.
fn secret() -> Result<String> {
    let mut bytes = [0; 24];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    random
        .read_exact(&mut bytes)
        .context("cannot read /dev/urandom")?;
    Ok(hex::encode(bytes))
}
