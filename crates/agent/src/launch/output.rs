//! The log files of an attempt. The agent sends what the collector does not have yet, and frees the disk space of what it has.
//!
//! ```text
//!   0            kept_from          acknowledged      sent         length
//!   │ punched out │ 4 MiB for people │  in transit …   │  …backlog  │
//! ```
//! A rank keeps its file open while it runs, so the file cannot be moved or truncated. After a move, the rank would write to the moved
//! file. Truncating would lose what is written between the check and the truncation, and a writer without `O_APPEND` would continue at its
//! old offset. Instead the agent punches the acknowledged bytes out of the file (`FALLOC_FL_PUNCH_HOLE`): the file system frees their
//! blocks, the length and all offsets stay the same, and bytes that are being written are not touched. On a file system that does not
//! support this, the file stays complete until the attempt's folder is removed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use shim::{Folder, Secrets, files};

/// Size of one piece on the wire.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Maximum of sent bytes that are not yet acknowledged, per file: enough for a long round trip, and small enough that the output of one
/// rank does not fill the connection.
const WINDOW_BYTES: u64 = 256 << 10;
/// How much acknowledged output stays in a file: for people who read the folder, and for a collector that lost its last seconds.
const KEPT_BYTES: u64 = 4 << 20;
/// Minimum size of one punch, so that punching is rare.
const PUNCH_BYTES: u64 = 1 << 20;
/// Maximum backlog of one file: 20 seconds of a rank that writes 50 MB/s, weeks of a normal one. Beyond this, the agent drops the older
/// half and logs a warning.
const BACKLOG_BYTES_MAX: u64 = 1 << 30;
/// How long a possible beginning of a secret is held back while the agent waits for the rest.
const HELD_BACK: Duration = Duration::from_secs(1);
/// Minimum length of a secret's beginning at the end of the output that is hidden although its rest may never be written. A shorter part
/// reveals little.
const HIDDEN_PREFIX_BYTES: usize = 8;
/// The rank number of torchrun's own output in the protocol. This output is short and needed whole for its last lines, so nothing is
/// punched out.
pub const LAUNCHER: i32 = -1;

/// A log file that may still grow.
#[derive(Debug)]
pub struct LogFile {
    /// The rank, or [`LAUNCHER`].
    pub rank: i32,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    path: PathBuf,
    /// How many bytes the collector has. `None` until it has reported this on the current connection.
    acknowledged: Option<u64>,
    /// The offset up to which the file was sent on this connection.
    sent: u64,
    /// The bytes before this offset are no longer on the disk.
    kept_from: u64,
    /// The file system cannot punch holes.
    stays_whole: bool,
    /// The file's length when its end began to look like a secret, and when that was.
    held_back: Option<(u64, Instant)>,
}

/// All log files of an attempt.
#[derive(Debug, Default)]
pub struct Logs {
    files: Vec<LogFile>,
}

/// One piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The rank, or [`LAUNCHER`].
    pub rank: i32,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// Its offset in the file.
    pub offset: u64,
    /// Its content.
    pub bytes: Vec<u8>,
    /// The bytes before this offset are no longer available.
    pub kept_from: u64,
}

impl Logs {
    /// Adds files that were created since the last call. `first_rank` is the rank number of local rank 0.
    pub fn find_files(&mut self, folder: &Folder, first_rank: u32) {
        self.add(LAUNCHER, "stdout", folder.file(files::LAUNCHER_STDOUT));
        self.add(LAUNCHER, "stderr", folder.file(files::LAUNCHER_STDERR));
        for (local, stream, path) in of_ranks(folder) {
            if let Ok(rank) = i32::try_from(first_rank + local) {
                self.add(rank, stream, path);
            }
        }
    }

    fn add(&mut self, rank: i32, stream: &'static str, path: PathBuf) {
        let known = self
            .files
            .iter()
            .any(|file| file.rank == rank && file.stream == stream);
        if !known && path.exists() {
            self.files.push(LogFile {
                rank,
                stream,
                kept_from: first_kept(&path),
                path,
                acknowledged: None,
                sent: 0,
                stays_whole: rank == LAUNCHER,
                held_back: None,
            });
        }
    }

