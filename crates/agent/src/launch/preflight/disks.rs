//! What a node reports before a run, so that nodes can be compared: the script's digest and commit, free disk space, whether checkpoints
//! can be written, and a file that the other nodes search for.
//!
//! A file system that hangs must not block the agent: everything runs outside the agent's own threads, with a time limit.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use domain::run::spec::Spec;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::error::PrepareError;
use super::request::{PrepareRequest, checkpoint_folder, token_of};

/// A healthy file system answers within milliseconds; a network file system that is mounted on demand needs a few seconds.
const DISK_WITHIN: Duration = Duration::from_secs(60);
/// A network file system shows a new file to other nodes after its attribute cache expires; with most defaults after 3 s.
const SEEN_WITHIN: Duration = Duration::from_secs(8);
/// Interval between checks for a file.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Time limit for git on a large working copy on a slow disk.
const GIT_WITHIN: Duration = Duration::from_secs(10);

/// The results of the disk checks.
#[derive(Debug, Default)]
pub(super) struct Disks {
    pub(super) script_sha256: String,
    pub(super) workdir_free_bytes: Option<u64>,
    pub(super) checkpoint_free_bytes: Option<u64>,
    pub(super) token: Option<String>,
}

/// Checks all files and folders that a run uses. `script` is `None` for a recipe.
pub(super) async fn disks(
    spec: &Spec,
    request: &PrepareRequest,
    script: Option<PathBuf>,
) -> Result<Disks, PrepareError> {
    let (spec, request) = (spec.clone(), request.clone());
    let check = tokio::task::spawn_blocking(move || check_disks(&spec, &request, script.as_deref()));
    match tokio::time::timeout(DISK_WITHIN, check).await {
        Ok(Ok(disks)) => disks,
        Ok(Err(_panicked)) => Ok(Disks::default()),
        Err(_) => Err(PrepareError::DiskHangs),
    }
}

fn check_disks(spec: &Spec, request: &PrepareRequest, script: Option<&Path>) -> Result<Disks, PrepareError> {
    if let Some(path) = request.resume_from.as_deref().map(Path::new)
        && !path.exists()
    {
        return Err(PrepareError::Missing {
            what: "the checkpoint to resume from,",
            path: path.to_owned(),
        });
    }
    check_interfaces(spec)?;
    let mut disks = Disks {
        workdir_free_bytes: spec
            .workdir
            .as_deref()
            .and_then(|path| free_bytes(Path::new(path))),
        ..Disks::default()
    };
    if let Some(script) = script {
        let source = std::fs::read(script).map_err(|source| PrepareError::Unreadable {
            path: script.to_owned(),
            source,
        })?;
        disks.script_sha256 = hex::encode(Sha256::digest(&source));
    }
    if let (Some(folder), Some(token)) = (checkpoint_folder(spec), token_of(spec, request)) {
        leave_token(&folder, &token, request)?;
        disks.token = Some(token.display().to_string());
        disks.checkpoint_free_bytes = free_bytes(&folder);
    }
    Ok(disks)
}

/// Creates the folder and a file in it. It is better to find an error now than at the first save, hours later. Anything that has the file's
/// name is replaced, not written to: it may be a link that another user of the folder made to a file of the agent's user.
fn leave_token(folder: &Path, token: &Path, request: &PrepareRequest) -> Result<(), PrepareError> {
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        shim::remove_if_exists(token)?;
        File::create_new(token)?.write_all(request.mark.as_bytes())
    };
    write().map_err(|source| PrepareError::Unwritable {
        path: folder.to_owned(),
        source,
    })
}

/// Removes the file that `leave_token` wrote.
pub(in crate::launch) fn remove_token(token: PathBuf) {
    // On a separate thread without waiting: a file that stays is empty, and nothing reads it.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = shim::remove_if_exists(&token) {
            tracing::warn!(token = %token.display(), %error, "a file of the preparation cannot be removed");
        }
    });
}

