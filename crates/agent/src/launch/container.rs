//! A run's container on this node: its mounts, its user, and its removal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use domain::container::{Mount, Runtime, check};
use domain::run::container::{ContainerOptions, Place};
use domain::run::spec::{Backend, Spec};
use serde::{Deserialize, Serialize};
use shim::{Folder, files};
use tokio::process::Command;

use super::preflight::request::{NodeContext, checkpoint_folder};

/// A working daemon removes a container within seconds. A daemon that hangs must not delay the clean-up.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
/// Folders of the image that must not be covered by a mount. For a script in one of them, only the script file is mounted.
const OF_THE_IMAGE: [&str; 9] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/sbin", "/usr",
];

/// What preflight found about the container, stored in the attempt's folder.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StoredContainerCheck {
    pub(crate) runtime: Runtime,
    /// Whether the container gets GPUs. Older agents did not store it and decided at the start.
    #[serde(default)]
    pub(crate) has_gpus: Option<bool>,
}

/// What a run needs from this node in addition to the attempt's folder.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ContainerNeeds<'a> {
    pub(crate) resume_from: Option<&'a str>,
    pub(crate) plugin: Option<&'a Path>,
    /// The folder in which Kineto and the agent communicate.
    pub(crate) kineto: Option<&'a Path>,
}

/// Returns the node's part of a container's settings.
///
/// # Errors
/// A message about a path that cannot be mounted.
pub(crate) fn place(
    spec: &Spec,
    check: StoredContainerCheck,
    folder: &Folder,
    node: &NodeContext,
    needs: ContainerNeeds<'_>,
) -> Result<Place, String> {
    let own = rustix::process::geteuid();
    let (user, env) = if own.is_root() {
        (None, BTreeMap::new())
    } else {
        let group = rustix::process::getegid();
        of_user(
            check.runtime,
            &format!("{}:{}", own.as_raw(), group.as_raw()),
            folder,
        )
    };
    Ok(Place {
        runtime: check.runtime,
        name: folder.unique_name(),
        pid_file: folder.file(files::CONTAINER_PID).display().to_string(),
        env_file: folder.file(files::CONTAINER_ENV).display().to_string(),
        mounts: mounts(spec, folder, node, needs)?,
        has_gpus: check.has_gpus.unwrap_or(gets_gpus(spec, node)),
        user,
        env,
    })
}

/// Returns true if a container of this run gets GPUs on this node.
pub(crate) fn gets_gpus(spec: &Spec, node: &NodeContext) -> bool {
    spec.backend != Backend::Gloo && node.has_gpus
}

/// Returns the container's user and the variables for it. The agent must be able to watch and end the ranks and to read their files. Root
/// in a rootless Podman container is the agent's user outside; with Docker, root is the machine's root. A user that the image does not
/// define has no home folder and no name, which PyTorch's compiler needs.
fn of_user(runtime: Runtime, own: &str, folder: &Folder) -> (Option<String>, BTreeMap<String, String>) {
    match runtime {
        Runtime::Podman => (Some("0:0".to_owned()), BTreeMap::new()),
        Runtime::Docker => {
            let home = ("HOME".to_owned(), folder.path().display().to_string());
            let name = ("LOGNAME".to_owned(), "lockstep".to_owned());
            (Some(own.to_owned()), [home, name].into())
        }
    }
}

/// Returns the mounts. Each path is the same inside and outside, so the same command line works in both places.
fn mounts(
    spec: &Spec,
    folder: &Folder,
    node: &NodeContext,
    needs: ContainerNeeds<'_>,
) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    let requested = spec.container.as_ref().map(ContainerOptions::requested_mounts);
    let requested = requested.unwrap_or_default();
    let mut add = |path: &Path, read_only: bool| {
        let text = path.display().to_string();
        check::path(&text)?;
        // A mount of the run over one of our folders hides what is below it.
        let hidden = |folder: &str| {
            let mut targets = requested.iter().map(|mount| Path::new(&mount.target));
            targets.any(|target| target.starts_with(folder) && path.starts_with(target))
        };
        let covered = |mount: &Mount| {
            path.starts_with(&mount.source) && (read_only || !mount.read_only) && !hidden(&mount.target)
        };
        if !mounts.iter().any(covered) {
            mounts.push(Mount {
                source: text.clone(),
                target: text,
                read_only,
            });
        }
        Ok::<(), String>(())
    };
    add(folder.path(), false)?;
    if let Some(workdir) = spec.workdir.as_deref().map(Path::new)
        && workdir.is_dir()
    {
        add(workdir, false)?;
    }
    if let Some(script) = script_on_host(spec) {
        let beside = script.parent().filter(|folder| !is_of_the_image(folder));
        add(beside.unwrap_or(&script), false)?;
    }
    if let Some(checkpoints) = checkpoint_folder(spec) {
        add(&checkpoints, false)?;
    }
    if let Some(from) = needs.resume_from {
        add(Path::new(from), true)?;
    }
    add(&node.companions, true)?;
    if let Some(plugin) = needs.plugin {
        add(plugin, true)?;
    }
    if let Some(meeting) = needs.kineto {
        add(meeting, false)?;
    }
    Ok(mounts)
}

fn is_of_the_image(folder: &Path) -> bool {
    OF_THE_IMAGE.iter().any(|root| Path::new(root) == folder) || folder.starts_with("/usr")
}

