//! A clean working copy of a git revision in the attempt's folder, made by the `git` of the node.
//!
//! ```text
//! git init ──▶ fetch --depth=1 REVISION ──▶ checkout ──▶ rename to code/
//!                └ the server knows no such name: fetch all branches and tags, and look it up
//! ```
//! Nothing of the repository is run: no hooks, no templates; submodules only when asked for. Nobody is there to answer prompts.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use domain::run::checkout::{Checkout, PROTOCOLS};
use domain::run::spec::Spec;
use rustix::process::{Pid, Signal, kill_process_group};
use shim::Folder;
use shim::files::CODE;
use tokio::process::Command;

/// Beside the import of PyTorch, within the collector's five minutes for a preparation.
const WITHIN: Duration = Duration::from_secs(150);
/// How much of git's complaint is passed on.
const COMPLAINT_CHARS: usize = 600;

/// Why there is no working copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckoutError {
    /// No git.
    #[error("this node has no git to check out the run's revision with; install it")]
    NoGit(#[source] io::Error),
    /// It cannot be had.
    #[error(
        "git cannot check out revision {revision:?} of {repository}: {complaint}. The agent's user must be able to fetch it \
         without being asked: by a credential helper, an SSH key, or a path that it may read"
    )]
    Refused {
        /// Of which.
        repository: String,
        /// Which.
        revision: String,
        /// What git said.
        complaint: String,
    },
    /// It takes too long.
    #[error("checking out {0} took longer than 150 s; is its server reachable?")]
    Slow(String),
    /// The attempt's folder.
    #[error("the working copy cannot be put into the attempt's folder")]
    Folder(#[from] io::Error),
}

/// Checks out what a run names, once for an attempt; returns the commit. None for a run that names nothing.
///
/// # Errors
/// When it cannot be had.
pub(in crate::launch) async fn check_out(
    spec: &Spec,
    folder: &Folder,
) -> Result<Option<String>, CheckoutError> {
    let Some(wish) = &spec.git else { return Ok(None) };
    let code = folder.file(CODE);
    if !code.is_dir() {
        // Under a name of this agent's: what one before it started may still write into its own.
        let beside = folder
            .path()
            .join(format!("{}.{}", CODE.as_str(), std::process::id()));
        match std::fs::remove_dir_all(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let made = tokio::time::timeout(WITHIN, fetch(wish, &beside)).await;
        made.map_err(|_| CheckoutError::Slow(wish.repository.clone()))??;
        std::fs::rename(&beside, &code)?;
    }
    let git = Git { wish, at: &code };
    git.say(&["rev-parse", "HEAD"]).await.map(Some)
}

/// The run with the working copy as its working directory.
#[must_use]
pub(in crate::launch) fn placed(spec: &Spec, folder: &Folder) -> Spec {
    let mut spec = spec.clone();
    if spec.git.is_some() {
        let code = folder.file(CODE);
        let workdir = spec
            .workdir
            .as_deref()
            .map_or_else(|| code.clone(), |below| code.join(below));
        spec.workdir = Some(workdir.display().to_string());
    }
    spec
}

async fn fetch(wish: &Checkout, at: &Path) -> Result<(), CheckoutError> {
    std::fs::create_dir_all(at)?;
    let git = Git { wish, at };
    git.say(&["init", "--quiet", "--template="]).await?;
    let (repository, revision) = (wish.repository.as_str(), wish.revision.as_str());
    let by_name = [
        "fetch",
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--no-recurse-submodules",
        "--",
    ];
    let commit = match git.say(&[&by_name[..], &[repository, revision]].concat()).await {
        Ok(_) => {
            git.say(&["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"])
                .await?
        }
        Err(CheckoutError::NoGit(error)) => return Err(CheckoutError::NoGit(error)),
        Err(_) => git.look_up().await?,
    };
    git.say(&["checkout", "--quiet", "--detach", "--force", &commit])
        .await?;
    if wish.submodules {
        git.say(&[
            "submodule",
            "--quiet",
            "update",
            "--init",
            "--recursive",
            "--depth=1",
        ])
        .await?;
    }
    Ok(())
}

struct Git<'a> {
    wish: &'a Checkout,
    at: &'a Path,
}

impl Git<'_> {
    /// A short commit, or a name that only means something beside the history: `v1.0~2`.
    async fn look_up(&self) -> Result<String, CheckoutError> {
        let all = [
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--",
            &self.wish.repository,
        ];
        let refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
        self.say(&[&all[..], &refs[..]].concat()).await?;
        for name in [
            format!("refs/remotes/origin/{}", self.wish.revision),
            self.wish.revision.clone(),
        ] {
            let commit = format!("{name}^{{commit}}");
            let found = self
                .say(&["rev-parse", "--verify", "--quiet", "--end-of-options", &commit])
                .await;
            if let Ok(commit) = found {
                return Ok(commit);
            }
        }
        Err(self.refused("it holds no such commit, tag or branch"))
    }

    async fn say(&self, arguments: &[&str]) -> Result<String, CheckoutError> {
        let ours = [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "advice.detachedHead=false",
        ];
        let mut command = Command::new("git");
        command
            .args(ours.iter().flat_map(|setting| ["-c", *setting]))
            .arg("-C")
            .arg(self.at)
            .args(arguments)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "true")
            .env("SSH_ASKPASS", "true")
            .env("GCM_INTERACTIVE", "never")
            .env("GIT_ALLOW_PROTOCOL", PROTOCOLS.join(":"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        for inherited in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_OBJECT_DIRECTORY",
        ] {
            command.env_remove(inherited);
        }
        if std::env::var_os("GIT_SSH_COMMAND").is_none() {
            command.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes");
        }
        let git = command.spawn().map_err(CheckoutError::NoGit)?;
        let group = EndsGroup(git.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
        let output = git.wait_with_output().await?;
        group.over();
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        Err(self.refused(&String::from_utf8_lossy(&output.stderr)))
    }

    fn refused(&self, said: &str) -> CheckoutError {
        let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let complaint: String = lines
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(COMPLAINT_CHARS)
            .collect();
        CheckoutError::Refused {
            repository: self.wish.repository.clone(),
            revision: self.wish.revision.clone(),
            complaint,
        }
    }
}

