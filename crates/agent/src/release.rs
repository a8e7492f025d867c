//! Releases the GPUs for some time, so that a driver can be unloaded or a GPU reset while the agent runs.
//!
//! ```text
//! lockstep agent release                                  the agent's NVML thread, once per second
//!   DATA/gpus.release  ← "until" in ms since 1970  ──────▶ closes NVML, then DATA/gpus.released ← the same "until"
//!   waits for gpus.released                       ◀──────
//! the time is over, or the file is removed          ──────▶ opens NVML again, removes gpus.released
//! ```
//! Files are used instead of a socket: the request survives a restart of the agent, which a change of the driver often requires, and the
//! mode of the folder decides who may send a request.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::time::TimestampMs;

use crate::lock::lock_holder;
use crate::uplink::link::now_ms;

/// The file with the request.
const REQUEST_FILE: &str = "gpus.release";
/// The file with the agent's answer.
const ANSWER_FILE: &str = "gpus.released";
/// The longest duration of a release. A forgotten release must not stop the monitoring of a node forever.
pub const RELEASE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long the agent may take to answer: one tick, the end of a round, and the driver's own shutdown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often [`release`] checks for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Errors of a release of the GPUs and of its end.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// No agent runs with this data folder.
    #[error("no agent runs with the data folder {0:?}; name the agent's own folder with --data")]
    NoAgent(PathBuf),
    /// The data folder cannot be written.
    #[error("cannot write the request to the agent in {path:?}; run this command as the agent's user")]
    Folder {
        /// The agent's data folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent did not answer in time.
    #[error(
        "the agent did not release the GPUs within {} s: an NVML call does not return; stop the agent to release the GPUs", ANSWER_TIMEOUT.as_secs()
    )]
    NoAnswer,
}

/// Requests that the agent of this data folder releases the GPUs for the given duration, and waits until it has done so. Durations above
/// [`RELEASE_MAX`] are shortened to it. Returns the time at which the release ends.
///
/// # Errors
/// See [`ReleaseError`].
pub async fn release(data_dir: &Path, lasting: Duration) -> Result<TimestampMs, ReleaseError> {
    if lock_holder(data_dir).is_none() {
        return Err(ReleaseError::NoAgent(data_dir.to_owned()));
    }
    let lasting = lasting.min(RELEASE_MAX).as_millis() as i64;
    let until_ms = now_ms() + lasting;
    put(&data_dir.join(REQUEST_FILE), until_ms).map_err(|source| ReleaseError::Folder {
        path: data_dir.to_owned(),
        source,
    })?;
    let deadline = tokio::time::Instant::now() + ANSWER_TIMEOUT;
    while read(&data_dir.join(ANSWER_FILE)) != Some(until_ms) {
        if tokio::time::Instant::now() >= deadline {
            return Err(ReleaseError::NoAnswer);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(until_ms)
}

/// Requests that the agent uses the GPUs again, which takes a second or two. Does nothing if the GPUs are not released.
///
/// # Errors
/// Returns an error if the data folder cannot be changed.
pub fn end_release(data_dir: &Path) -> Result<(), ReleaseError> {
    shim::remove_if_exists(&data_dir.join(REQUEST_FILE)).map_err(|source| ReleaseError::Folder {
        path: data_dir.to_owned(),
        source,
    })
}

/// The agent's side of a release.
#[derive(Debug)]
pub(crate) struct Release {
    request: PathBuf,
    answer: PathBuf,
}

impl Release {
    /// Uses the request and answer files of this data folder.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self {
            request: data_dir.join(REQUEST_FILE),
            answer: data_dir.join(ANSWER_FILE),
        }
    }

    /// Returns the time until which the GPUs must be released, or `None` if there is no valid request. Removes a request whose time is over
    /// or that exceeds [`RELEASE_MAX`], and ignores a request that cannot be parsed.
    pub(crate) fn until(&self, now_ms: TimestampMs) -> Option<TimestampMs> {
        let until_ms = read(&self.request)?;
        let longest = RELEASE_MAX.as_millis() as i64;
        if (now_ms..=now_ms + longest).contains(&until_ms) {
            return Some(until_ms);
        }
        let _ = std::fs::remove_file(&self.request);
        None
    }

    /// Reports that NVML is closed.
    pub(crate) fn answer(&self, until_ms: TimestampMs) {
        if let Err(error) = put(&self.answer, until_ms) {
            tracing::warn!(path = ?self.answer, %error, "the GPUs are released, but the answer file cannot be written");
        }
    }

    /// Reports that NVML is in use again.
    pub(crate) fn ended(&self) {
        let _ = std::fs::remove_file(&self.answer);
    }
}

/// Writes the file atomically, because the other side may read it at any time.
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
    fn a_request_is_valid_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let release = Release::new(folder.path());
        assert_eq!(release.until(1_000), None);
        put(&folder.path().join(REQUEST_FILE), 5_000).unwrap();
        assert_eq!(release.until(4_999), Some(5_000));
        assert_eq!(release.until(5_001), None);
        assert!(!folder.path().join(REQUEST_FILE).exists(), "removed");
        put(&folder.path().join(REQUEST_FILE), i64::MAX).unwrap();
        assert_eq!(release.until(1_000), None, "beyond the maximum");
        std::fs::write(folder.path().join(REQUEST_FILE), "soon").unwrap();
        assert_eq!(release.until(1_000), None);
        end_release(folder.path()).unwrap();
        end_release(folder.path()).unwrap();
    }

    #[tokio::test]
    async fn without_an_agent_a_release_fails() {
        let folder = tempfile::tempdir().unwrap();
        let refused = release(folder.path(), Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(refused, ReleaseError::NoAgent(_)), "{refused}");
    }
}
