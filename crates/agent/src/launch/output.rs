//! The log files of an attempt, read from where the collector's copies end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::launch::journal::Folder;

/// One piece on the wire.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Sent and not yet acknowledged, per file: enough for a long round trip, little enough that a flood of one rank does not
/// fill the connection.
const WINDOW_BYTES: u64 = 256 << 10;
/// torchrun's own output, as the protocol numbers it.
pub const LAUNCHER: i32 = -1;

/// A file that may still grow.
#[derive(Debug)]
pub struct LogFile {
    /// The rank, or [`LAUNCHER`].
    pub rank: i32,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    path: PathBuf,
    /// How much the collector has; `None` until it has said so once on this connection.
    acknowledged: Option<u64>,
    /// How much was sent on this connection.
    sent: u64,
}

/// All of an attempt's log files.
#[derive(Debug, Default)]
pub struct Logs {
    files: Vec<LogFile>,
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The rank, or [`LAUNCHER`].
    pub rank: i32,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// Where it belongs.
    pub offset: u64,
    /// What is there.
    pub bytes: Vec<u8>,
}

impl Logs {
    /// Looks for files that have come since the last look. `first_rank` is the place in the world of local rank 0.
    pub fn look(&mut self, folder: &Folder, first_rank: u32) {
        for stream in ["stdout", "stderr"] {
            self.add(LAUNCHER, stream, folder.file(&format!("launcher.{stream}")));
        }
        // torchrun: LOG_DIR/ID_RANDOM/attempt_0/LOCAL_RANK/std*.log
        for of_run in folders(&folder.file("ranks")) {
            for of_rank in folders(&of_run.join("attempt_0")) {
                let local: Option<u32> = of_rank.file_name().and_then(|name| name.to_str()?.parse().ok());
                let Some(rank) = local.and_then(|local| i32::try_from(first_rank + local).ok()) else {
                    continue;
                };
                self.add(rank, "stdout", of_rank.join("stdout.log"));
                self.add(rank, "stderr", of_rank.join("stderr.log"));
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
                path,
                acknowledged: None,
                sent: 0,
            });
        }
    }

    /// The next piece of some file; `None` when everything is sent or waits for an acknowledgement.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn next_chunk(&mut self) -> io::Result<Option<Chunk>> {
        for at in 0..self.files.len() {
            if let Some(chunk) = self.files[at].next_chunk()? {
                // The next call begins with another file.
                self.files.rotate_left(at + 1);
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// The collector has this much.
    pub fn acknowledge(&mut self, rank: i32, stream: &str, length: u64) {
        if let Some(file) = self
            .files
            .iter_mut()
            .find(|file| file.rank == rank && file.stream == stream)
        {
            // Less than before: the collector lost something, and gets it again.
            let lost = file.acknowledged.is_some_and(|before| length < before);
            file.sent = if lost { length } else { file.sent.max(length) };
            file.acknowledged = Some(length);
        }
    }

    /// Whether the collector has all there is.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.files
            .iter()
            .all(|file| file.length() <= file.acknowledged.unwrap_or(0))
    }
}

impl LogFile {
    fn next_chunk(&mut self) -> io::Result<Option<Chunk>> {
        let unanswered = self.acknowledged.is_none() && self.sent > 0;
        let full = self.sent.saturating_sub(self.acknowledged.unwrap_or(0)) >= WINDOW_BYTES;
        if unanswered || full || self.length() <= self.sent {
            return Ok(None);
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.sent))?;
        let mut bytes = Vec::new();
        file.take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
        let chunk = Chunk {
            rank: self.rank,
            stream: self.stream,
            offset: self.sent,
            bytes,
        };
        self.sent += chunk.bytes.len() as u64;
        Ok(Some(chunk).filter(|chunk| !chunk.bytes.is_empty()))
    }

    fn length(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn logs_go_on_where_the_collector_ends_and_wait_when_it_is_slow() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let of_rank = data.path().join("ranks/x_1/attempt_0/1");
        std::fs::create_dir_all(&of_rank).unwrap();
        std::fs::write(of_rank.join("stdout.log"), vec![b'a'; 400_000]).unwrap();
        let mut logs = Logs::default();
        logs.look(&folder, 4);
        logs.look(&folder, 4);
        let first = logs.next_chunk().unwrap().unwrap();
        assert_eq!(
            (first.rank, first.stream, first.offset, first.bytes.len()),
            (5, "stdout", 0, CHUNK_BYTES)
        );
        assert_eq!(
            logs.next_chunk().unwrap(),
            None,
            "until the collector has said how much it has"
        );
        logs.acknowledge(5, "stdout", 100_000);
        assert_eq!(logs.next_chunk().unwrap().unwrap().offset, 100_000);
        while logs.next_chunk().unwrap().is_some() {}
        assert!(!logs.complete());
        logs.acknowledge(5, "stdout", 300_000);
        while logs.next_chunk().unwrap().is_some() {}
        logs.acknowledge(5, "stdout", 400_000);
        assert!(logs.complete());
    }
}
