//! torchrun as a child of the shim. It starts the ranks and reaps their exit statuses, and its own output may explain a failure.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use domain::run::torchrun::Launch;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::files::{self, FileName};
use crate::folder::Folder;
use crate::rank::End;
use crate::secrets::Secrets;
use crate::shim::contained::{ContainerProcesses, split_env};
use crate::tree::SIGKILL;

/// How much of the end of torchrun's output is kept as a message.
const LAST_OUTPUT_BYTES: usize = 2_048;

/// The running torchrun, or the container runtime's command that started it.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) end: Option<End>,
    /// The deadline for torchrun to exit by itself after its ranks have ended.
    pub(crate) exit_deadline: Option<Instant>,
    /// The container, if the child is a container runtime's command.
    pub(crate) container: Option<ContainerProcesses>,
}

impl Launcher {
    pub(crate) fn spawn(folder: &Folder, launch: &Launch) -> io::Result<Self> {
        let (program, arguments) = launch.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let container = launch
            .container
            .as_ref()
            .map(|contained| ContainerProcesses::expect(contained, launch));
        let secrets = Secrets::of(folder);
        let set = launch
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let mut variables: Vec<(&str, &str)> = set.chain(secrets.variables()).collect();
        if let Some(container) = &container {
            container.remove_old_pid_file()?;
            let (by_name, file) = split_env(variables);
            folder.write_private(files::CONTAINER_ENV, file.as_bytes())?;
            variables = by_name;
        }
        let workdir = match container {
            // The working directory must exist only inside the container.
            Some(_) => folder.path(),
            None => Path::new(&launch.workdir),
        };
        let inherited = std::env::vars_os().filter(|(name, _)| !is_ours(&name.to_string_lossy()));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(inherited)
            .envs(variables)
            .current_dir(workdir)
            .stdin(Stdio::null())
            .stdout(output(folder, files::LAUNCHER_STDOUT)?)
            .stderr(output(folder, files::LAUNCHER_STDERR)?)
            .process_group(0);
        let child = command.spawn()?;
        // Not waited for through `Child`: the shim reaps all its children itself.
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let handle = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        let pidfd = rustix::process::pidfd_open(handle, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            pidfd,
            end: None,
            exit_deadline: None,
            container,
        })
    }

    /// The process whose children are the ranks, if known.
    pub(crate) fn torchrun(&self) -> Option<i32> {
        match &self.container {
            Some(container) => container.first.map(|process| process.pid),
            None => Some(self.pid),
        }
    }

    /// Signals torchrun. In a container, torchrun is not the child. The runtime's command forwards SIGTERM, is never suspended, and is
    /// killed only together with torchrun.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(first) = self.container.as_ref().and_then(|container| container.first) {
            first.signal(signal);
            if signal != SIGKILL {
                return;
            }
        } else if self.container.is_some() && matches!(signal, Signal::STOP | Signal::CONT) {
            return;
        }
        if self.end.is_none() {
            let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }
}

/// Returns the end of torchrun's own output.
pub(crate) fn last_output(folder: &Folder) -> String {
    let bytes = std::fs::read(folder.file(files::LAUNCHER_STDERR)).unwrap_or_default();
    let from = bytes.len().saturating_sub(LAST_OUTPUT_BYTES);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}

/// Returns true for variables of the agent. The training must not see them, tokens least of all.
fn is_ours(name: &str) -> bool {
    name.starts_with("LOCKSTEP_")
}

fn output(folder: &Folder, name: FileName) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.file(name))
}
