//! The write-ahead log: batches of samples that are not in chunks yet, in rotating database files.
//!
//! ```text
//! wal-000001.db   batches(id, data)   one row per commit; ids ascend across files
//!
//! data    "LWB2"  crc32c of the rest
//!         varint  appends
//!         append  bytes session, varint seq       empty session: the sender does not number its appends
//!                 varint frames
//!                 frame  ids, varint times, signed differences of the times, values
//! ```
//! Values are not compressed: zstd reduced the space to 60 % for only a few minutes, and took a fifteenth of the total CPU
//! time. One row is one transaction, so samples and (session, seq) are durable together or not at all. Rows are never deleted:
//! when chunks contain everything in a file, the file is removed. There are no checkpoints while a file is written; SQLite
//! makes one when it is closed. If that fails, SQLite keeps the journal, and the file may be half written. Such a file is never
//! separated from its journal: a power loss could undo the removal of the file alone, and the store could not be opened.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use domain::series::Frame;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::codec::{Corrupt, Reader, put_bytes, put_signed, put_values, put_varint, seal_written, unseal};
use super::{Block, SeriesId, StoreConfig};
use crate::sqlite;

pub(crate) const MAGIC: [u8; 4] = *b"LWB2";
/// Larger than in other databases: a batch has hundreds of kilobytes, and each page takes two writes and two checksums.
const PAGE_BYTES: u32 = 16 << 10;
/// What a commit writes in addition to the pages of the blob: leaf, interior, frame headers.
const COMMIT_BYTES: u64 = 2 * PAGE_BYTES as u64;
/// The number of rows read at once in a replay.
const REPLAY_ROWS: i64 = 32;
const CREATE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT";
/// The journals that SQLite keeps beside a file until the file is complete without them.
const JOURNALS: [&str; 2] = ["-wal", "-journal"];

/// One append of a batch, before it is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
    /// The sender's session and its number for this append.
    pub(crate) source: Option<(String, u64)>,
    pub(crate) blocks: Vec<Block>,
}

/// One append of a batch, as read back.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stored {
    pub(crate) source: Option<(String, u64)>,
    pub(crate) frames: Vec<Frame<SeriesId>>,
}

pub(crate) fn encode(entries: &[Entry]) -> Vec<u8> {
    let blocks = entries.iter().flat_map(|entry| &entry.blocks);
    let length = blocks.map(|block| block.shape.encoded.len() + block.values.len() * 8 + 32);
    seal_written(MAGIC, length.sum(), |out| {
        put_varint(out, entries.len() as u64);
        entries.iter().for_each(|entry| put_entry(out, entry));
    })
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let source = entry.source.as_ref();
    let (session, seq) = source.map_or(("", 0), |(session, seq)| (session.as_str(), *seq));
    put_bytes(out, session.as_bytes());
    put_varint(out, seq);
    put_varint(out, entry.blocks.len() as u64);
    for block in &entry.blocks {
        out.extend_from_slice(&block.shape.encoded);
        put_varint(out, block.times_ms.len() as u64);
        let mut last = 0_i64;
        for &time_ms in &block.times_ms {
            put_signed(out, time_ms.wrapping_sub(last));
            last = time_ms;
        }
        put_values(out, &block.values);
    }
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Stored>, Corrupt> {
    let mut reader = Reader(unseal(MAGIC, bytes)?);
    let count = reader.count(3)?;
    (0..count).map(|_| entry(&mut reader)).collect()
}

fn entry(reader: &mut Reader<'_>) -> Result<Stored, Corrupt> {
    let session = std::str::from_utf8(reader.bytes()?)
        .map_err(|_| Corrupt("a session is not UTF-8"))?
        .to_owned();
    let seq = reader.varint()?;
    let frames = reader.count(2)?;
    Ok(Stored {
        source: (!session.is_empty()).then_some((session, seq)),
        frames: (0..frames).map(|_| frame(reader)).collect::<Result<_, _>>()?,
    })
}

fn frame(reader: &mut Reader<'_>) -> Result<Frame<SeriesId>, Corrupt> {
    let series = reader.ids()?;
    let times = reader.count(1)?;
    let mut last = 0_i64;
    let mut next = || {
        last = last.wrapping_add(reader.signed()?);
        Ok(last)
    };
    let times_ms = (0..times).map(|_| next()).collect::<Result<Vec<_>, Corrupt>>()?;
    let cells = series.len().checked_mul(times);
    let frame = Frame {
        values: reader.values(cells.ok_or(Corrupt("a frame is too large"))?)?,
        series,
        times_ms,
    };
    frame
        .check()
        .map_err(|_| Corrupt("a frame's parts do not fit together"))?;
    Ok(frame)
}

// === files ===

/// A file that is no longer written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClosedFile {
    pub(crate) path: PathBuf,
    pub(crate) last_batch: u64,
    pub(crate) bytes: u64,
}

