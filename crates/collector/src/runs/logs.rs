//! Logs of runs: written at offsets as agents send them, read in parts, searched, listed in the order of time, and kept as long as the
//! run's series.
//!
//! ```text
//! DATA/logs/RUN/ATTEMPT/NODE/rank-3.stdout/…   launcher.stderr/…   segments, see [`file`]
//! ```
//! Every part of the path is checked: run and node are names without slashes, and the collector makes the rest.

mod file;
mod lines;
mod retention;
mod search;
mod times;

pub use lines::{Cursor, CursorError, LinePosition, LineQuery};
pub(crate) use search::pattern;
pub use search::{Search, SearchError};

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::api::runs::{LogPiece, LogSource};
use domain::ident::{AttemptNo, NodeName, Rank, RunId};
use tokio::sync::Semaphore;

use self::file::{Found, LogFile};
use crate::clock;

/// Bound of the compressed logs of one run on disk, in bytes: some gigabytes of text. Beyond it, the longest log loses its middle.
const RUN_BYTES_MAX: u64 = 256 << 20;
/// Bound of the runs whose logs are kept open. Beyond it, runs that are not being written to are closed, and opened again at the next
/// write.
const OPEN_MAX: usize = 1_024;
/// Bound of the logs of one node in one attempt: two per rank and two of the launcher. No node has 500 ranks, and each log is a folder on
/// disk.
const NODE_LOGS_MAX: usize = 1_024;
/// Number of searches at the same time. Each uses one core for seconds. Further searches wait.
const SEARCHES_MAX: usize = 2;
/// Number of lists of lines that are made at the same time. Most take milliseconds; those that search take seconds of one core.
const LISTS_MAX: usize = 4;
/// Maximum size of one read, in bytes.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How often a read is tried if its segment is packed or removed meanwhile. In practice one repetition is enough.
const READS_MAX: u32 = 4;

/// Why a log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The stream is not `stdout` or `stderr`, or the node's name is invalid.
    #[error(
        "there is no such log; a log has a node, a rank (or none, for the launcher) and a stream, stdout or stderr"
    )]
    Name,
    /// A node names more ranks than it can have.
    #[error("node {node} writes more than {NODE_LOGS_MAX} logs in one attempt; the others are not stored")]
    TooMany {
        /// The node.
        node: String,
    },
    /// The disk failed.
    #[error("the log cannot be read or written")]
    Io(#[from] io::Error),
}

/// The logs of all runs.
pub struct Logs {
    root: PathBuf,
    run_bytes_max: u64,
    /// Runs that were written to recently.
    open: Mutex<HashMap<RunId, Arc<Room>>>,
    /// Searches in progress.
    searches: Arc<Semaphore>,
    /// Lists of lines that are being made.
    lists: Arc<Semaphore>,
}

/// The logs of a run, once opened. Locked while a chunk is written: two connections of one node, an old and a new one, must not append the
/// same chunk twice.
type Room = tokio::sync::Mutex<Option<OpenRun>>;

#[derive(Debug)]
struct OpenRun {
    used: u64,
    /// When the last bytes arrived, or up to when lines were listed. Each write gets a later time.
    last_us: u64,
    logs: BTreeMap<PathBuf, LogFile>,
}

