//! Files of reports: one line for each report, safe on disk before it counts. Each file has one writer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use domain::run::state::NodeReport;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};

/// Ids of the shim's reports begin here, the agent's own at 1: two writers, no id twice.
pub const SHIM_IDS_FROM: u64 = 1_000_000;

/// Ids of reports of checkpoints begin here: they are no line of a file, so the newest goes on from the one before.
pub const CHECKPOINT_IDS_FROM: u64 = 2_000_000;

/// One line of a file of reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Unique within the attempt's folder.
    pub id: u64,
    /// When, by the node's clock.
    pub at_ms: TimestampMs,
    /// What.
    pub report: NodeReport,
}

/// Appends reports to a file, each safe on disk before [`Reports::add`] returns.
#[derive(Debug)]
pub struct Reports {
    file: File,
    /// Behind the last whole line.
    end: u64,
    next_id: u64,
}

impl Reports {
    /// Opens a file of reports, cutting off a line that a crash left half written.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn open(path: &Path, first_id: u64) -> io::Result<Self> {
        let (entries, whole) = read_from(path, 0)?;
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        file.set_len(whole)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self {
            file,
            end: whole,
            next_id: entries.last().map_or(first_id, |last| last.id + 1),
        })
    }

    /// Appends a report, or leaves the file as it was.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn add(&mut self, at_ms: TimestampMs, report: NodeReport) -> io::Result<Entry> {
        let entry = Entry {
            id: self.next_id,
            at_ms,
            report,
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            // Half a line would spoil the next one. Shorter always fits.
            self.file.set_len(self.end)?;
            self.file.seek(SeekFrom::Start(self.end))?;
            return Err(error);
        }
        self.end += line.len() as u64;
        self.next_id += 1;
        Ok(entry)
    }
}

/// The whole lines of a file of reports behind `offset`, and the offset behind the last of them. A file that is not there
/// has none; a line that does not read is skipped.
///
/// # Errors
/// When the file cannot be read.
pub fn read_from(path: &Path, offset: u64) -> io::Result<(Vec<Entry>, u64)> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), offset)),
        file => file?,
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = bytes[..whole].split(|byte| *byte == b'\n');
    let entries = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    Ok((entries, offset + whole as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::files::SHIM_REPORTS;

    #[test]
    fn reports_survive_a_crash_in_the_middle_of_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SHIM_REPORTS.as_str());
        let accepted = |command| NodeReport::Accepted { command };
        Reports::open(&path, SHIM_IDS_FROM)
            .unwrap()
            .add(5, accepted(1))
            .unwrap();
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"id\":10000")
            .unwrap();
        let second = Reports::open(&path, SHIM_IDS_FROM)
            .unwrap()
            .add(6, accepted(2))
            .unwrap();
        assert_eq!(
            second,
            Entry {
                id: SHIM_IDS_FROM + 1,
                at_ms: 6,
                report: accepted(2)
            }
        );
        let (entries, end) = read_from(&path, 0).unwrap();
        assert_eq!(
            entries.iter().map(|entry| entry.id).collect::<Vec<_>>(),
            [SHIM_IDS_FROM, SHIM_IDS_FROM + 1]
        );
        assert_eq!(read_from(&path, end).unwrap(), (vec![], end));
    }
}
