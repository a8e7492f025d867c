//! Whether a run could start here: the interpreter, PyTorch in it, the script, a free port, an address for the others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use domain::run::spec::{Backend, Spec};
use domain::run::state::Prepared;
use serde::Deserialize;
use tokio::process::Command;

/// Importing PyTorch from a cold network file system takes a minute or two; the collector gives up after five.
const IMPORT_WITHIN: Duration = Duration::from_secs(240);
/// Ranks on a node without GPUs, when nobody says how many: enough to be distributed.
const NPROC_WITHOUT_GPUS: u32 = 2;
/// How much of Python's complaint is passed on.
const COMPLAINT_CHARS: usize = 600;

/// Prints what the agent wants to know of an environment.
const QUESTION: &str = "\
import json, platform
import torch
from torch.distributed import run, is_available
assert is_available(), 'this PyTorch is built without torch.distributed'
print(json.dumps({'python': platform.python_version(), 'torch': str(torch.__version__), 'gpus': torch.cuda.device_count()}))
";

/// Where to look, beside what the run says.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The agent's own Python setting: an interpreter or a virtual environment.
    pub python: Option<PathBuf>,
    /// The unpacked companions.
    pub companions: PathBuf,
    /// The collector's URL: the other nodes reach this one where the collector does.
    pub collector: Option<String>,
}

/// Why a run cannot start here. Each says how to get what is missing.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// No interpreter.
    #[error(
        "there is no Python at {0:?}; name an interpreter or virtual environment with `python` in the run, --python for the \
         agent, or LOCKSTEP_PYTHON"
    )]
    NoPython(PathBuf),
    /// No PyTorch.
    #[error(
        "PyTorch cannot be imported by {python:?}: {complaint}. Install it with `{} -m pip install torch`, or name another \
         environment with `python` in the run, --python for the agent, or LOCKSTEP_PYTHON", python.display()
    )]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
        /// The last of what it said.
        complaint: String,
    },
    /// It hangs.
    #[error("importing PyTorch with {0:?} took longer than 4 minutes; is its file system reachable?")]
    Slow(PathBuf),
    /// The script or folder.
    #[error("{what} {path:?} is not on this node; put it there, or on a file system that all nodes share")]
    Missing {
        /// `the script` or `the workdir`.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// No port.
    #[error("no free TCP port could be found")]
    Port(#[source] std::io::Error),
}

/// A port kept from others until the ranks need it.
#[derive(Debug)]
pub struct Lease(
    #[expect(
        dead_code,
        reason = "held, not used: while it is bound nobody else gets the port"
    )]
    TcpListener,
);

#[derive(Deserialize)]
struct Answer {
    python: String,
    torch: String,
    gpus: u32,
}

/// Checks everything a start will need.
///
/// # Errors
/// When something is missing; the message is for the person who submitted the run.
pub async fn prepare(spec: &Spec, around: &Surroundings) -> Result<(Prepared, Lease), PrepareError> {
    check_program(spec, around)?;
    let python = find_python(spec, around)?;
    let answer = ask(&python).await?;
    let gpus = if spec.backend == Backend::Gloo {
        0
    } else {
        answer.gpus
    };
    let lease = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(PrepareError::Port)?;
    let port = lease.local_addr().map_err(PrepareError::Port)?.port();
    let prepared = Prepared {
        address: address_towards(around.collector.as_deref()).to_string(),
        port,
        python: python.display().to_string(),
        python_version: answer.python,
        torch_version: answer.torch,
        gpus,
        nproc_default: if gpus > 0 { gpus } else { NPROC_WITHOUT_GPUS },
    };
    Ok((prepared, Lease(lease)))
}

fn check_program(spec: &Spec, around: &Surroundings) -> Result<(), PrepareError> {
    let workdir = spec.workdir.as_deref().map(Path::new);
    if let Some(path) = workdir.filter(|path| !path.is_dir()) {
        return Err(PrepareError::Missing {
            what: "the workdir",
            path: path.to_owned(),
        });
    }
    let (what, path) = match (&spec.recipe, &spec.script) {
        (Some(recipe), _) => (
            "the recipe",
            around.companions.join("recipes").join(recipe).join("main.py"),
        ),
        (None, script) => (
            "the script",
            workdir
                .unwrap_or(Path::new("/"))
                .join(script.as_deref().unwrap_or("")),
        ),
    };
    if path.is_file() {
        Ok(())
    } else {
        Err(PrepareError::Missing { what, path })
    }
}