impl Logs {
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root,
            run_bytes_max: RUN_BYTES_MAX,
            open: Mutex::default(),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
        }
    }

    /// Writes bytes at their offset and returns the length of the log afterwards. Bytes beyond the end are not written: the returned length
    /// tells the agent to send from there, unless the agent has reported that nothing is left before `kept_from`.
    ///
    /// # Errors
    /// Returns an error if the log's name is invalid or the disk fails.
    pub async fn write(
        &self,
        run: &RunId,
        source: &LogSource,
        (offset, kept_from): (u64, u64),
        bytes: &[u8],
    ) -> Result<u64, LogError> {
        let path = self.path(run, source)?;
        let mut room = self.room(run).lock_owned().await;
        let (root, bytes_max) = (self.root.join(run.as_str()), self.run_bytes_max);
        let bytes = bytes.to_vec();
        let written = tokio::task::spawn_blocking(move || {
            let mut open = match room.take() {
                Some(open) => open,
                None => OpenRun::scan(&root)?,
            };
            let length = if open.has_room_for(&path) {
                Some(open.write(&path, (offset, kept_from), &bytes, bytes_max)?)
            } else {
                None
            };
            // If a write fails half-way, the logs are opened again at the next write.
            *room = Some(open);
            io::Result::Ok(length)
        });
        let length = written.await.map_err(io::Error::other)??;
        length.ok_or_else(|| LogError::TooMany {
            node: source.node.clone(),
        })
    }

    /// Reads a part of a log. A log that does not exist yet is empty. If bytes are missing, the returned text says so.
    ///
    /// # Errors
    /// Returns an error if the log's name is invalid or the disk fails.
    pub async fn read(
        &self,
        run: &RunId,
        source: &LogSource,
        offset: u64,
        limit: u64,
    ) -> Result<LogPiece, LogError> {
        let (path, source) = (self.path(run, source)?, source.clone());
        let read = tokio::task::spawn_blocking(move || {
            read_piece(&path, source, offset, limit.min(PIECE_BYTES_MAX))
        });
        Ok(read.await.map_err(io::Error::other)??)
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

impl OpenRun {
    fn scan(root: &Path) -> io::Result<Self> {
        let (mut logs, mut last_us) = (BTreeMap::new(), 0);
        for (path, _) in all_logs(root) {
            let mut log = LogFile::open(&path)?;
            last_us = log.last_us()?.max(last_us);
            logs.insert(path, log);
        }
        let used = logs.values().map(LogFile::disk).sum();
        Ok(Self { used, last_us, logs })
    }

    /// Returns true if the log exists or another one may be created. The limit holds for the log's folder: one node in one attempt.
    fn has_room_for(&self, path: &Path) -> bool {
        if self.logs.contains_key(path) {
            return true;
        }
        let Some(folder) = path.parent() else { return false };
        // Paths are sorted by their parts, so those of a folder are adjacent.
        let beside = self.logs.range(folder.to_owned()..);
        beside.take_while(|(other, _)| other.starts_with(folder)).count() < NODE_LOGS_MAX
    }

    fn write(
        &mut self,
        path: &Path,
        (offset, kept_from): (u64, u64),
        bytes: &[u8],
        bytes_max: u64,
    ) -> io::Result<u64> {
        if !self.logs.contains_key(path) {
            self.logs.insert(path.to_owned(), LogFile::open(path)?);
        }
        let Some(log) = self.logs.get_mut(path) else {
            return Ok(0);
        };
        let length = log.end();
        let end = offset.saturating_add(bytes.len() as u64);
        let hole_for_good = offset > length && kept_from >= offset;
        if end <= length || (offset > length && !hole_for_good) {
            return Ok(length);
        }
        let (at, fresh) = if hole_for_good {
            (offset, bytes)
        } else {
            (length, &bytes[usize::try_from(length - offset).unwrap_or(0)..])
        };
        let before = log.disk();
        // The clock may have been set back.
        let time_us = now_us().max(self.last_us + 1);
        self.last_us = time_us;
        log.append(at, fresh, time_us)?;
        self.used = self.used - before + log.disk();
        self.make_room(path, bytes_max)?;
        Ok(end)
    }

    /// The longest log loses its oldest middle segment until all logs fit. If no log has a middle segment, the largest one loses its head.
    /// If only ends are left, the log just written loses its end, and the text says so.
    fn make_room(&mut self, written: &Path, bytes_max: u64) -> io::Result<()> {
        while self.used > bytes_max {
            let middle = self.logs.values_mut().filter(|log| log.droppable() > 0);
            let freed = match middle.max_by_key(|log| log.droppable()) {
                Some(log) => log.drop_one(false)?,
                None => match self.logs.values_mut().max_by_key(|log| log.disk()) {
                    Some(log) => log.drop_one(true)?,
                    None => 0,
                },
            };
            self.used -= freed;
            if freed == 0 {
                let Some(log) = self.logs.get_mut(written) else {
                    return Ok(());
                };
                let (before, end) = (log.disk(), log.end());
                log.cut_end(end)?;
                self.used = self.used - before + log.disk();
                return Ok(());
            }
        }
        Ok(())
    }
}

fn now_us() -> u64 {
    u64::try_from(clock::now_us()).unwrap_or(0)
}

fn read_piece(path: &Path, source: LogSource, offset: u64, limit: u64) -> io::Result<LogPiece> {
    for _ in 1..READS_MAX {
        match try_read_piece(path, &source, offset, limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            piece => return piece,
        }
    }
    try_read_piece(path, &source, offset, limit)
}

fn try_read_piece(path: &Path, source: &LogSource, offset: u64, limit: u64) -> io::Result<LogPiece> {
    let log = LogFile::open(path)?;
    let length = log.end();
    let offset = offset.min(length);
    if offset == length {
        return Ok(piece(source, (offset, offset, length), String::new(), 0));
    }
    match log.read_on(offset, limit)? {
        Found::Bytes(mut bytes) => {
            if offset + (bytes.len() as u64) < length {
                bytes.truncate(whole_characters(&bytes));
            }
            let next = offset + bytes.len() as u64;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(piece(source, (offset, next, length), text, 0))
        }
        Found::Missing { until } => {
            let missing = until - offset;
            let text = missing_note(missing);
            Ok(piece(source, (offset, until, length), text, missing))
        }
    }
}

/// The note in the text where bytes of the log are missing.
fn missing_note(bytes: u64) -> String {
    format!(
        "\n[lockstep: {} of this log are missing here; the logs of the run were too large, and its beginning and end were kept]\n",
        domain::bytes::DisplayBytes(bytes)
    )
}

/// Returns the source of a log chunk. In the protocol, rank -1 is the launcher.
pub(crate) fn source(attempt: AttemptNo, node: &NodeName, rank: i32, stream: &str) -> LogSource {
    let rank = u32::try_from(rank).ok().map(Rank);
    LogSource {
        attempt,
        node: node.to_string(),
        rank,
        stream: stream.to_owned(),
    }
}

fn piece(
    source: &LogSource,
    (offset, next_offset, length): (u64, u64, u64),
    text: String,
    missing: u64,
) -> LogPiece {
    LogPiece {
        source: source.clone(),
        offset,
        next_offset,
        length,
        text,
        missing,
    }
}

/// Returns how many bytes end with a complete UTF-8 character, or all bytes if the end is not UTF-8.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Returns the logs of a run that are on disk, ordered by attempt, node and rank: `(path, source)`.
fn all_logs(root: &Path) -> Vec<(PathBuf, LogSource)> {
    let attempts = names(root).into_iter();
    let mut attempts: Vec<u32> = attempts.filter_map(|(_, name)| name.parse().ok()).collect();
    attempts.sort_unstable();
    let logs = attempts.into_iter().map(AttemptNo);
    logs.flat_map(|attempt| logs_of(root, attempt)).collect()
}

/// Returns the logs of one attempt, as [`all_logs`] does.
fn logs_of(root: &Path, attempt: AttemptNo) -> Vec<(PathBuf, LogSource)> {
    let mut all = Vec::new();
    for (node_folder, node) in names(&root.join(attempt.to_string())) {
        for (path, name) in names(&node_folder) {
            if let Some((rank, stream)) = parse_log_name(&name) {
                let (node, stream) = (node.clone(), stream.to_owned());
                let source = LogSource {
                    attempt,
                    node,
                    rank,
                    stream,
                };
                all.push((path, source));
            }
        }
    }
    all.sort_by(|(_, a), (_, b)| a.cmp(b));
    all
}

/// Returns the paths and names in a folder; none if it does not exist.
fn names(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.to_owned())));
    named.collect()
}

