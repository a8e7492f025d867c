//! Checks out a clean working copy of a git revision in the attempt's folder, with the node's `git`.
//!
//! ```text
//! git init ──▶ fetch --depth=1 REVISION ──▶ checkout ──▶ rename to code/
//!                └ the server does not know that name: fetch all branches and tags, and search there
//! ```
//! No code of the repository is executed: no hooks, no templates; submodules only on request. git must not prompt, because no one can
//! answer.

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

/// Time limit: together with the import of PyTorch, it fits into the collector's five minutes for a preparation.
const WITHIN: Duration = Duration::from_secs(150);
/// Maximum length of git's error output that is passed on.
const COMPLAINT_CHARS: usize = 600;

/// Why there is no working copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckoutError {
    /// git is not installed.
    #[error("git is not installed on this node, so the run's revision cannot be checked out; install it")]
    NoGit(#[source] io::Error),
    /// git failed to fetch or check out the revision.
    #[error(
        "git cannot check out revision {revision:?} of {repository}: {complaint}. The agent's user must be able to fetch it \
         without a prompt: with a credential helper, an SSH key, or a path that it may read"
    )]
    Refused {
        /// The repository.
        repository: String,
        /// The revision.
        revision: String,
        /// The error output of git.
        complaint: String,
    },
    /// The time limit was reached.
    #[error("checking out {0} took longer than 150 s; is its server reachable?")]
    Slow(String),
    /// The working copy could not be written.
    #[error("the working copy cannot be written to the attempt's folder")]
    Folder(#[from] io::Error),
}

/// Checks out the revision of a run, once per attempt, and returns the commit. Returns `None` if the run names no repository.
///
/// # Errors
/// If the checkout fails.
pub(in crate::launch) async fn check_out(
    spec: &Spec,
    folder: &Folder,
) -> Result<Option<String>, CheckoutError> {
    let Some(requested) = &spec.git else {
        return Ok(None);
    };
    let code = folder.file(CODE);
    if !code.is_dir() {
        // Under a name of this agent process: a git process of a previous agent may still write to its own folder.
        let beside = folder
            .path()
            .join(format!("{}.{}", CODE.as_str(), std::process::id()));
        match std::fs::remove_dir_all(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let made = tokio::time::timeout(WITHIN, fetch(requested, &beside)).await;
        made.map_err(|_| CheckoutError::Slow(requested.repository.clone()))??;
        std::fs::rename(&beside, &code)?;
    }
    let git = Git { requested, at: &code };
    git.say(&["rev-parse", "HEAD"]).await.map(Some)
}

/// Returns the spec with the working copy as its working directory.
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

async fn fetch(requested: &Checkout, at: &Path) -> Result<(), CheckoutError> {
    std::fs::create_dir_all(at)?;
    let git = Git { requested, at };
    git.say(&["init", "--quiet", "--template="]).await?;
    let commit = match git.fetch(&["--depth=1"], &[&requested.revision]).await {
        Ok(_) => {
            git.say(&["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"])
                .await?
        }
        Err(CheckoutError::NoGit(error)) => return Err(CheckoutError::NoGit(error)),
        Err(_) => git.look_up().await?,
    };
    git.say(&["checkout", "--quiet", "--detach", "--force", &commit])
        .await?;
    if requested.submodules {
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
    requested: &'a Checkout,
    at: &'a Path,
}

impl Git<'_> {
    /// Finds a short commit hash, or a name that has a meaning only in the history, such as `v1.0~2`.
    async fn look_up(&self) -> Result<String, CheckoutError> {
        let refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
        self.fetch(&[], &refs).await?;
        for name in [
            format!("refs/remotes/origin/{}", self.requested.revision),
            self.requested.revision.clone(),
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

    async fn fetch(&self, options: &[&str], refs: &[&str]) -> Result<String, CheckoutError> {
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"];
        let repository = ["--", &self.requested.repository];
        self.say(&[&fetch[..], options, &repository, refs].concat()).await
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
            repository: self.requested.repository.clone(),
            revision: self.requested.revision.clone(),
            complaint,
        }
    }
}

/// git and its child processes (ssh, helpers, clones of submodules). They are killed if the caller stops waiting.
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

    /// A repository with two commits, a branch `main`, and a tag at the first commit.
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
        // The user's uncommitted changes are never included.
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
            // Only once per attempt: the ranks may have started with the first checkout, so it is kept.
            assert_eq!(check_out(&spec, &folder).await.unwrap().as_ref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_failed_checkout_reports_gits_error_and_leaves_no_partial_files() {
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
    async fn submodules_are_fetched_only_on_request() {
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
