//! The agent that `up` manages: started as a child, or adopted from an earlier `up`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use collector::Running;
use rustix::process::{Pid, Signal, kill_process};
use tracing::{info, warn};

/// How long an agent may take to end after SIGTERM.
pub(super) const END_GRACE: Duration = Duration::from_secs(10);
/// How many bytes at the end of the log are searched for its last lines.
const LAST_LINES_BYTES: u64 = 4_096;

/// How to start an agent.
#[derive(Debug, Clone)]
pub(super) struct AgentLaunch {
    pub(super) url: String,
    pub(super) simulate: Option<String>,
    pub(super) tls_ca: Option<PathBuf>,
    pub(super) dir: PathBuf,
}

impl AgentLaunch {
    pub(super) fn log_file(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    /// Returns the last lines of the agent's log, at most `count`, joined by ` | `. They usually say why the agent ended.
    pub(super) fn last_log_lines(&self, count: usize) -> String {
        let read = || {
            let mut file = File::open(self.log_file())?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LAST_LINES_BYTES)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return format!("its log {} is empty", self.log_file().display());
        }
        let last = &lines[lines.len().saturating_sub(count)..];
        crate::table::printable(&last.join(" | "))
    }

    /// Starts the agent.
    fn start(&self, join: &str) -> anyhow::Result<Child> {
        self.command(join)?.spawn().context("cannot start the agent")
    }

    /// Returns the command that starts the agent, and creates its folder and its log. The token is passed in the environment, because
    /// every user of the machine can read arguments. The command starts the running program itself, even if its file has been replaced
    /// by a newer one.
    pub(super) fn command(&self, join: &str) -> anyhow::Result<Command> {
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot create {}", self.dir.display()))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .with_context(|| format!("cannot write {}", self.log_file().display()))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("agent")
            .arg("--collector")
            .arg(&self.url)
            .arg("--data")
            .arg(&self.dir);
        command
            .env("LOCKSTEP_JOIN", join)
            .env_remove("LOCKSTEP_ADMIN_TOKEN")
            .env_remove("LOCKSTEP_TOKEN");
        match &self.simulate {
            Some(spec) => command.env("LOCKSTEP_SIMULATE", spec),
            None => command.env_remove("LOCKSTEP_SIMULATE"),
        };
        if let Some(path) = &self.tls_ca {
            command.arg("--tls-ca").arg(path);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        Ok(command)
    }

    /// Returns true if the running agent was started with the same settings. Also true if its settings cannot be read.
    fn has_same_settings(&self, pid: Pid) -> bool {
        let read = |what: &str| std::fs::read(format!("/proc/{}/{what}", pid.as_raw_nonzero()));
        let (Ok(arguments), Ok(variables)) = (read("cmdline"), read("environ")) else {
            return true;
        };
        self.matches_process(&arguments, &variables)
    }

    fn matches_process(&self, arguments: &[u8], variables: &[u8]) -> bool {
        let split = |bytes: &[u8]| -> Vec<String> {
            let parts = bytes.split(|byte| *byte == 0);
            parts
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .collect()
        };
        let (arguments, variables) = (split(arguments), split(variables));
        let value = |name: &str| arguments.iter().skip_while(|text| *text != name).nth(1).cloned();
        let simulate = variables
            .iter()
            .find_map(|text| text.strip_prefix("LOCKSTEP_SIMULATE="));
        value("--collector").is_none_or(|url| url == self.url)
            && simulate.filter(|spec| !spec.is_empty()) == self.simulate.as_deref()
            && value("--tls-ca").map(PathBuf::from) == self.tls_ca
    }
}

/// The agent of this machine.
pub(super) enum LocalAgent {
    /// Our child process.
    Child(Child),
    /// An agent that an earlier collector left. The lock on its folder identifies it, because another process may have the same PID by now.
    Adopted { pid: Pid, dir: PathBuf },
}

impl LocalAgent {
    pub(super) async fn adopt_or_start(launch: &AgentLaunch, running: &Running) -> anyhow::Result<Self> {
        if let Some(pid) = agent::lock_holder(&launch.dir).and_then(Pid::from_raw) {
            let mut adopted = Self::Adopted {
                pid,
                dir: launch.dir.clone(),
            };
            let number = pid.as_raw_nonzero().get();
            if launch.has_same_settings(pid) {
                info!(pid = number, "adopted the running agent");
                return Ok(adopted);
            }
            warn!(
                pid = number,
                url = launch.url,
                "the running agent was started with other settings; replacing it, its runs continue"
            );
            adopted.stop().await;
        }
        let join = running
            .join_token()
            .await
            .context("cannot create a join token for the agent")?;
        Ok(Self::Child(launch.start(&join)?))
    }

    pub(super) fn is_alive(&mut self) -> bool {
        match self {
            Self::Child(child) => matches!(child.try_wait(), Ok(None)),
            Self::Adopted { pid, dir } => agent::lock_holder(dir) == Some(pid.as_raw_nonzero().get()),
        }
    }

    pub(super) async fn stop(&mut self) {
        let pid = match self {
            Self::Child(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            Self::Adopted { pid, .. } => Some(*pid),
        };
        let Some(pid) = pid.filter(|_| self.is_alive()) else {
            return;
        };
        let _gone_already = kill_process(pid, Signal::TERM);
        let ended = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(END_GRACE, ended).await.is_err() && self.is_alive() {
            warn!("the agent did not end in time; killing it");
            let _gone_already = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_agent_is_adopted_only_if_it_was_started_with_the_same_settings() {
        let launch = |url: &str, simulate: Option<&str>| AgentLaunch {
            url: url.into(),
            simulate: simulate.map(Into::into),
            tls_ca: None,
            dir: PathBuf::new(),
        };
        let arguments = b"lockstep\0agent\0--collector\0http://127.0.0.1:1\0--data\0x\0";
        let variables = b"HOME=/\0LOCKSTEP_SIMULATE=h100x8\0";
        assert!(launch("http://127.0.0.1:1", Some("h100x8")).matches_process(arguments, variables));
        assert!(!launch("http://127.0.0.1:2", Some("h100x8")).matches_process(arguments, variables));
        assert!(!launch("http://127.0.0.1:1", None).matches_process(arguments, variables));
        assert!(launch("http://127.0.0.1:1", None).matches_process(arguments, b"HOME=/\0"));
    }

    #[test]
    fn the_last_log_lines_are_shown_without_control_characters() {
        let dir = tempfile::tempdir().expect("a folder");
        let launch = AgentLaunch {
            url: String::new(),
            simulate: None,
            tls_ca: None,
            dir: dir.path().into(),
        };
        assert!(launch.last_log_lines(1).ends_with("is empty"));
        std::fs::write(launch.log_file(), "first\nerror: \u{1b}[31mport taken\n\n").expect("writes");
        assert_eq!(launch.last_log_lines(1), "error: \u{fffd}[31mport taken");
        assert_eq!(launch.last_log_lines(3), "first | error: \u{fffd}[31mport taken");
    }
}