/// Returns true if a file that another node wrote becomes visible here within the time limit.
pub(in crate::launch) async fn is_seen(path: String) -> bool {
    let check = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + SEEN_WITHIN;
        let path = Path::new(&path);
        loop {
            // Listing the folder makes a network file system query its server.
            let _listed = path
                .parent()
                .map(|folder| std::fs::read_dir(folder).map(Iterator::count));
            if path.exists() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
    let seen = tokio::time::timeout(SEEN_WITHIN * 2, check).await;
    matches!(seen, Ok(Ok(true)))
}

/// Checks the interfaces that are named for collectives: a missing one makes every rank fail.
fn check_interfaces(spec: &Spec) -> Result<(), PrepareError> {
    let Some(names) = spec.env.get("GLOO_SOCKET_IFNAME") else {
        return Ok(());
    };
    let is_there = |name: &str| Path::new("/sys/class/net").join(name).exists();
    let missing = names
        .split(',')
        .map(str::trim)
        .find(|name| !name.is_empty() && !name.contains('/') && !is_there(name));
    match missing {
        Some(name) => Err(PrepareError::NoInterface(name.to_owned())),
        None => Ok(()),
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns the commit of the working copy that contains a script, with `+changes` if files differ from it. `None` without git.
pub(super) async fn commit_of(script: &Path) -> Option<String> {
    let folder = script.parent()?;
    let commit = git(folder, &["rev-parse", "HEAD"]).await?;
    let changes = git(folder, &["status", "--porcelain", "--untracked-files=no"]).await;
    let suffix = if changes.is_some_and(|changes| !changes.is_empty()) {
        "+changes"
    } else {
        ""
    };
    Some(format!("{commit}{suffix}"))
}

/// Runs git such that the user's configuration cannot start a program, and nothing is locked or written.
async fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command
        .args(["-c", "core.fsmonitor=false", "-C"])
        .arg(folder)
        .args(arguments)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(GIT_WITHIN, command.output())
        .await
        .ok()?
        .ok()?;
    let said = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8_lossy(&said).trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn spec(folder: &Path) -> Spec {
        Spec {
            checkpoint_dir: Some(folder.join("ckpt").display().to_string()),
            workdir: Some(folder.display().to_string()),
            ..Spec::default()
        }
    }

    fn request() -> PrepareRequest {
        PrepareRequest {
            mark: "r.1-n0".into(),
            ..PrepareRequest::default()
        }
    }

    #[tokio::test]
    async fn the_token_is_written_found_and_removed_in_the_checkpoint_folder() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "import torch\n").unwrap();
        let found = disks(&spec(folder.path()), &request(), Some(script))
            .await
            .unwrap();
        let token = found.token.unwrap();
        assert!(token.ends_with("/ckpt/.lockstep-r.1-n0"));
        assert!(found.checkpoint_free_bytes > Some(0) && found.workdir_free_bytes > Some(0));
        assert_eq!(
            found.script_sha256,
            "b91a3bc5e2064d025a8ae122555c96948ec5b4895d53d809c4b66b71a4915133"
        );
        assert!(is_seen(token.clone()).await);
        remove_token(token.clone().into());
        let deadline = Instant::now() + Duration::from_secs(20);
        while Path::new(&token).exists() {
            assert!(Instant::now() < deadline, "it stays");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!is_seen(token).await);
    }

    /// A run's name and attempt are known before its next attempt, so that another user of the folder could make the link.
    #[tokio::test]
    async fn the_token_is_not_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        let token = folder.path().join("ckpt/.lockstep-r.1-n0");
        for is_symbolic in [true, false] {
            std::fs::write(&other, "keys").unwrap();
            std::fs::create_dir_all(folder.path().join("ckpt")).unwrap();
            let linked = if is_symbolic {
                std::os::unix::fs::symlink(&other, &token)
            } else {
                std::fs::hard_link(&other, &token)
            };
            linked.unwrap();
            disks(&spec(folder.path()), &request(), None).await.unwrap();
            assert_eq!(std::fs::read_to_string(&other).unwrap(), "keys");
            assert_eq!(std::fs::read_to_string(&token).unwrap(), "r.1-n0");
            std::fs::remove_file(&token).unwrap();
        }
    }

    #[tokio::test]
    async fn what_would_fail_later_fails_now() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ckpt"), "a file, not a folder").unwrap();
        let error = disks(&spec(folder.path()), &request(), None).await.unwrap_err();
        assert!(matches!(error, PrepareError::Unwritable { .. }), "{error}");
        let resumed = PrepareRequest {
            resume_from: Some("/nonexistent/step-7".into()),
            ..request()
        };
        let error = disks(&Spec::default(), &resumed, None).await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the checkpoint to resume from, \"/nonexistent/step-7\" is not on this node"),
            "{error}"
        );
        let named = Spec {
            env: [("GLOO_SOCKET_IFNAME".to_owned(), "lo,nope0".to_owned())].into(),
            ..Spec::default()
        };
        let error = disks(&named, &request(), None).await.unwrap_err();
        assert!(error.to_string().contains("nope0"), "{error}");
    }

    #[tokio::test]
    async fn the_commit_is_reported_with_whether_files_differ_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "pass\n").unwrap();
        let run = |arguments: &'static [&'static str]| git(folder.path(), arguments);
        if run(&["init", "-q"]).await.is_none() {
            eprintln!("there is no git. Skipped.");
            return;
        }
        assert_eq!(commit_of(&script).await, None, "nothing is committed");
        run(&["add", "train.py"]).await.unwrap();
        run(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"])
            .await
            .unwrap();
        let commit = commit_of(&script).await.unwrap();
        assert!(commit.len() >= 40 && !commit.ends_with("+changes"), "{commit}");
        std::fs::write(&script, "pass # more\n").unwrap();
        assert_eq!(commit_of(&script).await, Some(format!("{commit}+changes")));
    }
}
