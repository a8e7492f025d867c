//! Checks everything that a start needs: the interpreter, PyTorch in it, the script, a free port, and an address for the other nodes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use domain::api::runs::Provenance;
use domain::run::secret::SecretValue;
use domain::run::spec::{Backend, Spec};
use domain::run::state::Prepared;
use serde::Deserialize;
use shim::Folder;
use tokio::process::Command;

use super::bandwidth::new_secret;
use super::checkout::{check_out, placed};
use super::container::{self, ContainerError, Found, shares_process_ids};
use super::disks::{commit_of, disks};
use super::error::PrepareError;
use super::image::image;
use super::lease::Lease;
use super::nics;
use super::request::{NodeContext, PrepareRequest};

/// Time limit for a whole preparation: the collector gives up after five minutes.
const PREPARED_WITHIN: Duration = Duration::from_secs(285);
/// Ranks on a node without GPUs, if the run does not specify a number: the minimum for a distributed run.
const NPROC_WITHOUT_GPUS: u32 = 2;
/// Maximum length of Python's error output that is passed on.
const COMPLAINT_CHARS: usize = 600;

/// A program that prints what the agent needs to know about an environment and a script. The script is read, not run. Its top-level imports
/// outside of `try` are searched without importing them.
const QUESTION: &str = include_str!("question.py");

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    python: String,
    executable: String,
    machine: String,
    torch: String,
    gpus: u32,
    cuda: String,
    nccl: String,
    script_error: String,
    missing: Vec<String>,
    alters_path: bool,
    packages: Vec<String>,
}

/// Checks everything that a start needs.
///
/// # Errors
/// If something is missing. The message is for the person who submitted the run.
pub(in crate::launch) async fn prepare(
    spec: &Spec,
    request: &PrepareRequest,
    node: &NodeContext,
) -> Result<(Prepared, Lease), PrepareError> {
    let until = Instant::now() + PREPARED_WITHIN;
    let folder = Folder::at(&request.folder);
    let commit = check_out(spec, &folder).await?;
    let spec = &placed(spec, &folder);
    let contained = match &spec.container {
        Some(options) => Some(container::find(spec, options, request, node, until).await?),
        None => None,
    };
    let program = check_program(spec, node)?;
    let script = spec.recipe.is_none().then_some(program);
    // A script in the image is identified by the image.
    let on_disk = script.clone().filter(|path| path.is_file());
    let disks = disks(spec, request, on_disk).await?;
    let (python, answer) = match &contained {
        Some(found) => ask_inside(found, spec, request, script.as_deref(), node, until).await?,
        None => {
            let python = find_python(spec, node)?;
            let answer = ask(&python, spec, request, script.as_deref(), node, until).await?;
            (python, answer)
        }
    };
    check_script(script.as_deref(), &answer)?;
    let gpus = if spec.backend == Backend::Gloo {
        0
    } else {
        answer.gpus
    };
    let lease = Lease::take(0).map_err(PrepareError::Port)?;
    let port = lease.port().map_err(PrepareError::Port)?;
    let nics = nics::choose_nics(spec, gpus).await;
    let image = match contained {
        Some(found) => Some(found.image),
        None => image(&node.root, &|name| std::env::var(name).ok()),
    };
    let provenance = match (request.node_rank, script) {
        (0, script) => Some(Provenance {
            commit: match (&commit, script) {
                (Some(commit), _) => Some(commit.clone()),
                (None, Some(script)) => commit_of(&script).await,
                (None, None) => None,
            },
            packages: answer.packages,
            image_digest: image.clone(),
            ..Provenance::default()
        }),
        _ => None,
    };
    let prepared = Prepared {
        address: address_towards(node.collector.as_deref()).to_string(),
        port,
        python: python.display().to_string(),
        python_version: answer.python,
        torch_version: answer.torch,
        gpus,
        nproc_default: if gpus > 0 { gpus } else { NPROC_WITHOUT_GPUS },
        driver: node.driver.clone(),
        cuda: answer.cuda,
        nccl: answer.nccl,
        script_sha256: disks.script_sha256,
        commit: commit.unwrap_or_default(),
        doubtful_imports: answer.missing,
        workdir_free_bytes: disks.workdir_free_bytes,
        checkpoint_free_bytes: disks.checkpoint_free_bytes,
        token: disks.token,
        turns_live: true,
        nics: nics.nics,
        data_address: nics.address.map_or(String::new(), |ip| ip.to_string()),
        door: if spec.preflight_bandwidth.is_off() {
            SecretValue::default()
        } else {
            SecretValue::new(new_secret())
        },
        image: image.unwrap_or_default(),
        provenance,
    };
    Ok((prepared, lease))
}