/// Git and what it started (ssh, helpers, clones of submodules), which must not go on when nobody waits for it any more.
struct EndsGroup(Option<Pid>);

impl EndsGroup {
    fn over(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _gone_already = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::path::PathBuf;

    use super::*;

    /// Runs git in a folder as a person would.
    fn git(at: &Path, arguments: &[&str]) -> String {
        let output = std::process::Command::new("git")
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b",
                "-c",
                "protocol.file.allow=always",
                "-C",
            ])
            .arg(at)
            .args(arguments)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A repository with two commits, a branch `main`, and a tag at the first.
    fn repository(at: &Path) -> (String, String) {
        std::fs::create_dir_all(at.join("src")).unwrap();
        git(at, &["init", "-q", "-b", "main"]);
        let commit = |text: &str| {
            std::fs::write(at.join("src/train.py"), text).unwrap();
            git(at, &["add", "."]);
            git(at, &["commit", "-qm", text]);
            git(at, &["rev-parse", "HEAD"])
        };
        let first = commit("print(1)");
        git(at, &["tag", "v1"]);
        (first, commit("print(2)"))
    }

    fn spec(repository: &Path, revision: &str) -> Spec {
        Spec {
            script: Some("train.py".into()),
            workdir: Some("src".into()),
            git: Some(Checkout {
                repository: repository.display().to_string(),
                revision: revision.into(),
                submodules: false,
            }),
            ..Spec::default()
        }
    }

    #[tokio::test]
    async fn a_branch_a_tag_and_a_commit_are_checked_out_clean() {
        let data = tempfile::tempdir().unwrap();
        let from = data.path().join("train");
        let (first, second) = repository(&from);
        // Of the user's own: never taken along.
        std::fs::write(from.join("src/train.py"), "print('not committed')").unwrap();
        let short = &second[..8];
        let parent = format!("{}~1", &second[..10]);
        let cases = [
            ("main", &second, "print(2)"),
            ("v1", &first, "print(1)"),
            (&second, &second, "print(2)"),
            (short, &second, "print(2)"),
            ("main~1", &first, "print(1)"),
            (&parent, &first, "print(1)"),
        ];
        for (number, (revision, expected, text)) in cases.into_iter().enumerate() {
            let folder = Folder::at(data.path().join(format!("runs/{number}")));
            folder.create().unwrap();
            let spec = spec(&from, revision);
            assert_eq!(spec.problems(), []);
            let commit = check_out(&spec, &folder).await.unwrap();
            assert_eq!(commit.as_ref(), Some(expected), "{revision}");
            let placed = placed(&spec, &folder);
            let workdir = PathBuf::from(placed.workdir.unwrap());
            assert_eq!(workdir, folder.path().join("code/src"));
            assert_eq!(std::fs::read_to_string(workdir.join("train.py")).unwrap(), text);
            assert!(
                !folder
                    .path()
                    .join(format!("code.{}", std::process::id()))
                    .exists()
            );
            // Once: what the ranks may have begun with stays.
            assert_eq!(check_out(&spec, &folder).await.unwrap().as_ref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_had_is_told_with_gits_words_and_leaves_nothing_half() {
        let data = tempfile::tempdir().unwrap();
        let from = data.path().join("train");
        repository(&from);
        let folder = Folder::at(data.path().join("runs/a.1"));
        folder.create().unwrap();
        let error = check_out(&spec(&from, "nope"), &folder)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("revision \"nope\"") && error.contains("no such commit, tag or branch"),
            "{error}"
        );
        let error = check_out(&spec(&data.path().join("none"), "main"), &folder)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("does not appear to be a git repository"),
            "{error}"
        );
        assert!(!folder.has(CODE));
        assert_eq!(check_out(&Spec::default(), &folder).await.unwrap(), None);
    }

    #[tokio::test]
    async fn submodules_come_only_when_asked_for() {
        let data = tempfile::tempdir().unwrap();
        let (library, from) = (data.path().join("library"), data.path().join("train"));
        repository(&library);
        repository(&from);
        git(
            &from,
            &[
                "submodule",
                "--quiet",
                "add",
                &library.display().to_string(),
                "library",
            ],
        );
        git(&from, &["commit", "-qm", "with a library"]);
        for submodules in [false, true] {
            let folder = Folder::at(data.path().join(format!("runs/{submodules}")));
            folder.create().unwrap();
            let mut spec = spec(&from, "main");
            spec.git.as_mut().unwrap().submodules = submodules;
            check_out(&spec, &folder).await.unwrap();
            assert_eq!(
                folder.path().join("code/library/src/train.py").exists(),
                submodules
            );
        }
    }
}
