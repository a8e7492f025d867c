//! Log files of runs: written at offsets as agents send them, read in pieces.
//!
//! ```text
//! DATA/logs/RUN/ATTEMPT/NODE/rank-3.stdout   launcher.stderr
//! ```
//! Every part of the path is checked before it becomes one: run and node are names without slashes, the rest we make.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::api::runs::{LogPiece, LogSource};
use domain::ident::{AttemptNo, NodeName, Rank, RunId};
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, SeekFrom};

/// What all logs of one run may take on disk; what comes beyond is acknowledged and dropped.
const RUN_BYTES_MAX: u64 = 256 << 20;
/// Runs whose sizes are remembered; beyond, those nobody writes to are forgotten and counted again when somebody does.
const OPEN_MAX: usize = 1_024;
/// The most one read returns.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;

/// A log that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not `stdout` or `stderr`, or a node name that is none.
    #[error(
        "there is no such log; a log has a node, a rank (or none, for the launcher) and a stream, stdout or stderr"
    )]
    Name,
    /// The disk.
    #[error("the log cannot be read or written")]
    Io(#[from] io::Error),
}

/// The log files of all runs.
pub struct Logs {
    root: PathBuf,
    run_bytes_max: u64,
    /// Runs written to lately.
    open: Mutex<HashMap<RunId, Arc<Room>>>,
}

/// The bytes a run has on disk, once counted. Held while a piece is written: two connections of one node, an old one that
/// does not know yet and a new one, must not append the same piece twice.
type Room = tokio::sync::Mutex<Option<u64>>;

impl Logs {
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root,
            run_bytes_max: RUN_BYTES_MAX,
            open: Mutex::default(),
        }
    }

    /// Writes bytes where they belong and returns how long the log is then. Bytes beyond the end are not written: the
    /// returned length tells the agent to go back.
    ///
    /// # Errors
    /// When the name is none, or the disk fails.
    pub async fn write(
        &self,
        run: &RunId,
        source: &LogSource,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, LogError> {
        let path = self.path(run, source)?;
        let room = self.room(run);
        let mut taken = room.lock().await;
        let length = fs::metadata(&path).await.map_or(0, |found| found.len());
        let end = offset.saturating_add(bytes.len() as u64);
        if end <= length {
            return Ok(length);
        }
        let used = match *taken {
            Some(used) => used,
            None => folder_bytes(self.root.join(run.as_str())).await,
        };
        // A full run's logs have a hole at their end for good: asking the agent to go back would never end. Once full, full:
        // a smaller piece that would still fit must not land behind the hole.
        if used.saturating_add(end - length.max(offset)) > self.run_bytes_max {
            *taken = Some(self.run_bytes_max);
            return Ok(end);
        }
        if offset > length {
            return Ok(length);
        }
        let fresh = &bytes[usize::try_from(length - offset).unwrap_or(0)..];
        // Counted anew when the write fails half-way.
        *taken = None;
        append(&path, fresh).await?;
        *taken = Some(used + fresh.len() as u64);
        Ok(end)
    }

    /// Whether a run was written to lately.
    pub(super) fn is_open(&self, run: &RunId) -> bool {
        self.open().contains_key(run)
    }

    /// Reads a piece. A log that is not there yet is empty.
    ///
    /// # Errors
    /// When the name is none, or the disk fails.
    pub async fn read(
        &self,
        run: &RunId,
        source: &LogSource,
        offset: u64,
        limit: u64,
    ) -> Result<LogPiece, LogError> {
        let path = self.path(run, source)?;
        let mut file = match File::open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(piece(source, 0, 0, vec![])),
            Err(error) => return Err(error.into()),
        };
        let length = file.metadata().await?.len();
        let offset = offset.min(length);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset)).await?;
        file.take(limit.min(PIECE_BYTES_MAX))
            .read_to_end(&mut bytes)
            .await?;
        if offset + (bytes.len() as u64) < length {
            bytes.truncate(whole_characters(&bytes));
        }
        Ok(piece(source, offset, length, bytes))
    }

    fn path(&self, run: &RunId, source: &LogSource) -> Result<PathBuf, LogError> {
        let node = NodeName::new(source.node.as_str()).map_err(|_| LogError::Name)?;
        if !matches!(source.stream.as_str(), "stdout" | "stderr") {
            return Err(LogError::Name);
        }
        let who = source
            .rank
            .map_or("launcher".to_owned(), |rank| format!("rank-{rank}"));
        let folder = self
            .root
            .join(run.as_str())
            .join(source.attempt.to_string())
            .join(node.as_str());
        Ok(folder.join(format!("{who}.{}", source.stream)))
    }

    fn room(&self, run: &RunId) -> Arc<Room> {
        let mut open = self.open();
        if open.len() >= OPEN_MAX {
            open.retain(|_, room| Arc::strong_count(room) > 1);
        }
        Arc::clone(open.entry(run.clone()).or_default())
    }

    fn open(&self) -> MutexGuard<'_, HashMap<RunId, Arc<Room>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).await?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).await?;
    file.write_all(bytes).await?;
    file.flush().await
}

