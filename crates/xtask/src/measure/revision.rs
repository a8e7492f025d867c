//! The `lockstep` binary of an earlier revision, built once and cached.
//!
//! ```text
//! CACHE/revisions/
//!   target/                    what cargo compiles; shared, so a second revision compiles only our own crates
//!   SHA/tree/                  a git worktree of the revision; kept, because a debug build reads embedded files from it at run time
//!   SHA/debug/lockstep
//!   SHA/release/lockstep       the result; a later call returns it without building
//! ```
//! The revision never shares a target folder with this checkout: cargo gives the same crate of two worktrees the same file names, so each
//! build would replace the other's results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::child::{self, Child};
use crate::layout::Layout;
use crate::lock;
use crate::progress::say;

/// A cold release build of everything on two slow cores.
const BUILD_LIMIT: Duration = Duration::from_secs(90 * 60);

/// How a revision is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// `cargo build`: quick to build, for tests of behaviour.
    Debug,
    /// `cargo build --release`: for measurements.
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// The path of the `lockstep` binary of `revision` (anything that `git rev-parse` takes). Builds it on the first call; later calls
/// return the cached file.
///
/// # Errors
/// If the revision does not exist in this checkout, or if it cannot be built.
pub(crate) fn binary_of(layout: &Layout, revision: &str, profile: Profile) -> Result<PathBuf> {
    let sha = resolve(layout, revision)?;
    let cache = layout.cache.join("revisions");
    let _only_one_builds = lock::hold(&cache, "build")?;
    let binary = cache.join(&sha).join(profile.folder()).join("lockstep");
    if binary.is_file() {
        return Ok(binary);
    }
    let tree = cache.join(&sha).join("tree");
    add_worktree(layout, &tree, &sha)?;
    let built = build(layout, &tree, &cache.join("target"), profile)?;
    keep(&built, &binary)?;
    Ok(binary)
}

/// Returns the full hash of a revision.
pub(crate) fn resolve(layout: &Layout, revision: &str) -> Result<String> {
    let commit = format!("{revision}^{{commit}}");
    child::output(git(layout).args(["rev-parse", "--verify", "--quiet", &commit])).with_context(|| {
        format!(
            "there is no revision {revision} in {}; in a shallow clone run `git fetch --unshallow` first",
            layout.root.display()
        )
    })
}

fn git(layout: &Layout) -> Command {
    let mut git = Command::new("git");
    git.current_dir(&layout.root);
    git
}

/// Creates the worktree, or uses the existing one: of the other profile, or of an interrupted build.
fn add_worktree(layout: &Layout, tree: &Path, sha: &str) -> Result<()> {
    let mut head = Command::new("git");
    head.args(["rev-parse", "HEAD"]).current_dir(tree);
    if tree.is_dir() && child::output(&mut head).is_ok_and(|head| head == sha) {
        return Ok(());
    }
    remove_worktree(layout, tree);
    child::output(
        git(layout)
            .args(["worktree", "add", "--force", "--detach"])
            .arg(tree)
            .arg(sha),
    )
    .with_context(|| format!("cannot check out {sha} into {}", tree.display()))?;
    Ok(())
}

/// Removes the worktree. Succeeds if there is none.
fn remove_worktree(layout: &Layout, tree: &Path) {
    let removed = child::output(git(layout).args(["worktree", "remove", "--force"]).arg(tree));
    if removed.is_err() {
        fs::remove_dir_all(tree).ok();
    }
}

fn build(layout: &Layout, tree: &Path, target: &Path, profile: Profile) -> Result<PathBuf> {
    // The collector embeds the dashboard. An empty one compiles as well.
    fs::create_dir_all(tree.join("web/dist")).context("cannot make web/dist in the worktree")?;
    let flags = match profile {
        Profile::Debug => &[][..],
        Profile::Release => &["--release"],
    };
    say("revision", &format!("building lockstep in {}", tree.display()));
    Child::new(layout, "build-revision", "cargo", BUILD_LIMIT)
        .folder(tree)
        .args(["build", "--locked", "--package", "lockstep"])
        .args(flags)
        .env("CARGO_TARGET_DIR", target)
        .succeed()?;
    let built = target.join(profile.folder()).join("lockstep");
    ensure!(built.is_file(), "cargo built no {}", built.display());
    Ok(built)
}

/// Copies under another name first, so that an interrupted copy is never used as the binary.
fn keep(built: &Path, binary: &Path) -> Result<()> {
    let folder = binary.parent().context("a binary lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let beside = binary.with_extension("new");
    fs::copy(built, &beside)
        .and_then(|_| fs::rename(&beside, binary))
        .with_context(|| format!("cannot keep {}", binary.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// Creates a repository with one package `lockstep` without dependencies.
    fn repository(name: &str) -> Layout {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let layout = Layout {
            cache: root.join("cache"),
            root: root.join("checkout"),
        };
        fs::create_dir_all(layout.root.join("src")).unwrap();
        let package = "[package]\nname = \"lockstep\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
        fs::write(layout.root.join("Cargo.toml"), package).unwrap();
        let lock = "version = 3\n\n[[package]]\nname = \"lockstep\"\nversion = \"0.1.0\"\n";
        fs::write(layout.root.join("Cargo.lock"), lock).unwrap();
        child::output(git(&layout).args(["init", "--quiet"])).unwrap();
        layout
    }

    fn commit(layout: &Layout, word: &str) {
        let program = format!("fn main() {{ println!(\"{word}\"); }}\n");
        fs::write(layout.root.join("src/main.rs"), program).unwrap();
        child::output(git(layout).args(["add", "."])).unwrap();
        let identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"];
        let what = ["commit", "--quiet", "--message", word];
        child::output(git(layout).args(identity).args(what)).unwrap();
    }

    #[test]
    fn each_revision_has_its_own_binary_and_is_built_once() {
        let layout = repository("revision");
        commit(&layout, "old");
        commit(&layout, "new");
        let said = |revision: &str| {
            let binary = binary_of(&layout, revision, Profile::Debug).unwrap();
            let inode = fs::metadata(&binary).unwrap().ino();
            (child::output(&mut Command::new(binary)).unwrap(), inode)
        };
        let first = said("HEAD~1");
        assert_eq!(first.0, "old");
        assert_eq!(said("HEAD").0, "new");
        assert_eq!(said("HEAD~1"), first, "it is not built again");
        let trees = child::output(git(&layout).args(["worktree", "list"])).unwrap();
        assert_eq!(trees.lines().count(), 3, "the checkout and one for each: {trees}");
        let unknown = binary_of(&layout, "0123abc", Profile::Debug)
            .unwrap_err()
            .to_string();
        assert!(unknown.contains("no revision 0123abc"), "{unknown}");
        fs::remove_dir_all(layout.root.parent().unwrap()).unwrap();
    }
}
