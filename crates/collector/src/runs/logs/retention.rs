//! How long logs are kept: as long as the run's per-minute series. All logs together have a size limit; the oldest runs are removed first.
//!
//! Segments that are open at the end of a run are packed when nothing has been written to them for a while. Logs of an unknown run are kept
//! as if the run had ended at the last write: the database may have been lost.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use domain::ident::RunId;
use domain::time::TimestampMs;

use super::file::LogFile;
use super::{Logs, all_logs};
use crate::runs::Runs;

/// Bound of the logs of all runs on disk, in bytes: 64 runs of the maximum size, or thousands of usual ones.
const ALL_BYTES_MAX: u64 = 16 << 30;
/// If a run ended this long ago, its agents normally send no more chunks.
const QUIET_MS: i64 = 600_000;

/// The logs of one run on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    run: RunId,
    /// When the run ended; `None` while it is active.
    ended_ms: Option<TimestampMs>,
    bytes: u64,
}

impl Runs {
    /// Removes logs that are too old or too large in total, and packs those of ended runs. Also removes the secrets of old runs.
    pub(in crate::runs) async fn keep_logs(&self, now_ms: TimestampMs, kept_ms: i64) {
        for run in self.secrets.runs() {
            if let Ok(Some(record)) = self.parts.state.run(&run).await
                && record
                    .summary
                    .ended_ms
                    .is_some_and(|ended| now_ms - ended > kept_ms)
            {
                self.secrets.remove(&run);
            }
        }
        let mut all = Vec::new();
        for run in self.logs.runs() {
            let ended_ms = match self.parts.state.run(&run).await {
                Ok(Some(record)) if record.summary.state.is_final() => record.summary.ended_ms,
                Ok(Some(_)) => None,
                Ok(None) => self.logs.last_written_ms(&run),
                // Tried again in an hour.
                Err(_) => None,
            };
            if ended_ms.is_some_and(|ended| now_ms - ended > QUIET_MS) {
                self.logs.pack(&run).await;
            }
            let bytes = self.logs.disk(&run).await;
            all.push(Kept { run, ended_ms, bytes });
        }
        for run in to_remove(all, now_ms, kept_ms, ALL_BYTES_MAX) {
            self.logs.remove(&run).await;
        }
    }
}

/// Returns the runs whose logs are removed: those that ended too long ago, then the oldest until the rest fits. An active run keeps its
/// logs.
fn to_remove(mut all: Vec<Kept>, now_ms: TimestampMs, kept_ms: i64, bytes_max: u64) -> Vec<RunId> {
    let mut total: u64 = all.iter().map(|kept| kept.bytes).sum();
    all.retain(|kept| kept.ended_ms.is_some());
    all.sort_by_key(|kept| kept.ended_ms);
    all.retain(|kept| {
        let old = kept.ended_ms.is_some_and(|ended| now_ms - ended > kept_ms);
        let goes = old || total > bytes_max;
        if goes {
            total -= kept.bytes;
        }
        goes
    });
    all.into_iter().map(|kept| kept.run).collect()
}

impl Logs {
    fn runs(&self) -> Vec<RunId> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| RunId::new(entry.file_name().to_str()?).ok());
        names.collect()
    }

    fn folder(&self, run: &RunId) -> PathBuf {
        self.root.join(run.as_str())
    }

    fn last_written_ms(&self, run: &RunId) -> Option<TimestampMs> {
        let times = all_logs(&self.folder(run));
        let written = times
            .iter()
            .filter_map(|(path, _)| path.metadata().ok()?.modified().ok());
        let since = written.max()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    }

    async fn disk(&self, run: &RunId) -> u64 {
        let folder = self.folder(run);
        let counted = tokio::task::spawn_blocking(move || {
            let logs = all_logs(&folder);
            let sizes = logs.iter().filter_map(|(path, _)| LogFile::open(path).ok());
            sizes.map(|log| log.disk()).sum()
        });
        counted.await.unwrap_or(0)
    }

    /// Packs the open segments of a run. Later chunks go into new segments.
    async fn pack(&self, run: &RunId) {
        let (folder, mut room) = (self.folder(run), self.room(run).lock_owned().await);
        let packed = tokio::task::spawn_blocking(move || {
            *room = None;
            for (path, _) in all_logs(&folder) {
                LogFile::open(&path)?.pack(true)?;
            }
            io::Result::Ok(())
        });
        self.open().remove(run);
        if let Err(error) = packed.await.map_err(io::Error::other).flatten() {
            tracing::warn!(%run, %error, "the logs of a run cannot be packed");
        }
    }

    async fn remove(&self, run: &RunId) {
        let (folder, mut room) = (self.folder(run), self.room(run).lock_owned().await);
        *room = None;
        match tokio::fs::remove_dir_all(folder).await {
            Ok(()) => tracing::info!(%run, "the logs of an old run were removed"),
            Err(error) => tracing::warn!(%run, %error, "the logs of an old run cannot be removed"),
        }
        drop(room);
        self.open().remove(run);
    }
}

#[cfg(test)]
mod tests {
    use domain::api::runs::LogSource;
    use domain::ident::{AttemptNo, Rank};

    use super::*;

    #[test]
    fn old_logs_are_removed_then_the_oldest_and_never_those_of_an_active_run() {
        let kept = |run: &str, ended_ms, bytes| Kept {
            run: RunId::new(run).expect("a name"),
            ended_ms,
            bytes,
        };
        let all = vec![
            kept("going", None, 70),
            kept("new", Some(900), 10),
            kept("old", Some(100), 10),
            kept("middle", Some(500), 20),
        ];
        let gone = |kept_ms, bytes_max| {
            let gone = to_remove(all.clone(), 1_000, kept_ms, bytes_max);
            gone.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(gone(800, 1_000), ["old"]);
        assert_eq!(gone(5_000, 100), ["old"]);
        assert_eq!(gone(5_000, 85), ["old", "middle"]);
        assert_eq!(gone(5_000, 0), ["old", "middle", "new"]);
    }

    #[tokio::test]
    async fn a_packed_log_is_continued_and_a_removed_one_is_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().to_owned());
        let run = RunId::new("r").expect("a name");
        let source = LogSource {
            attempt: AttemptNo(1),
            node: "n1".into(),
            rank: Some(Rank(0)),
            stream: "stdout".into(),
        };
        let text = "the same line again\n".repeat(1_000);
        logs.write(&run, &source, (0, 0), text.as_bytes())
            .await
            .expect("writes");
        let before = logs.disk(&run).await;
        logs.pack(&run).await;
        assert!(logs.disk(&run).await < before / 5);
        let end = text.len() as u64;
        assert_eq!(
            logs.write(&run, &source, (end, 0), b"late")
                .await
                .expect("writes"),
            end + 4
        );
        let piece = logs.read(&run, &source, end - 6, 100).await.expect("reads");
        assert_eq!(piece.text, "again\nlate");
        assert_eq!(logs.runs(), std::slice::from_ref(&run));
        logs.remove(&run).await;
        assert_eq!(logs.read(&run, &source, 0, 100).await.expect("reads").length, 0);
    }
}