/// The source of a chunk as the wire names it: rank -1 is the launcher.
pub(crate) fn source(attempt: AttemptNo, node: &NodeName, rank: i32, stream: &str) -> LogSource {
    let rank = u32::try_from(rank).ok().map(Rank);
    LogSource {
        attempt,
        node: node.to_string(),
        rank,
        stream: stream.to_owned(),
    }
}

fn piece(source: &LogSource, offset: u64, length: u64, bytes: Vec<u8>) -> LogPiece {
    let next_offset = offset + bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    LogPiece {
        source: source.clone(),
        offset,
        next_offset,
        length,
        text,
    }
}

/// How many bytes end with a whole character; all, when the end is not UTF-8 at all.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

async fn folder_bytes(root: PathBuf) -> u64 {
    let mut folders = vec![root];
    let mut total = 0;
    while let Some(folder) = folders.pop() {
        let Ok(mut entries) = fs::read_dir(&folder).await else {
            continue;
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            match entry.metadata().await {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => total += found.len(),
                Err(_) => {}
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Logs, RunId, LogSource) {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().to_owned());
        let source = source(AttemptNo(1), &NodeName::new("n1").expect("a name"), 0, "stdout");
        (folder, logs, RunId::new("r").expect("a name"), source)
    }

    #[tokio::test]
    async fn repeats_and_holes_do_no_harm() {
        let (_folder, logs, run, source) = place();
        let write = |offset, bytes: &'static [u8]| logs.write(&run, &source, offset, bytes);
        assert_eq!(write(0, b"hello ").await.expect("writes"), 6);
        assert_eq!(write(0, b"hello ").await.expect("writes"), 6, "a repeat");
        assert_eq!(write(3, b"lo world").await.expect("writes"), 11, "an overlap");
        assert_eq!(write(20, b"!").await.expect("answers"), 11, "a hole: go back");
        let piece = logs.read(&run, &source, 6, 100).await.expect("reads");
        assert_eq!(
            (piece.text.as_str(), piece.next_offset, piece.length),
            ("world", 11, 11)
        );
    }

    #[tokio::test]
    async fn an_old_and_a_new_connection_do_not_write_a_piece_twice() {
        let (_folder, logs, run, source) = place();
        let piece = vec![b'x'; 100_000];
        let writes = (0..8).map(|_| logs.write(&run, &source, 0, &piece));
        for length in futures::future::join_all(writes).await {
            assert_eq!(length.expect("writes"), 100_000);
        }
        assert_eq!(
            logs.read(&run, &source, 0, 1).await.expect("reads").length,
            100_000
        );
        let nowhere = logs.write(&run, &source, u64::MAX, b"!").await;
        assert_eq!(nowhere.expect("answers"), 100_000, "a hole: go back");
    }

    #[tokio::test]
    async fn a_full_run_takes_no_more_and_asks_for_nothing_again() {
        let (_folder, mut logs, run, source) = place();
        logs.run_bytes_max = 8;
        let write = |offset, bytes: &'static [u8]| logs.write(&run, &source, offset, bytes);
        assert_eq!(write(0, b"hello ").await.expect("writes"), 6);
        assert_eq!(
            write(6, b"world").await.expect("answers"),
            11,
            "dropped, but acknowledged"
        );
        assert_eq!(write(11, b"!").await.expect("answers"), 12, "behind the hole");
        let piece = logs.read(&run, &source, 0, 100).await.expect("reads");
        assert_eq!(piece.text, "hello ");
    }

    #[tokio::test]
    async fn a_piece_ends_with_a_whole_character() {
        let (_folder, logs, run, source) = place();
        logs.write(&run, &source, 0, "aé€".as_bytes())
            .await
            .expect("writes");
        let piece = logs.read(&run, &source, 0, 4).await.expect("reads");
        assert_eq!((piece.text.as_str(), piece.next_offset), ("aé", 3));
    }

    #[tokio::test]
    async fn no_name_leads_out_of_the_folder() {
        let (_folder, logs, run, source) = place();
        for (node, stream) in [
            ("../../etc", "stdout"),
            ("n1", "../x"),
            ("n1", "passwd"),
            ("", "stdout"),
        ] {
            let source = LogSource {
                node: node.into(),
                stream: stream.into(),
                ..source.clone()
            };
            assert!(
                matches!(logs.read(&run, &source, 0, 1).await, Err(LogError::Name)),
                "{node} {stream}"
            );
        }
    }
}
