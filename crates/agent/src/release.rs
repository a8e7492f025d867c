//! Letting go of the GPUs for a while, so that a driver can be unloaded or a GPU reset under a running agent.
//!
//! ```text
//! lockstep agent release                                  the agent's NVML thread, every second
//!   DATA/gpus.release  ← "until" in ms since 1970  ──────▶ closes NVML, then DATA/gpus.released ← the same "until"
//!   waits for that                                 ◀──────
//! the time is over, or the file is gone            ──────▶ opens NVML again, gpus.released goes
//! ```
//! Files rather than a socket: the wish outlives a restart of the agent, which is what a driver change often brings, and the
//! folder's mode says who may wish.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::time::TimestampMs;

use crate::lock::lock_holder;
use crate::uplink::link::now_ms;

/// What is wished.
const WISH: &str = "gpus.release";
/// What the agent has done about it.
const ANSWER: &str = "gpus.released";
/// The longest a release may last: a forgotten one must not blind a node for good.
pub const RELEASE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long the agent may take: a tick, the end of a round, and the driver's own shutdown.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// How often the answer is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Why the GPUs are not released (or not taken back).
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Nobody holds them.
    #[error("no agent runs with the data folder {0:?}; name the agent's own folder with --data")]
    NoAgent(PathBuf),
    /// The folder.
    #[error("cannot leave a word for the agent in {path:?}; run this as the user the agent runs as")]
    Folder {
        /// The agent's folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It does not react.
    #[error(
        "the agent has not let go of the GPUs within {} s: an NVML call does not come back; stop the agent to free them", ANSWER_WITHIN.as_secs()
    )]
    NoAnswer,
}

/// Has the agent of this data folder let go of the GPUs for so long; comes back when it has. Gives the time it ends.
///
/// # Errors
/// See [`ReleaseError`].
pub async fn release(data_dir: &Path, lasting: Duration) -> Result<TimestampMs, ReleaseError> {
    if lock_holder(data_dir).is_none() {
        return Err(ReleaseError::NoAgent(data_dir.to_owned()));
    }
    let lasting = lasting.min(RELEASE_MAX).as_millis() as i64;
    let until_ms = now_ms() + lasting;
    put(&data_dir.join(WISH), until_ms).map_err(|source| ReleaseError::Folder {
        path: data_dir.to_owned(),
        source,
    })?;
    let deadline = tokio::time::Instant::now() + ANSWER_WITHIN;
    while read(&data_dir.join(ANSWER)) != Some(until_ms) {
        if tokio::time::Instant::now() >= deadline {
            return Err(ReleaseError::NoAnswer);
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(until_ms)
}

/// Has the agent take the GPUs back now, within a second or two. Nothing to do is no error.
///
/// # Errors
/// When the folder cannot be changed.
pub fn take_back(data_dir: &Path) -> Result<(), ReleaseError> {
    match std::fs::remove_file(data_dir.join(WISH)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ReleaseError::Folder {
            path: data_dir.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// The agent's side.
#[derive(Debug)]
pub(crate) struct Release {
    wish: PathBuf,
    answer: PathBuf,
}

impl Release {
    /// Looks into this folder.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self {
            wish: data_dir.join(WISH),
            answer: data_dir.join(ANSWER),
        }
    }

    /// Until when the GPUs are to be left alone, if they are. A wish whose time is over is cleared away, one that nobody can
    /// read or that is beyond all bounds is none.
    pub(crate) fn until(&self, now_ms: TimestampMs) -> Option<TimestampMs> {
        let until_ms = read(&self.wish)?;
        let longest = RELEASE_MAX.as_millis() as i64;
        if (now_ms..=now_ms + longest).contains(&until_ms) {
            return Some(until_ms);
        }
        let _ = std::fs::remove_file(&self.wish);
        None
    }

    /// Says that NVML is closed.
    pub(crate) fn answer(&self, until_ms: TimestampMs) {
        if let Err(error) = put(&self.answer, until_ms) {
            tracing::warn!(path = ?self.answer, %error, "the GPUs are released, but nobody can be told");
        }
    }

    /// Says that NVML is in use again.
    pub(crate) fn taken_back(&self) {
        let _ = std::fs::remove_file(&self.answer);
    }
}

/// Whole or not at all: the other side reads whenever it likes.
fn put(path: &Path, until_ms: TimestampMs) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, format!("{until_ms}\n"))?;
    std::fs::rename(&new, path)
}

fn read(path: &Path) -> Option<TimestampMs> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_wish_holds_for_its_time_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let release = Release::new(folder.path());
        assert_eq!(release.until(1_000), None);
        put(&folder.path().join(WISH), 5_000).unwrap();
        assert_eq!(release.until(4_999), Some(5_000));
        assert_eq!(release.until(5_001), None);
        assert!(!folder.path().join(WISH).exists(), "cleared away");
        put(&folder.path().join(WISH), i64::MAX).unwrap();
        assert_eq!(release.until(1_000), None, "beyond all bounds");
        std::fs::write(folder.path().join(WISH), "soon").unwrap();
        assert_eq!(release.until(1_000), None);
        take_back(folder.path()).unwrap();
        take_back(folder.path()).unwrap();
    }

    #[tokio::test]
    async fn without_an_agent_nobody_can_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let refused = release(folder.path(), Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(refused, ReleaseError::NoAgent(_)), "{refused}");
    }
}