    /// Returns the next piece of some file, with secrets hidden. Returns `None` if everything is sent or waits for an acknowledgement.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn next_chunk(&mut self, secrets: &Secrets) -> io::Result<Option<Chunk>> {
        for at in 0..self.files.len() {
            if let Some(chunk) = self.files[at].next_chunk(secrets)? {
                // The next call starts with another file.
                self.files.rotate_left(at + 1);
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// Records how many bytes of a file the collector has.
    pub fn acknowledge(&mut self, rank: i32, stream: &str, length: u64) {
        if let Some(file) = self
            .files
            .iter_mut()
            .find(|file| file.rank == rank && file.stream == stream)
        {
            // If this is less than before, the collector lost data and gets it again.
            let lost = file.acknowledged.is_some_and(|before| length < before);
            file.sent = if lost { length } else { file.sent.max(length) };
            file.acknowledged = Some(length);
            file.punch(length.saturating_sub(KEPT_BYTES));
        }
    }

    /// Returns true if the collector has all output.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.files
            .iter()
            .all(|file| file.length() <= file.acknowledged.unwrap_or(0))
    }
}

impl LogFile {
    fn next_chunk(&mut self, secrets: &Secrets) -> io::Result<Option<Chunk>> {
        let length = self.length();
        self.sent = self.sent.max(self.kept_from);
        let acknowledged = self.acknowledged.unwrap_or(self.kept_from).max(self.kept_from);
        let unanswered = self.acknowledged.is_none() && self.sent > acknowledged;
        let full = self.sent.saturating_sub(acknowledged) >= WINDOW_BYTES;
        if unanswered || full || length <= self.sent {
            return Ok(None);
        }
        let mut file = File::open(&self.path)?;
        self.skip_hole(&file);
        let bytes = self.read_hidden(&mut file, secrets)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let offset = self.sent;
        self.sent += bytes.len() as u64;
        Ok(Some(Chunk {
            rank: self.rank,
            stream: self.stream,
            offset,
            bytes,
            kept_from: self.kept_from,
        }))
    }

    /// Reads the next piece with secrets hidden. It also reads the bytes around the piece, which may contain the rest of a secret.
    fn read_hidden(&mut self, file: &mut File, secrets: &Secrets) -> io::Result<Vec<u8>> {
        let reach = secrets.reach() as u64;
        let from = self.sent.saturating_sub(reach).max(self.kept_from.min(self.sent));
        let before = usize::try_from(self.sent - from).unwrap_or(0);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        let wanted = (self.sent - from) + CHUNK_BYTES as u64 + reach;
        let read = file.take(wanted).read_to_end(&mut bytes)?;
        let mut end = bytes.len().min(before + CHUNK_BYTES);
        let mut hidden_from = bytes.len();
        if (read as u64) < wanted {
            let begun = secrets.begun_at_end(&bytes);
            let tail = bytes.len() - begun;
            if begun > 0 && self.holds_back(from + read as u64) {
                end = end.min(tail);
            } else if begun >= HIDDEN_PREFIX_BYTES {
                hidden_from = tail;
            }
        }
        // Complete secrets first: the end of one may be the beginning of another.
        secrets.hide(&mut bytes);
        bytes[hidden_from..].fill(b'*');
        bytes.truncate(end);
        bytes.drain(..before.min(end));
        Ok(bytes)
    }

    /// Returns true if the caller must wait for more output at this length of the file.
    fn holds_back(&mut self, length: u64) -> bool {
        match self.held_back {
            Some((before, since)) if before == length => since.elapsed() < HELD_BACK,
            _ => {
                self.held_back = Some((length, Instant::now()));
                true
            }
        }
    }

    /// Skips a hole: output that [`bound`] dropped since the last call, or that an earlier agent punched out.
    fn skip_hole(&mut self, file: &File) {
        if let Ok(data) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(self.sent))
            && data > self.sent
        {
            (self.sent, self.kept_from) = (data, data);
        }
    }

    fn punch(&mut self, until: u64) {
        let until = until - until % PUNCH_BYTES;
        if self.stays_whole || until < self.kept_from + PUNCH_BYTES {
            return;
        }
        let from = self.kept_from - self.kept_from % PUNCH_BYTES;
        match punch_out(&self.path, from, until) {
            Ok(()) => self.kept_from = until,
            Err(error) => {
                self.stays_whole = true;
                tracing::warn!(path = %self.path.display(), %error, "the file system cannot punch holes into this log; it keeps its full size until its attempt's folder is removed");
            }
        }
    }