/// The run's own, else the agent's, else `LOCKSTEP_PYTHON`, else `python3`.
fn find_python(spec: &Spec, around: &Surroundings) -> Result<PathBuf, PrepareError> {
    let named = spec
        .python
        .as_ref()
        .map(PathBuf::from)
        .or_else(|| around.python.clone());
    let named = named.or_else(|| std::env::var_os("LOCKSTEP_PYTHON").map(PathBuf::from));
    let Some(named) = named else {
        return search_path("python3");
    };
    let python = if named.is_dir() {
        named.join("bin/python")
    } else {
        named
    };
    if python.is_file() {
        Ok(python)
    } else {
        Err(PrepareError::NoPython(python))
    }
}

fn search_path(name: &str) -> Result<PathBuf, PrepareError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.ok_or_else(|| PrepareError::NoPython(name.into()))
}

async fn ask(python: &Path) -> Result<Answer, PrepareError> {
    let mut command = Command::new(python);
    command
        .args(["-c", QUESTION])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(IMPORT_WITHIN, command.output()).await;
    let output = output.map_err(|_| PrepareError::Slow(python.to_owned()))?;
    let output = output.map_err(|_| PrepareError::NoPython(python.to_owned()))?;
    let answer = String::from_utf8_lossy(&output.stdout)
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok());
    answer
        .filter(|_| output.status.success())
        .ok_or_else(|| PrepareError::NoTorch {
            python: python.to_owned(),
            complaint: complaint(&String::from_utf8_lossy(&output.stderr)),
        })
}

/// Python's last line says what is wrong.
fn complaint(stderr: &str) -> String {
    let line = stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing");
    line.trim().chars().take(COMPLAINT_CHARS).collect()
}

/// The address this node has on the way to the collector. Nothing is sent: a UDP connect only chooses a route.
fn address_towards(collector: Option<&str>) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let Some(target) = collector.and_then(socket_address) else {
        return loopback;
    };
    let unspecified: SocketAddr = if target.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let routed = UdpSocket::bind(unspecified).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    routed.map_or(loopback, |address| address.ip())
}

/// `http://host:port/` → an address of the host.
fn socket_address(url: &str) -> Option<SocketAddr> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    let default = if scheme == "https" { 443 } else { 80 };
    let host = authority.trim_start_matches('[').trim_end_matches(']');
    let addresses = authority
        .to_socket_addrs()
        .or_else(|_| (host, default).to_socket_addrs());
    addresses.ok()?.next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn recipe() -> (tempfile::TempDir, Spec, Surroundings) {
        let data = tempfile::tempdir().unwrap();
        let companions = crate::launch::companions::unpack(data.path()).unwrap();
        let spec = Spec {
            recipe: Some("ddp".into()),
            ..Spec::default()
        };
        (
            data,
            spec,
            Surroundings {
                companions,
                ..Surroundings::default()
            },
        )
    }

    #[tokio::test]
    async fn what_is_missing_is_named_with_the_way_to_get_it() {
        let (_data, spec, mut around) = recipe();
        around.python = Some("/nonexistent".into());
        let error = prepare(&spec, &around).await.unwrap_err();
        assert!(
            matches!(&error, PrepareError::NoPython(path) if path == Path::new("/nonexistent")),
            "{error}"
        );
        let script = Spec {
            script: Some("train.py".into()),
            workdir: Some("/tmp".into()),
            ..Spec::default()
        };
        let error = prepare(&script, &around).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the script \"/tmp/train.py\" is not on this node; put it there, or on a file system that all nodes share"
        );
    }

    #[tokio::test]
    async fn a_python_without_torch_gets_told_how_to_install_it() {
        let (data, spec, mut around) = recipe();
        let fake = data.path().join("python");
        std::fs::write(
            &fake,
            "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n",
        )
        .unwrap();
        std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        around.python = Some(fake.clone());
        let message = prepare(&spec, &around).await.unwrap_err().to_string();
        assert!(
            message.contains("No module named 'torch'. Install it with")
                && message.contains("LOCKSTEP_PYTHON")
        );
    }

    #[test]
    fn the_address_is_the_one_on_the_way_to_the_collector() {
        assert_eq!(
            address_towards(Some("http://127.0.0.1:8470")),
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        );
        assert_eq!(address_towards(Some("nonsense")), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(
            socket_address("https://[::1]/x"),
            Some("[::1]:443".parse().unwrap())
        );
    }
}
