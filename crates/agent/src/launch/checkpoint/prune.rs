//! Removing checkpoints: the one that is to remain is looked at again, on the disk, before anything goes.
//!
//! ```text
//! order ─▶ folder real? ─▶ for each: remain whole now? ─▶ path below the folder, no link on the way, not in use, quiet?
//!                                    │ no: nothing more goes          │ no: stays, and says why
//!                                    ▼                                ▼
//!                             rename to .trash-lockstep-N ─▶ delete; what a crash leaves is deleted by the next look
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use domain::run::checkpoint::{PruneOrder, Remain};

use super::look::{QUIET, TRASH, look_at, names_below};
use super::sidecar;

/// Why something was not removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PruneError {
    /// The one that is to remain is not whole.
    #[error("nothing is removed: the checkpoint that is to remain, {path}, {why}")]
    Remain {
        /// Which one.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The order's path is none of ours.
    #[error("{0} stays: it is not a path below the run's checkpoint folder")]
    Outside(String),
    /// A link could lead anywhere.
    #[error("{0} stays: a symbolic link is on the way to it")]
    Link(String),
    /// Another run, or this one.
    #[error("{0} stays: a run goes on from it")]
    InUse(String),
    /// It would take along what has to remain.
    #[error("{0} stays: the checkpoint that is to remain lies in it")]
    Holds(String),
    /// It may be in writing.
    #[error("{0} stays: it is incomplete and changed a moment ago")]
    Writing(String),
    /// The file system.
    #[error("{path} cannot be removed: {source}")]
    Io {
        /// What.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Carries an order out. Returns the first thing that kept something from being removed.
pub(super) fn carry_out(order: &PruneOrder, in_use: &BTreeSet<String>, node: &str) -> Option<PruneError> {
    let mut trouble = None;
    for path in &order.remove {
        match remove(order, path, in_use, node) {
            Ok(()) => {}
            Err(error @ PruneError::Remain { .. }) => return Some(error),
            Err(error) => trouble = trouble.or(Some(error)),
        }
    }
    trouble
}

/// Deletes what interrupted removals left. Another node may be at it too.
pub(super) fn sweep(trash: &[PathBuf]) {
    for path in trash {
        if let Err(error) = delete(path) {
            tracing::warn!(path = %path.display(), %error, "what is left of a removed checkpoint cannot be deleted");
        }
    }
}

fn remove(order: &PruneOrder, path: &str, in_use: &BTreeSet<String>, node: &str) -> Result<(), PruneError> {
    check_remaining(&order.remain, node)?;
    let there = check_path(order, path, in_use)?;
    let io = |source| PruneError::Io {
        path: path.to_owned(),
        source,
    };
    let meta = match std::fs::symlink_metadata(&there) {
        // Another node was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(io)?,
    };
    if meta.is_symlink() {
        return Err(PruneError::Link(path.to_owned()));
    }
    check_quiet(&there, path, node)?;
    let name = there
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let trash = unused(&there, &name);
    match std::fs::rename(&there, &trash) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed.map_err(io)?,
    }
    tracing::info!(path, "a checkpoint is removed");
    delete(&trash).map_err(io)?;
    delete(&there.with_file_name(format!("{name}{}", sidecar::ENDING))).map_err(io)
}

/// Now, from the disk, whatever was known of it.
fn check_remaining(remain: &Remain, node: &str) -> Result<(), PruneError> {
    let not = |why: &str| {
        Err(PruneError::Remain {
            path: remain.path.clone(),
            why: why.to_owned(),
        })
    };
    let Some(now) = look_at(Path::new(&remain.path), node) else {
        return not("is not there");
    };
    let Some(sight) = now.seen.get(node) else {
        return not("cannot be seen");
    };
    if now.uncertain {
        return not("cannot be checked");
    }
    if remain.complete && !sight.complete {
        return not(&format!(
            "is not whole: {}",
            sight.problem.as_deref().unwrap_or("it changed")
        ));
    }
    if !remain.complete && sight.mark != remain.mark {
        return not("has changed on this node");
    }
    Ok(())
}

fn check_path(order: &PruneOrder, path: &str, in_use: &BTreeSet<String>) -> Result<PathBuf, PruneError> {
    let folder = Path::new(&order.folder);
    let outside = || PruneError::Outside(path.to_owned());
    let names = names_below(Path::new(path), folder).ok_or_else(outside)?;
    // Compared as real paths too: there may be several ways to one folder.
    let real = std::fs::canonicalize(folder).map_err(|_| outside())?;
    let mut there = real;
    let (last, between) = names.split_last().ok_or_else(outside)?;
    for name in between {
        there.push(name);
        if std::fs::symlink_metadata(&there).is_ok_and(|meta| meta.is_symlink()) {
            return Err(PruneError::Link(path.to_owned()));
        }
    }
    there.push(last);
    let holds = |other: &str| {
        let other_real = std::fs::canonicalize(other).unwrap_or_else(|_| PathBuf::from(other));
        other_real.starts_with(&there) || Path::new(other).starts_with(path)
    };
    if holds(&order.remain.path) {
        return Err(PruneError::Holds(path.to_owned()));
    }
    if in_use.iter().any(|used| holds(used)) {
        return Err(PruneError::InUse(path.to_owned()));
    }
    Ok(there)
}

fn check_quiet(there: &Path, path: &str, node: &str) -> Result<(), PruneError> {
    let Some(now) = look_at(there, node) else {
        return Ok(());
    };
    let changed = now.changed_ms.and_then(|ms| u64::try_from(ms).ok());
    let changed = changed.map(|ms| SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ms));
    let lately = changed.is_none_or(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < QUIET));
    if !now.complete && lately {
        Err(PruneError::Writing(path.to_owned()))
    } else {
        Ok(())
    }
}

fn unused(there: &Path, name: &str) -> PathBuf {
    let with = |n: u32| there.with_file_name(format!("{TRASH}{n}-{name}"));
    (0..)
        .map(with)
        .find(|trash| std::fs::symlink_metadata(trash).is_err())
        .unwrap_or_else(|| with(0))
}

/// Links in it are removed, not followed.
fn delete(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;