/// Fails if the script cannot be parsed or imports a missing module, unless the script changes its own module path.
fn check_script(script: Option<&Path>, answer: &Answer) -> Result<(), PrepareError> {
    let Some(path) = script else {
        return Ok(());
    };
    let complaint = if !answer.script_error.is_empty() {
        answer.script_error.clone()
    } else if !answer.missing.is_empty() && !answer.alters_path {
        format!(
            "it imports {}, which this environment does not have",
            answer.missing.join(", ")
        )
    } else {
        return Ok(());
    };
    Err(PrepareError::Script {
        path: path.to_owned(),
        complaint,
    })
}

/// Returns the path of the file that will be run.
fn check_program(spec: &Spec, node: &NodeContext) -> Result<PathBuf, PrepareError> {
    let workdir = spec.workdir.as_deref().map(Path::new);
    // What is missing on the node may be in the image; Python checks that inside.
    let may_be_inside = spec.container.is_some() && spec.git.is_none();
    if let Some(path) = workdir.filter(|path| !path.is_dir() && !may_be_inside) {
        return Err(PrepareError::Missing {
            what: "the workdir",
            path: path.to_owned(),
        });
    }
    let (what, path) = match (&spec.recipe, &spec.script) {
        (Some(recipe), _) => (
            "the recipe",
            node.companions.join("recipes").join(recipe).join("main.py"),
        ),
        (None, script) => (
            "the script",
            workdir
                .unwrap_or(Path::new("/"))
                .join(script.as_deref().unwrap_or("")),
        ),
    };
    if path.is_file() || (may_be_inside && spec.recipe.is_none()) {
        Ok(path)
    } else {
        Err(PrepareError::Missing { what, path })
    }
}