/// Closed files, oldest first. The committer adds them, the sealer removes them.
pub(crate) type ClosedFiles = Arc<Mutex<Vec<ClosedFile>>>;

/// Signals that a file is closed.
pub(crate) type Closed = oneshot::Sender<()>;

/// The current file, owned by the committer alone.
#[derive(Debug)]
pub(crate) struct Wal {
    folder: PathBuf,
    vfs: Option<&'static str>,
    file_bytes_max: u64,
    next_file: u64,
    next_batch: u64,
    current: Option<Current>,
    closed: ClosedFiles,
    /// Files that are being closed.
    closing: JoinSet<()>,
}

#[derive(Debug)]
struct Current {
    path: PathBuf,
    connection: SqliteConnection,
    last_batch: u64,
    bytes: u64,
}

impl Wal {
    /// `next_file` and `next_batch` must be larger than all earlier ones.
    pub(crate) fn new(config: &StoreConfig, next_file: u64, next_batch: u64, closed: ClosedFiles) -> Self {
        let (folder, file_bytes_max) = (config.data_dir.clone(), config.wal_file_bytes);
        Self {
            folder,
            vfs: config.vfs,
            file_bytes_max,
            next_file,
            next_batch,
            current: None,
            closed,
            closing: JoinSet::new(),
        }
    }

    /// Makes one batch durable and returns its number. After a failure the file is left as it is, and the next batch starts
    /// another one. The failed batch may still be on disk, which only a replay shows. Its sender was told of the failure and
    /// repeats it under the same number.
    pub(crate) async fn commit(&mut self, data: Vec<u8>) -> Result<u64, sqlx::Error> {
        let batch = self.next_batch;
        self.next_batch += 1;
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.create().await?,
        };
        current.bytes += data.len() as u64 + COMMIT_BYTES;
        current.last_batch = batch;
        let insert = sqlx::query("INSERT INTO batches (id, data) VALUES (?, ?)")
            .bind(batch as i64)
            .bind(data);
        let done = insert.execute(&mut current.connection).await;
        if done.is_err() {
            self.close_in_background(current);
        } else {
            self.current = Some(current);
        }
        done.map(|_| batch)
    }

    /// Closes the file if it is full. Call it when the last batch is in the head: the sealer removes a closed file when the
    /// head has none of its samples outside of chunks.
    pub(crate) fn rotate(&mut self) {
        if let Some(full) = self
            .current
            .take_if(|current| current.bytes >= self.file_bytes_max)
        {
            self.close_in_background(full);
        }
    }

    /// Closes the current file, full or not, and signals `said` when it is closed. The next batch starts another file.
    pub(crate) fn close_current(&mut self, said: Closed) {
        let (current, closed) = (self.current.take(), Arc::clone(&self.closed));
        self.spawn(async move {
            if let Some(current) = current {
                close(current, &closed).await;
            }
            // If the receiver is gone, the file is closed all the same.
            let _ = said.send(());
        });
    }

    /// Returns the bytes of the current file.
    pub(crate) fn current_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.bytes)
    }

    async fn create(&mut self) -> Result<Current, sqlx::Error> {
        let path = file_path(&self.folder, self.next_file);
        self.next_file += 1;
        match open(&path, self.vfs).await {
            Ok(connection) => Ok(Current {
                path,
                connection,
                last_batch: 0,
                bytes: 0,
            }),
            Err(error) => {
                self.give_up(path);
                Err(error)
            }
        }
    }

    /// Removes a file that could not be created. If SQLite could not roll back either, the sealer removes the file when the disk
    /// works again.
    fn give_up(&self, path: PathBuf) {
        if has_journal(&path) {
            let unused = ClosedFile {
                path,
                last_batch: 0,
                bytes: 0,
            };
            add_closed(&self.closed, unused);
        } else {
            remove_file(&path);
        }
    }

    /// Closing copies the journal into the file. The next commit does not wait for this.
    fn close_in_background(&mut self, current: Current) {
        let closed = Arc::clone(&self.closed);
        self.spawn(async move { close(current, &closed).await });
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.closing.try_join_next().is_some() {}
        self.closing.spawn(task);
    }

    /// Closes all files. The folder stays locked until then, so that no other store replays a file that is being closed.
    pub(crate) async fn close(mut self) {
        if let Some(current) = self.current.take() {
            close(current, &self.closed).await;
        }
        while self.closing.join_next().await.is_some() {}
    }
}

async fn close(current: Current, closed: &ClosedFiles) {
    if let Err(error) = current.connection.close().await {
        tracing::warn!(file = %current.path.display(), %error, "a write-ahead file could not be closed cleanly; its journal stays beside it");
    }
    let file = ClosedFile {
        path: current.path,
        last_batch: current.last_batch,
        bytes: current.bytes,
    };
    add_closed(closed, file);
}