    fn length(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }
}

/// Limits the backlog on disk, also while no collector is connected: if a file is too large, its older half is dropped. Called every few
/// seconds.
pub(crate) fn bound(folder: &Folder) {
    for (_, stream, path) in of_ranks(folder) {
        let Ok(meta) = path.metadata() else { continue };
        if meta.blocks() * 512 <= BACKLOG_BYTES_MAX {
            continue;
        }
        let until = meta.len().saturating_sub(BACKLOG_BYTES_MAX / 2);
        match punch_out(&path, 0, until - until % PUNCH_BYTES) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), stream, until, "a log grows faster than the collector receives it; its older part is dropped");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a log is too large and cannot be made smaller")
            }
        }
    }
}

/// Lists the files that torchrun writes, LOG_DIR/ID_RANDOM/attempt_0/LOCAL_RANK/std*.log: `(local rank, stream, path)`.
fn of_ranks(folder: &Folder) -> Vec<(u32, &'static str, PathBuf)> {
    let mut files = Vec::new();
    for of_run in folders(&folder.file(files::RANKS)) {
        for of_rank in folders(&of_run.join("attempt_0")) {
            let local = of_rank.file_name().and_then(|name| name.to_str()?.parse().ok());
            let Some(local) = local else { continue };
            files.push((local, "stdout", of_rank.join("stdout.log")));
            files.push((local, "stderr", of_rank.join("stderr.log")));
        }
    }
    files
}

fn punch_out(path: &Path, from: u64, until: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(rustix::fs::fallocate(file, flags, from, until - from)?)
}

