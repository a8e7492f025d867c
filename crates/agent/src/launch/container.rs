//! A run's container on this node: what is mounted into it, whom it runs as, and how it is taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use domain::container::{Mount, Runtime, check};
use domain::run::container::{ContainerWish, Place};
use domain::run::spec::{Backend, Spec};
use serde::{Deserialize, Serialize};
use shim::{Folder, files};
use tokio::process::Command;

use super::preflight::asked::{Surroundings, checkpoint_folder};

/// A daemon that works removes a container within seconds; one that hangs must not hold up the rest.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
/// Folders of an image that a folder of the machine must not cover as a whole: of a script in one of them, only the file is mounted.
const OF_THE_IMAGE: [&str; 9] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/sbin", "/usr",
];

/// What preflight found out, in the attempt's folder.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) runtime: Runtime,
    /// Whether the container gets GPUs. Older agents did not note it, and asked at the start.
    #[serde(default)]
    pub(crate) has_gpus: Option<bool>,
}

/// What a run needs of this node beside its own folder.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs<'a> {
    pub(crate) resume_from: Option<&'a str>,
    pub(crate) plugin: Option<&'a Path>,
    /// Where Kineto and the agent meet.
    pub(crate) kineto: Option<&'a Path>,
}

/// What this node adds to what the run says of its container.
///
/// # Errors
/// A path that no mount can carry, in words.
pub(crate) fn place(
    spec: &Spec,
    noted: Noted,
    folder: &Folder,
    around: &Surroundings,
    needs: Needs<'_>,
) -> Result<Place, String> {
    let own = rustix::process::geteuid();
    let (user, env) = if own.is_root() {
        (None, BTreeMap::new())
    } else {
        let group = rustix::process::getegid();
        of_user(
            noted.runtime,
            &format!("{}:{}", own.as_raw(), group.as_raw()),
            folder,
        )
    };
    Ok(Place {
        runtime: noted.runtime,
        name: folder.unique_name(),
        pid_file: folder.file(files::CONTAINER_PID).display().to_string(),
        env_file: folder.file(files::CONTAINER_ENV).display().to_string(),
        mounts: mounts(spec, folder, around, needs)?,
        has_gpus: noted.has_gpus.unwrap_or(gets_gpus(spec, around)),
        user,
        env,
    })
}

/// Whether a container of this run gets GPUs here.
pub(crate) fn gets_gpus(spec: &Spec, around: &Surroundings) -> bool {
    spec.backend != Backend::Gloo && around.has_gpus
}

/// The ranks must be the agent's to watch and to end, and their files its to read. Root in a container of a Podman without rights
/// is the agent's user outside; Docker's root is the machine's. A user whom the image does not know has no home, and no name,
/// which PyTorch's compiler asks for.
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

/// At the same path on both sides, so that one command line is true in both.
fn mounts(
    spec: &Spec,
    folder: &Folder,
    around: &Surroundings,
    needs: Needs<'_>,
) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    let wished = spec.container.as_ref().map(ContainerWish::wished_mounts);
    let wished = wished.unwrap_or_default();
    let mut add = |path: &Path, read_only: bool| {
        let text = path.display().to_string();
        check::path(&text)?;
        // Of a folder of ours that the run puts another over, what lies below is not seen.
        let hidden = |folder: &str| {
            let mut targets = wished.iter().map(|mount| Path::new(&mount.target));
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
    add(&around.companions, true)?;
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

/// Where a run's script is, or would be.
pub(crate) fn script_path(spec: &Spec) -> Option<PathBuf> {
    let workdir = spec.workdir.as_deref().map_or(Path::new("/"), Path::new);
    Some(workdir.join(spec.script.as_deref()?))
}

/// The script, where it is the machine's and not the image's.
pub(crate) fn script_on_host(spec: &Spec) -> Option<PathBuf> {
    script_path(spec).filter(|path| path.is_file())
}

/// Runs a command of a runtime.
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

/// Ends a container and takes it away; what stands in the way otherwise. One that is not there is as good as removed.
pub(crate) async fn remove(runtime: Runtime, name: &str) -> Option<String> {
    if let Err(error) = ask(&runtime.remove(name), REMOVED_WITHIN).await {
        return Some(error.to_string());
    }
    match ask(&runtime.inspect(name), REMOVED_WITHIN).await {
        Ok(output) if output.status.success() => {
            Some(format!("it is still there after `{runtime} rm --force`"))
        }
        _ => None,
    }
}

/// Takes a container away when what waits for its end does so no longer.
pub(crate) struct RemovedOnDrop(pub(crate) Runtime, pub(crate) String);

impl RemovedOnDrop {
    /// It is gone by itself.
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

/// Names of variables, each once.
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
        let around = Surroundings {
            companions: lib.clone().into(),
            ..Surroundings::default()
        };
        let told = |spec: &Spec, resume_from: Option<&str>| {
            let needs = Needs {
                resume_from,
                ..Needs::default()
            };
            let mounts = mounts(spec, &folder, &around, needs).unwrap();
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
            told(&spec, Some(&format!("{checkpoints}/step-7"))),
            [own.clone(), (code.clone(), false), (lib.clone(), true)]
        );
        // A script and a folder of the image are the image's.
        let spec = Spec {
            script: Some("/workspace/of/the/image/train.py".into()),
            workdir: Some("/workspace/of/the/image".into()),
            ..Spec::default()
        };
        assert_eq!(told(&spec, None), [own.clone(), (lib.clone(), true)]);
        // What the run mounts into a folder of ours hides what lies there.
        let deep = path("code/saved/run");
        let mounted_at = |target: &str| Spec {
            workdir: Some(code.clone()),
            checkpoint_dir: Some(deep.clone()),
            container: Some(ContainerWish {
                mounts: vec![format!("/data/other:{target}")],
                ..ContainerWish::default()
            }),
            ..Spec::default()
        };
        let [workdir, beside] = [(code.clone(), false), (lib.clone(), true)];
        for target in [&code, &checkpoints] {
            assert_eq!(
                told(&mounted_at(target), None),
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
                told(&mounted_at(target), None),
                [own.clone(), workdir.clone(), beside.clone()]
            );
        }
        // The machine's system is never put over the image's.
        let system = std::fs::read_dir("/usr/bin")
            .unwrap()
            .flatten()
            .find(|file| file.path().is_file());
        let script = system.unwrap().path().display().to_string();
        let spec = Spec {
            script: Some(script.clone()),
            ..Spec::default()
        };
        assert_eq!(told(&spec, None), [own, (script, false), (lib, true)]);
        // Kineto's socket is one of the container's, in a folder that both sides see.
        let meeting = path("k/0123abcd");
        let needs = Needs {
            kineto: Some(Path::new(&meeting)),
            ..Needs::default()
        };
        let mounts = mounts(&Spec::default(), &folder, &around, needs).unwrap();
        assert!(
            mounts
                .iter()
                .any(|mount| mount.source == meeting && mount.target == meeting && !mount.read_only)
        );
    }
}
