//! Report files: one line per report, synced to disk before the report counts. Each file has one writer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use domain::run::state::NodeReport;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};

/// First id of the shim's reports. The agent's own ids start at 1, so the two writers never use the same id.
pub const SHIM_IDS_FROM: u64 = 1_000_000;

/// First id of checkpoint reports. These are not lines of a file, so each id continues from the previous report's id.
pub const CHECKPOINT_IDS_FROM: u64 = 2_000_000;

/// One line of a report file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Unique within the attempt's folder.
    pub id: u64,
    /// When the report was made, by the node's clock.
    pub at_ms: TimestampMs,
    /// The report itself.
    pub report: NodeReport,
}

/// Appends reports to a file. Each report is on disk before [`Reports::add`] returns.
#[derive(Debug)]
pub struct Reports {
    file: File,
    /// Offset of the end of the last complete line.
    end: u64,
    next_id: u64,
}

impl Reports {
    /// Opens a report file and cuts off a last line that a crash left incomplete.
    ///
    /// # Errors
    /// If the file cannot be read or opened.
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

    /// Appends a report, or leaves the file unchanged.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn add(&mut self, at_ms: TimestampMs, report: NodeReport) -> io::Result<Entry> {
        let entry = Entry {
            id: self.next_id,
            at_ms,
            report,
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            // An incomplete line would corrupt the next one. Truncating works even on a full disk.
            self.file.set_len(self.end)?;
            self.file.seek(SeekFrom::Start(self.end))?;
            return Err(error);
        }
        self.end += line.len() as u64;
        self.next_id += 1;
        Ok(entry)
    }
}

/// Returns the complete lines of a report file after `offset`, and the offset of the end of the last one. A file that does not exist has no
/// lines. Lines that cannot be parsed are skipped.
///
/// # Errors
/// If the file cannot be read.
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