fn add_closed(closed: &ClosedFiles, file: ClosedFile) {
    let mut closed = closed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    closed.push(file);
    closed.sort_by_key(|file| file.last_batch);
}

async fn open(path: &Path, vfs: Option<&'static str>) -> Result<SqliteConnection, sqlx::Error> {
    sqlite::create_private(path).map_err(sqlx::Error::Io)?;
    let options = sqlite::options(path, vfs)
        .page_size(PAGE_BYTES)
        .pragma("wal_autocheckpoint", "0");
    let mut connection = options.connect().await?;
    let created = sqlx::query(CREATE_TABLE).execute(&mut connection).await;
    if let Err(error) = created {
        // A dropped connection is closed later, when the file may be removed already. The first error is the one to report.
        let _ = connection.close().await;
        return Err(error);
    }
    Ok(connection)
}

fn file_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("wal-{number:06}.db"))
}

fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns true if the file may be incomplete without what is beside it. SQLite removes a journal only after it has copied it
/// into the file, or rolled back, and synchronised the file.
fn has_journal(path: &Path) -> bool {
    JOURNALS.iter().any(|suffix| companion(path, suffix).exists())
}

/// Lets SQLite copy a journal that was left beside a file into it, or roll back with it.
///
/// A journal that this process has not written may be in the cache only: after a failed fsync, Linux may drop changed pages and
/// still show them to readers. Copying it writes its content again, and the fsync of the file then covers it.
async fn merge_journal(path: &Path, vfs: Option<&'static str>) -> Result<(), sqlx::Error> {
    if has_journal(path) {
        open(path, vfs).await?.close().await?;
        // SQLite does not report that a checkpoint failed while a file was closed.
        if has_journal(path) {
            return Err(std::io::Error::other("the journal could not be copied into the file").into());
        }
    }
    Ok(())
}

/// Removes a file whose batches are all in chunks. Returns false if it must stay until the disk works again.
///
/// A power loss may undo the removal of the file, but not that of its journal. So the file must be complete without one first.
pub(crate) async fn discard(path: &Path, vfs: Option<&'static str>) -> bool {
    match merge_journal(path, vfs).await {
        Err(error) if !sqlite::is_damaged(&error) => {
            tracing::warn!(file = %path.display(), %error, "a write-ahead file that is no longer needed could not be removed yet; check the free space and health of the disk");
            false
        }
        // The content of a damaged file is not needed either.
        _ => {
            remove_file(path);
            true
        }
    }
}

/// Removes a file and its companions, the file itself last: a journal without its file would be used for the next file of the
/// same name.
fn remove_file(path: &Path) {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        match std::fs::remove_file(companion(path, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %path.display(), %error, "a write-ahead file could not be removed");
            }
            _ => {}
        }
    }
}