/// Parses names such as `rank-3.stdout` and `launcher.stderr`.
fn parse_log_name(name: &str) -> Option<(Option<Rank>, &str)> {
    let (who, stream) = name.rsplit_once('.')?;
    let rank = match who.strip_prefix("rank-") {
        Some(number) => Some(Rank(number.parse().ok()?)),
        None if who == "launcher" => None,
        None => return None,
    };
    matches!(stream, "stdout" | "stderr").then_some((rank, stream))
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
    async fn repeated_and_missing_parts_are_handled() {
        let (_folder, logs, run, source) = place();
        let write = |offset, bytes: &'static [u8]| logs.write(&run, &source, (offset, 0), bytes);
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
        let writes = (0..8).map(|_| logs.write(&run, &source, (0, 0), &piece));
        for length in futures::future::join_all(writes).await {
            assert_eq!(length.expect("writes"), 100_000);
        }
        assert_eq!(
            logs.read(&run, &source, 0, 1).await.expect("reads").length,
            100_000
        );
        let nowhere = logs.write(&run, &source, (u64::MAX, 0), b"!").await;
        assert_eq!(nowhere.expect("answers"), 100_000, "a hole: go back");
    }

    #[tokio::test]
    async fn a_full_run_keeps_beginning_and_end_of_each_log_and_shows_what_is_missing() {
        let (folder, mut logs, run, source) = place();
        logs.run_bytes_max = 8 << 20;
        let random = |n: u64| -> Vec<u8> {
            let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move || {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x as u8) | 1
            };
            std::iter::repeat_with(&mut next).take(500_000).collect()
        };
        let mut at = 0;
        for n in 0..60 {
            at = logs
                .write(&run, &source, (at, 0), &random(n))
                .await
                .expect("writes");
        }
        assert_eq!(at, 30_000_000, "all is acknowledged");
        let used = OpenRun::scan(&folder.path().join("r")).expect("scans").used;
        assert!(used <= 8 << 20, "{used}");
        let head = logs.read(&run, &source, 0, 10).await.expect("reads");
        assert_eq!(head.text, String::from_utf8_lossy(&random(0)[..10]));
        let end = logs.read(&run, &source, at - 10, 10).await.expect("reads");
        assert_eq!(end.text, String::from_utf8_lossy(&random(59)[499_990..]));
        let gone = logs.read(&run, &source, 2 << 20, 10).await.expect("reads");
        assert!(
            gone.missing > 10 << 20 && gone.text.contains("are missing here"),
            "{gone:?}"
        );
        let again = Logs::new(folder.path().to_owned());
        let after = again.write(&run, &source, (0, 0), b"").await.expect("answers");
        assert_eq!(after, at, "known after a restart");
    }

    #[tokio::test]
    async fn many_small_logs_of_a_full_run_are_bounded_too() {
        let (folder, mut logs, run, source) = place();
        logs.run_bytes_max = 1_000;
        for rank in 0..20 {
            let source = LogSource {
                rank: Some(Rank(rank)),
                ..source.clone()
            };
            let end = logs
                .write(&run, &source, (0, 0), &[b'x'; 300])
                .await
                .expect("answers");
            assert_eq!(end, 300, "acknowledged, or it would come again for ever");
        }
        let used = OpenRun::scan(&folder.path().join("r")).expect("scans").used;
        assert!(used <= 1_000, "{used}");
    }

    #[tokio::test]
    async fn a_node_that_invents_ranks_gets_no_more_logs_and_others_do() {
        let (_folder, logs, run, source) = place();
        let of_rank = |rank| LogSource {
            rank: Some(Rank(rank)),
            ..source.clone()
        };
        for rank in 0..u32::try_from(NODE_LOGS_MAX).expect("small") {
            logs.write(&run, &of_rank(rank), (0, 0), b"x")
                .await
                .expect("writes");
        }
        let more = logs.write(&run, &of_rank(7_777), (0, 0), b"x").await;
        assert!(matches!(more, Err(LogError::TooMany { .. })), "{more:?}");
        assert_eq!(
            logs.write(&run, &of_rank(5), (1, 0), b"y").await.expect("writes"),
            2
        );
        let other = LogSource {
            node: "n2".into(),
            ..of_rank(7_777)
        };
        assert_eq!(logs.write(&run, &other, (0, 0), b"x").await.expect("writes"), 1);
    }

    #[tokio::test]
    async fn what_the_node_has_no_more_is_a_hole_for_good() {
        let (_folder, logs, run, source) = place();
        let write = |offset, kept_from| logs.write(&run, &source, (offset, kept_from), b"abc");
        assert_eq!(write(0, 0).await.expect("writes"), 3);
        assert_eq!(
            write(10, 5).await.expect("answers"),
            3,
            "there is more to be had: go back"
        );
        assert_eq!(write(10, 10).await.expect("writes"), 13);
        let piece = logs.read(&run, &source, 3, 100).await.expect("reads");
        assert_eq!((piece.missing, piece.next_offset), (7, 10));
    }

    #[tokio::test]
    async fn a_piece_ends_with_a_whole_character() {
        let (_folder, logs, run, source) = place();
        logs.write(&run, &source, (0, 0), "aé€".as_bytes())
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