/// Returns the path of a run's script, whether it exists or not.
pub(crate) fn script_path(spec: &Spec) -> Option<PathBuf> {
    let workdir = spec.workdir.as_deref().map_or(Path::new("/"), Path::new);
    Some(workdir.join(spec.script.as_deref()?))
}

/// Returns the path of the script if it is on the machine, not in the image.
pub(crate) fn script_on_host(spec: &Spec) -> Option<PathBuf> {
    script_path(spec).filter(|path| path.is_file())
}

/// Runs a command of a container runtime and returns its output.
pub(crate) async fn ask(words: &[String], limit: Duration) -> io::Result<Output> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(limit, command.output()).await {
        Ok(output) => output,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{program} did not answer within {} s", limit.as_secs()),
        )),
    }
}

/// Ends and removes a container. Returns a message if it cannot be removed. A container that does not exist is not an error.
pub(crate) async fn remove(runtime: Runtime, name: &str) -> Option<String> {
    if let Err(error) = ask(&runtime.remove(name), REMOVED_WITHIN).await {
        return Some(error.to_string());
    }
    match ask(&runtime.inspect(name), REMOVED_WITHIN).await {
        Ok(output) if output.status.success() => {
            Some(format!("it still exists after `{runtime} rm --force`"))
        }
        _ => None,
    }
}

/// Removes a container if the task that waits for its end is cancelled.
pub(crate) struct RemovedOnDrop(pub(crate) Runtime, pub(crate) String);

impl RemovedOnDrop {
    /// Cancels the removal: the container has ended by itself.
    pub(crate) fn done(mut self) {
        self.1.clear();
    }
}

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let (runtime, name) = (self.0, std::mem::take(&mut self.1));
        if name.is_empty() {
            return;
        }
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(async move { remove(runtime, &name).await });
        }
    }
}

/// Returns the names of the variables.
pub(crate) fn names(env: &BTreeMap<String, String>) -> BTreeSet<String> {
    env.keys().cloned().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn what_the_ranks_need_is_mounted_and_nothing_twice() {
        let data = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = data.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path.display().to_string()
        };
        let (code, lib, checkpoints) = (path("code"), path("lib"), path("code/saved"));
        std::fs::write(data.path().join("code/train.py"), "pass\n").unwrap();
        let folder = Folder::at(path("runs/a.1"));
        let node = NodeContext {
            companions: lib.clone().into(),
            ..NodeContext::default()
        };
        let mounts_of = |spec: &Spec, resume_from: Option<&str>| {
            let needs = ContainerNeeds {
                resume_from,
                ..ContainerNeeds::default()
            };
            let mounts = mounts(spec, &folder, &node, needs).unwrap();
            mounts
                .into_iter()
                .map(|mount| (mount.source, mount.read_only))
                .collect::<Vec<_>>()
        };
        let own = (folder.path().display().to_string(), false);
        let spec = Spec {
            script: Some("train.py".into()),
            workdir: Some(code.clone()),
            checkpoint_dir: Some(checkpoints.clone()),
            ..Spec::default()
        };
        assert_eq!(
            mounts_of(&spec, Some(&format!("{checkpoints}/step-7"))),
            [own.clone(), (code.clone(), false), (lib.clone(), true)]
        );
        // A script and a folder in the image need no mount.
        let spec = Spec {
            script: Some("/workspace/of/the/image/train.py".into()),
            workdir: Some("/workspace/of/the/image".into()),
            ..Spec::default()
        };
        assert_eq!(mounts_of(&spec, None), [own.clone(), (lib.clone(), true)]);
        // A mount of the run inside one of our folders hides what is there.
        let deep = path("code/saved/run");
        let mounted_at = |target: &str| Spec {
            workdir: Some(code.clone()),
            checkpoint_dir: Some(deep.clone()),
            container: Some(ContainerOptions {
                mounts: vec![format!("/data/other:{target}")],
                ..ContainerOptions::default()
            }),
            ..Spec::default()
        };
        let [workdir, beside] = [(code.clone(), false), (lib.clone(), true)];
        for target in [&code, &checkpoints] {
            assert_eq!(
                mounts_of(&mounted_at(target), None),
                [
                    own.clone(),
                    workdir.clone(),
                    (deep.clone(), false),
                    beside.clone()
                ]
            );
        }
        for target in ["/elsewhere", &format!("{code}/other"), &format!("{deep}/latest")] {
            assert_eq!(
                mounts_of(&mounted_at(target), None),
                [own.clone(), workdir.clone(), beside.clone()]
            );
        }
        // The machine's system folders are never mounted over those of the image.
        let system = std::fs::read_dir("/usr/bin")
            .unwrap()
            .flatten()
            .find(|file| file.path().is_file());
        let script = system.unwrap().path().display().to_string();
        let spec = Spec {
            script: Some(script.clone()),
            ..Spec::default()
        };
        assert_eq!(mounts_of(&spec, None), [own, (script, false), (lib, true)]);
        // Kineto's socket is in a folder that both sides can see.
        let meeting = path("k/0123abcd");
        let needs = ContainerNeeds {
            kineto: Some(Path::new(&meeting)),
            ..ContainerNeeds::default()
        };
        let mounts = mounts(&Spec::default(), &folder, &node, needs).unwrap();
        assert!(
            mounts
                .iter()
                .any(|mount| mount.source == meeting && mount.target == meeting && !mount.read_only)
        );
    }
}