/// Returns the run's own Python, else the agent's, else `LOCKSTEP_PYTHON`, else `python3`.
fn find_python(spec: &Spec, node: &NodeContext) -> Result<PathBuf, PrepareError> {
    let named = spec
        .python
        .as_ref()
        .map(PathBuf::from)
        .or_else(|| node.python.clone());
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

async fn ask(
    python: &Path,
    spec: &Spec,
    request: &PrepareRequest,
    script: Option<&Path>,
    node: &NodeContext,
    until: Instant,
) -> Result<Answer, PrepareError> {
    let mut command = Command::new(python);
    command
        .args(["-c", QUESTION])
        .arg(script.unwrap_or(Path::new("")))
        .arg(if request.node_rank == 0 { "packages" } else { "" })
        .arg(node.companions.join("inject"))
        // A folder in which no stray file can be imported as a module.
        .current_dir("/")
        .envs(&spec.env)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let left = until.saturating_duration_since(Instant::now());
    let output = tokio::time::timeout(left, command.output()).await;
    let output = output.map_err(|_| PrepareError::Slow(python.to_owned(), left.as_secs()))?;
    let output = output.map_err(|_| PrepareError::NoPython(python.to_owned()))?;
    Answer::read(&output.stdout)
        .filter(|_| output.status.success())
        .ok_or_else(|| PrepareError::NoTorch {
            python: python.to_owned(),
            complaint: complaint(&String::from_utf8_lossy(&output.stderr)),
        })
}

/// Like `ask`, in the run's container. Also returns the Python inside it.
async fn ask_inside(
    found: &Found,
    spec: &Spec,
    request: &PrepareRequest,
    script: Option<&Path>,
    node: &NodeContext,
    until: Instant,
) -> Result<(PathBuf, Answer), PrepareError> {
    let python = spec.python.as_deref().unwrap_or("python3");
    let script = script.unwrap_or(Path::new("")).display().to_string();
    let packages = if request.node_rank == 0 { "packages" } else { "" };
    let inject = node.companions.join("inject").display().to_string();
    let arguments = ["-c", QUESTION, &script, packages, &inject];
    let folder = Folder::at(&request.folder);
    let output = found.ask_python(python, &arguments, spec, &folder, until).await?;
    let answer = Answer::read(&output.stdout).ok_or_else(|| found.no_answer(python))?;
    if !shares_process_ids(&answer.machine) {
        return Err(ContainerError::Hidden.into());
    }
    let python = match answer.executable.as_str() {
        "" => python,
        executable => executable,
    };
    Ok((python.into(), answer))
}

impl Answer {
    /// Parses the last line: imported modules may print before it.
    fn read(stdout: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(stdout);
        serde_json::from_str(text.lines().last()?).ok()
    }
}

/// Returns Python's last line, which contains the error.
fn complaint(stderr: &str) -> String {
    let line = stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no error output");
    line.trim().chars().take(COMPLAINT_CHARS).collect()
}

/// Returns this node's address on the route to the collector. Nothing is sent: a UDP connect only chooses a route.
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

/// Resolves `http://host:port/` to an address of the host.
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

    use std::collections::BTreeMap;

    use super::*;

    fn recipe() -> (tempfile::TempDir, Spec, NodeContext) {
        let data = tempfile::tempdir().unwrap();
        let companions = crate::launch::companions::unpack(data.path()).unwrap();
        let spec = Spec {
            recipe: Some("ddp".into()),
            ..Spec::default()
        };
        (
            data,
            spec,
            NodeContext {
                companions,
                ..NodeContext::default()
            },
        )
    }

    #[tokio::test]
    async fn the_error_for_a_missing_part_says_how_to_provide_it() {
        let (_data, spec, mut node) = recipe();
        node.python = Some("/nonexistent".into());
        let error = prepare(&spec, &PrepareRequest::default(), &node)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, PrepareError::NoPython(path) if path == Path::new("/nonexistent")),
            "{error}"
        );
        let script = Spec {
            script: Some("train.py".into()),
            workdir: Some("/tmp".into()),
            ..Spec::default()
        };
        let error = prepare(&script, &PrepareRequest::default(), &node)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the script \"/tmp/train.py\" is not on this node; put it there, or on a file system that all nodes share"
        );
    }

    #[tokio::test]
    async fn the_error_for_a_python_without_torch_says_how_to_install_it() {
        let (data, spec, mut node) = recipe();
        let fake = data.path().join("python");
        std::fs::write(
            &fake,
            "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n",
        )
        .unwrap();
        std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        node.python = Some(fake.clone());
        let message = prepare(&spec, &PrepareRequest::default(), &node)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("No module named 'torch'. Install it with")
                && message.contains("LOCKSTEP_PYTHON")
        );
    }

    /// A package that answers the questions about PyTorch. Importing the real one takes seconds.
    fn stub_of_torch(folder: &Path) -> String {
        let files = [
            (
                "torch/__init__.py",
                "__version__ = '2.0'\nclass cuda:\n    device_count = staticmethod(lambda: 0)\nclass version:\n    cuda = None\n",
            ),
            (
                "torch/distributed/__init__.py",
                "def is_available():\n    return True\n",
            ),
            ("torch/distributed/run.py", ""),
        ];
        for (name, text) in files {
            let file = folder.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        folder.display().to_string()
    }

    #[tokio::test]
    async fn a_script_is_read_and_its_imports_are_searched_without_running_it() {
        let (data, _, mut node) = recipe();
        let Some(python) = crate::launch::testing::python_with_torch() else {
            return;
        };
        node.python = Some(python);
        let first = PrepareRequest {
            mark: "x".into(),
            ..PrepareRequest::default()
        };
        let stub = stub_of_torch(&data.path().join("stub"));
        let stub = BTreeMap::from([("PYTHONPATH".to_owned(), stub)]);
        let prepared = async |text: &str, env: &BTreeMap<String, String>| {
            std::fs::write(data.path().join("train.py"), text).unwrap();
            let spec = Spec {
                script: Some("train.py".into()),
                workdir: Some(data.path().display().to_string()),
                env: env.clone(),
                ..Spec::default()
            };
            prepare(&spec, &first, &node).await.map(|(prepared, _)| prepared)
        };
        let complaint = async |text: &str| prepared(text, &stub).await.unwrap_err().to_string();
        std::fs::write(data.path().join("mylib.py"), "raise RuntimeError('it was run')\n").unwrap();
        let fine = "import torch, json, mylib\ntry:\n    import nothere\nexcept ImportError:\n    pass\nraise SystemExit(7)\n";
        let found = prepared(fine, &BTreeMap::new()).await.unwrap();
        assert_eq!(found.doubtful_imports, [""; 0]);
        let packages = found.provenance.unwrap().packages;
        assert!(
            packages.iter().any(|package| package.starts_with("torch==")),
            "{packages:?}"
        );
        assert!(
            complaint("def f(:\n").await.contains("line 1"),
            "a script that cannot be parsed"
        );
        assert!(
            complaint("import nothere.deeper\n")
                .await
                .contains("it imports nothere, which")
        );
        let appends = "import sys\nsys.path.append('/opt/lib')\nimport nothere\n";
        let elsewhere = prepared(appends, &stub).await.unwrap();
        assert_eq!(elsewhere.doubtful_imports, ["nothere"]);
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