/// Returns the offset of the first byte on disk. An earlier agent may have punched the bytes before it.
fn first_kept(path: &Path) -> u64 {
    let data = File::open(path).and_then(|file| Ok(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0))?));
    data.unwrap_or(0)
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::collections::BTreeMap;
    use std::io::Write;

    use domain::run::secret::SecretValue;

    use super::*;

    #[test]
    fn logs_continue_at_the_collectors_end_and_wait_for_a_slow_collector() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let of_rank = data.path().join("ranks/x_1/attempt_0/1");
        std::fs::create_dir_all(&of_rank).unwrap();
        std::fs::write(of_rank.join("stdout.log"), vec![b'a'; 400_000]).unwrap();
        let (mut logs, none) = (Logs::default(), Secrets::default());
        logs.find_files(&folder, 4);
        logs.find_files(&folder, 4);
        let first = logs.next_chunk(&none).unwrap().unwrap();
        assert_eq!(
            (first.rank, first.stream, first.offset, first.bytes.len()),
            (5, "stdout", 0, CHUNK_BYTES)
        );
        assert_eq!(
            logs.next_chunk(&none).unwrap(),
            None,
            "until the collector has said how much it has"
        );
        logs.acknowledge(5, "stdout", 100_000);
        assert_eq!(logs.next_chunk(&none).unwrap().unwrap().offset, 100_000);
        while logs.next_chunk(&none).unwrap().is_some() {}
        assert!(!logs.complete());
        logs.acknowledge(5, "stdout", 300_000);
        while logs.next_chunk(&none).unwrap().is_some() {}
        logs.acknowledge(5, "stdout", 400_000);
        assert!(logs.complete());
    }

    /// An attempt with the log of rank 0, and the log, opened as a rank opens it.
    fn rank_0() -> (tempfile::TempDir, PathBuf, File) {
        let data = tempfile::tempdir().unwrap();
        let of_rank = data.path().join("ranks/x_1/attempt_0/0");
        std::fs::create_dir_all(&of_rank).unwrap();
        let path = of_rank.join("stdout.log");
        let file = File::create(&path).unwrap();
        (data, path, file)
    }

    /// Sends everything to a collector that acknowledges it at once.
    fn send_all(logs: &mut Logs, secrets: &Secrets) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(chunk) = logs.next_chunk(secrets).unwrap() {
            taken.extend(&chunk.bytes);
            logs.acknowledge(chunk.rank, chunk.stream, chunk.offset + chunk.bytes.len() as u64);
        }
        taken
    }

    #[test]
    fn what_the_collector_has_leaves_the_disk_while_the_rank_writes_on() {
        let (data, path, mut rank) = rank_0();
        let (mut logs, none) = (Logs::default(), Secrets::default());
        let mut sent = 0;
        for n in 0..24_u8 {
            rank.write_all(&vec![n + 1; 1 << 20]).unwrap();
            logs.find_files(&Folder::at(data.path()), 0);
            let taken = send_all(&mut logs, &none);
            assert!(
                taken.iter().all(|byte| *byte == n + 1),
                "each line once, in order"
            );
            sent += taken.len();
        }
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((sent, meta.len()), (24 << 20, 24 << 20));
        let on_disk = meta.blocks() * 512;
        assert!(
            on_disk < KEPT_BYTES + 3 * PUNCH_BYTES,
            "{on_disk} bytes are left of 24 MiB"
        );
        let mut again = Logs::default();
        again.find_files(&Folder::at(data.path()), 0);
        let first = again.next_chunk(&none).unwrap().unwrap();
        assert!(
            first.offset > 0 && first.offset == first.kept_from,
            "a new agent knows what is gone"
        );
        again.acknowledge(0, "stdout", 24 << 20);
        assert!(again.complete() && again.next_chunk(&none).unwrap().is_none());
    }

    #[test]
    fn a_secret_never_leaves_the_node_however_it_is_cut() {
        let value = "sk-0123456789abcdef";
        let named = BTreeMap::from([("KEY".to_owned(), SecretValue::new(value))]);
        let secrets = Secrets::from(named);
        let text = format!("{}{value}{}{value}", "x".repeat(CHUNK_BYTES - 7), "y".repeat(100));
        let (data, _, mut rank) = rank_0();
        let mut logs = Logs::default();
        let mut taken = Vec::new();
        // The rank's second write ends in the middle of the value.
        for part in [&text[..10], &text[10..text.len() - 9], &text[text.len() - 9..]] {
            rank.write_all(part.as_bytes()).unwrap();
            logs.find_files(&Folder::at(data.path()), 0);
            taken.extend(send_all(&mut logs, &secrets));
        }
        let taken = String::from_utf8(taken).unwrap();
        assert_eq!(taken, text.replace(value, &"*".repeat(value.len())));
        rank.write_all(b" sk-0").unwrap();
        let mut tail = send_all(&mut logs, &secrets);
        assert_eq!(tail, b" ", "it may become one");
        let deadline = Instant::now() + 10 * HELD_BACK;
        while tail.len() < 5 && Instant::now() < deadline {
            tail.extend(send_all(&mut logs, &secrets));
        }
        assert_eq!(tail, b" sk-0", "it did not");
        // The rank is killed in the middle of the value.
        rank.write_all(format!(" {}", &value[..HIDDEN_PREFIX_BYTES]).as_bytes())
            .unwrap();
        let mut tail = send_all(&mut logs, &secrets);
        let deadline = Instant::now() + 10 * HELD_BACK;
        while tail.len() < 1 + HIDDEN_PREFIX_BYTES && Instant::now() < deadline {
            tail.extend(send_all(&mut logs, &secrets));
        }
        assert_eq!(tail, format!(" {}", "*".repeat(HIDDEN_PREFIX_BYTES)).as_bytes());
        assert!(logs.complete());
    }

    #[test]
    fn a_secret_that_ends_as_it_begins_is_hidden_whole() {
        let value = "abcdefghabcdefgh";
        let secrets = Secrets::from(BTreeMap::from([("KEY".to_owned(), SecretValue::new(value))]));
        let (data, _, mut rank) = rank_0();
        rank.write_all(value.as_bytes()).unwrap();
        let mut logs = Logs::default();
        logs.find_files(&Folder::at(data.path()), 0);
        let mut all_sent = || {
            let (mut taken, deadline) = (Vec::new(), Instant::now() + 10 * HELD_BACK);
            while taken.len() < value.len() && Instant::now() < deadline {
                taken.extend(send_all(&mut logs, &secrets));
            }
            // The collector has lost the output and gets it again.
            logs.acknowledge(0, "stdout", 0);
            String::from_utf8(taken).unwrap()
        };
        let hidden = "*".repeat(value.len());
        assert_eq!((all_sent(), all_sent()), (hidden.clone(), hidden));
    }
}
