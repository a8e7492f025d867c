//! What a node tells before a run so that nodes can be compared: the script's digest and commit, room on the disks, whether
//! checkpoints can be written, and a file there for the other nodes to look for.
//!
//! A file system that hangs must not take the agent along: all of it happens beside the agent's own threads, with a limit.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use domain::run::spec::Spec;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::asked::{Asked, checkpoint_folder, token_of};
use super::error::PrepareError;

/// A healthy file system answers in milliseconds; a network file system that mounts itself takes some seconds.
const DISK_WITHIN: Duration = Duration::from_secs(60);
/// A network file system shows a new file to other nodes after its attribute cache has aged; most by default after 3 s.
const SEEN_WITHIN: Duration = Duration::from_secs(8);
/// How often a file that is not there yet is looked for.
const LOOK: Duration = Duration::from_millis(250);
/// Of a large working copy on a slow disk.
const GIT_WITHIN: Duration = Duration::from_secs(10);

/// What the disks say.
#[derive(Debug, Default)]
pub(super) struct Disks {
    pub(super) script_sha256: String,
    pub(super) workdir_free_bytes: Option<u64>,
    pub(super) checkpoint_free_bytes: Option<u64>,
    pub(super) token: Option<String>,
}

/// Looks at everything a run will touch. `script` is none for a recipe.
pub(super) async fn disks(
    spec: &Spec,
    asked: &Asked,
    script: Option<PathBuf>,
) -> Result<Disks, PrepareError> {
    let (spec, asked) = (spec.clone(), asked.clone());
    let look = tokio::task::spawn_blocking(move || look_at_disks(&spec, &asked, script.as_deref()));
    match tokio::time::timeout(DISK_WITHIN, look).await {
        Ok(Ok(disks)) => disks,
        Ok(Err(_panicked)) => Ok(Disks::default()),
        Err(_) => Err(PrepareError::DiskHangs),
    }
}

fn look_at_disks(spec: &Spec, asked: &Asked, script: Option<&Path>) -> Result<Disks, PrepareError> {
    if let Some(path) = asked.resume_from.as_deref().map(Path::new)
        && !path.exists()
    {
        return Err(PrepareError::Missing {
            what: "the checkpoint to go on from,",
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
    if let (Some(folder), Some(token)) = (checkpoint_folder(spec), token_of(spec, asked)) {
        leave_token(&folder, &token, asked)?;
        disks.token = Some(token.display().to_string());
        disks.checkpoint_free_bytes = free_bytes(&folder);
    }
    Ok(disks)
}

/// Better now than at the first save, hours later.
fn leave_token(folder: &Path, token: &Path, asked: &Asked) -> Result<(), PrepareError> {
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(token, &asked.mark))
        .map_err(|source| PrepareError::Unwritable {
            path: folder.to_owned(),
            source,
        })
}

/// Takes back what `leave_token` left.
pub(in crate::launch) fn remove_token(token: PathBuf) {
    // On a thread of its own, and not waited for: a token that stays is an empty file that nothing reads.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = std::fs::remove_file(&token)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(token = %token.display(), %error, "a file of the preparation cannot be removed");
        }
    });
}

/// Whether a file that another node wrote comes to be seen here.
pub(in crate::launch) async fn is_seen(path: String) -> bool {
    let look = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + SEEN_WITHIN;
        let path = Path::new(&path);
        loop {
            // Listing the folder makes a network file system ask its server.
            let _listed = path
                .parent()
                .map(|folder| std::fs::read_dir(folder).map(Iterator::count));
            if path.exists() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    });
    let seen = tokio::time::timeout(SEEN_WITHIN * 2, look).await;
    matches!(seen, Ok(Ok(true)))
}

/// An interface that is named for the collectives and is not here makes every rank fail.
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

/// The commit of the working copy a script lies in, with `+changes` when files differ from it. None without git.
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

/// Nothing of the user's configuration may start a program, and nothing is locked or written.
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

    fn asked() -> Asked {
        Asked {
            mark: "r.1-n0".into(),
            ..Asked::default()
        }
    }

    #[tokio::test]
    async fn a_file_is_left_where_checkpoints_go_seen_and_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "import torch\n").unwrap();
        let found = disks(&spec(folder.path()), &asked(), Some(script)).await.unwrap();
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

    #[tokio::test]
    async fn what_would_fail_later_fails_now() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ckpt"), "a file, not a folder").unwrap();
        let error = disks(&spec(folder.path()), &asked(), None).await.unwrap_err();
        assert!(matches!(error, PrepareError::Unwritable { .. }), "{error}");
        let resumed = Asked {
            resume_from: Some("/nonexistent/step-7".into()),
            ..asked()
        };
        let error = disks(&Spec::default(), &resumed, None).await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the checkpoint to go on from, \"/nonexistent/step-7\" is not on this node"),
            "{error}"
        );
        let named = Spec {
            env: [("GLOO_SOCKET_IFNAME".to_owned(), "lo,nope0".to_owned())].into(),
            ..Spec::default()
        };
        let error = disks(&named, &asked(), None).await.unwrap_err();
        assert!(error.to_string().contains("nope0"), "{error}");
    }

    #[tokio::test]
    async fn the_commit_is_told_and_whether_files_differ_from_it() {
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