/// Returns the write-ahead files of a folder with their numbers, oldest first.
pub(crate) fn list(folder: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let number = name
            .strip_prefix("wal-")
            .and_then(|rest| rest.strip_suffix(".db"))
            .and_then(|n| n.parse().ok());
        files.extend(number.map(|number| (number, path)));
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads a file of an earlier process from its beginning. Returns its last batch.
///
/// If its journal cannot be merged, a batch may be in the cache only. Such batches have no sources, so that an append that is
/// sent again is stored again instead of being acknowledged as seen.
pub(crate) async fn replay(
    path: &Path,
    vfs: Option<&'static str>,
    mut apply: impl FnMut(u64, Vec<Stored>),
) -> Result<u64, sqlx::Error> {
    let merged = merge_journal(path, vfs).await;
    if let Err(error) = &merged {
        tracing::warn!(file = %path.display(), %error, "a write-ahead file of an earlier process keeps its journal; check the free space and health of the disk");
    }
    let is_durable = merged.is_ok();
    let mut connection = open(path, vfs).await?;
    let last = read_batches(&mut connection, path, |batch, mut entries| {
        if !is_durable {
            entries.iter_mut().for_each(|entry| entry.source = None);
        }
        apply(batch, entries);
    })
    .await;
    let closed = connection.close().await;
    let last = last?;
    closed?;
    Ok(last)
}

async fn read_batches(
    connection: &mut SqliteConnection,
    path: &Path,
    mut apply: impl FnMut(u64, Vec<Stored>),
) -> Result<u64, sqlx::Error> {
    let mut last = 0_i64;
    loop {
        let rows: Vec<(i64, Vec<u8>)> =
            sqlx::query_as("SELECT id, data FROM batches WHERE id > ? ORDER BY id LIMIT ?")
                .bind(last)
                .bind(REPLAY_ROWS)
                .fetch_all(&mut *connection)
                .await?;
        if rows.is_empty() {
            return Ok(last as u64);
        }
        for (id, data) in rows {
            last = id;
            match decode(&data) {
                Ok(entries) => apply(id as u64, entries),
                Err(error) => {
                    tracing::error!(file = %path.display(), batch = id, %error, "a batch is damaged and its samples are lost; check the disk");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::ABSENT;

    use super::*;
    use crate::series::shape::of_rows;

    fn entries() -> Vec<Entry> {
        let block = |series: u32, times_ms: &[i64], values: &[f64]| Block {
            shape: of_rows(series),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        };
        vec![
            Entry {
                source: Some(("node-1/abc".into(), 42)),
                blocks: vec![
                    block(2, &[1_000, 2_000], &[1.0, ABSENT, 3.0, 4.0]),
                    block(1, &[-7], &[0.5]),
                ],
            },
            Entry {
                source: None,
                blocks: vec![block(1, &[i64::MAX], &[f64::INFINITY])],
            },
            Entry {
                source: Some(("x".into(), 1)),
                blocks: vec![],
            },
        ]
    }

    #[test]
    fn a_batch_reads_back() {
        let back = decode(&encode(&entries())).unwrap();
        assert_eq!(back.len(), 3);
        for (back, entry) in back.iter().zip(entries()) {
            assert_eq!(back.source, entry.source);
            assert_eq!(back.frames.len(), entry.blocks.len());
            for (frame, block) in back.frames.iter().zip(&entry.blocks) {
                assert_eq!(frame.series, block.shape.series());
                assert_eq!(frame.times_ms, block.times_ms);
                let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&frame.values), bits(&block.values));
            }
        }
    }

    #[tokio::test]
    async fn files_are_replayed_in_order_and_full_synchronisation_is_on() {
        let folder = tempfile::tempdir().unwrap();
        let closed = ClosedFiles::default();
        let mut wal = Wal::new(&StoreConfig::new(folder.path()), 1, 10, Arc::clone(&closed));
        for _ in 0..40 {
            wal.commit(encode(&entries())).await.unwrap();
        }
        let current = wal.current.as_mut().unwrap();
        let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut current.connection)
            .await
            .unwrap();
        assert_eq!(level, 2, "FULL");
        wal.close().await;
        assert_eq!(closed.lock().unwrap()[0].last_batch, 49);
        let files = list(folder.path()).unwrap();
        let mut seen = Vec::new();
        let last = replay(&files[0].1, None, |batch, entries| {
            seen.push((batch, entries.len()))
        })
        .await
        .unwrap();
        assert_eq!((last, seen.len(), seen[0]), (49, 40, (10, 3)));
        assert!(discard(&files[0].1, None).await);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_journal_is_merged_before_its_file_is_removed() {
        let (folder, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut wal = Wal::new(&StoreConfig::new(folder.path()), 1, 1, ClosedFiles::default());
        wal.commit(encode(&entries())).await.unwrap();
        let (open_file, copy) = (file_path(folder.path(), 1), file_path(copies.path(), 1));
        for suffix in ["", "-wal"] {
            std::fs::copy(companion(&open_file, suffix), companion(&copy, suffix)).unwrap();
        }
        assert!(has_journal(&copy));
        merge_journal(&copy, None).await.unwrap();
        assert!(!has_journal(&copy));
        let mut batches = Vec::new();
        replay(&copy, None, |batch, entries| {
            batches.push((batch, entries[0].source.is_some()));
        })
        .await
        .unwrap();
        assert_eq!(batches, [(1, true)]);
        assert!(discard(&copy, None).await);
        assert_eq!(std::fs::read_dir(copies.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_damaged_file_that_is_not_needed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_path(folder.path(), 1);
        for suffix in ["", "-wal"] {
            std::fs::write(companion(&path, suffix), [7; 20_000]).unwrap();
        }
        assert!(merge_journal(&path, None).await.is_err());
        assert!(discard(&path, None).await);
        assert!(!path.exists() && !has_journal(&path));
    }

    #[tokio::test]
    async fn a_full_disk_costs_one_file_and_the_next_batch_begins_another() {
        let folder = tempfile::tempdir().unwrap();
        let mut wal = Wal::new(&StoreConfig::new(folder.path()), 1, 1, ClosedFiles::default());
        wal.commit(encode(&entries())).await.unwrap();
        let connection = &mut wal.current.as_mut().unwrap().connection;
        // This makes SQLite report a full disk.
        sqlx::query("PRAGMA max_page_count = 3")
            .execute(connection)
            .await
            .unwrap();
        let error = wal.commit(vec![0; 100_000]).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        assert_eq!(wal.commit(encode(&entries())).await.unwrap(), 3);
        wal.close().await;
        let mut batches = Vec::new();
        for (_, path) in list(folder.path()).unwrap() {
            replay(&path, None, |batch, _| batches.push(batch)).await.unwrap();
        }
        assert_eq!(batches, [1, 3]);
    }
}
