//! Converts the probe's records to training series.
//!
//! ```text
//! probe/N.jsonl ──lines──▶ Reader ──Record──▶ RankSeries ──▶ Samples
//!                                              └ pool: about one second of steps, up to the same step number on all ranks
//! ```
//! Pools depend only on the records' own step numbers and times. So a late reader (after an agent was away) produces the same series.

mod best_speed;
mod flop_utilization;
mod logged;
mod pool;
mod rank;
mod record;
mod series;

pub(crate) use record::{Checkpoint as Saving, Knob, Phase, Record};
pub(crate) use series::{RunSeries, SILENT_AFTER_MS, SharedInventory};

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};
use shim::{Folder, files, segment_path, segments};

use crate::sample::Samples;

/// Maximum bytes of one read. The next read continues from there.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The position up to which the agent has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    segment: u64,
    offset: u64,
}

/// Reads the segments of an attempt in order.
#[derive(Debug)]
pub(crate) struct Reader {
    folder: Folder,
    cursor: Cursor,
    saved: Cursor,
    /// A cursor that will be saved once the samples are stored up to this number of drains.
    unsaved: Option<(Cursor, u64)>,
}

impl Reader {
    /// Continues at the position that the previous agent saved.
    pub(crate) fn open(folder: &Folder) -> Self {
        let cursor = folder.read(files::PROBE_CURSOR).unwrap_or_default();
        Self {
            folder: folder.clone(),
            cursor,
            saved: cursor,
            unsaved: None,
        }
    }

    /// Returns true if no record of the attempt has been read.
    pub(crate) fn is_at_start(&self) -> bool {
        self.cursor == Cursor::default()
    }

    /// Returns the new records.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Record>> {
        let numbers = segments(&self.folder);
        let Some(segment) = numbers
            .iter()
            .copied()
            .find(|number| *number >= self.cursor.segment)
        else {
            return Ok(Vec::new());
        };
        if segment != self.cursor.segment {
            self.cursor = Cursor { segment, offset: 0 };
        }
        let mut file = File::open(segment_path(&self.folder, segment))?;
        file.seek(SeekFrom::Start(self.cursor.offset))?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        self.cursor.offset += whole as u64;
        // After the end of a closed segment, continue with the next one.
        if whole == 0 && numbers.last() != Some(&segment) {
            self.cursor = Cursor {
                segment: segment + 1,
                offset: 0,
            };
            return self.read();
        }
        Ok(bytes[..whole]
            .split(|byte| *byte == b'\n')
            .filter_map(Record::parse)
            .collect())
    }

    /// Saves a position for the next agent: not the position up to which this agent has read, but one whose samples survive the end of this
    /// agent.
    pub(crate) fn save(&mut self, samples: &Samples) -> io::Result<()> {
        match self.unsaved {
            None if self.saved == self.cursor => return Ok(()),
            None => self.unsaved = Some((self.cursor, samples.due())),
            Some(_) => {}
        }
        if let Some((cursor, due)) = self.unsaved
            && samples.stored() >= due
        {
            self.folder.write_json(files::PROBE_CURSOR, &cursor)?;
            (self.saved, self.unsaved) = (cursor, None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn segments_are_read_in_order_once_and_by_whole_lines() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        folder.create().unwrap();
        let line = |step: u32| format!("{{\"kind\":\"step\",\"rank\":0,\"step\":{step},\"wall_ns\":1}}\n");
        std::fs::write(segment_path(&folder, 2), line(1) + &line(2)).unwrap();
        std::fs::write(segment_path(&folder, 3), line(3) + "{\"kind\":\"st").unwrap();
        let mut reader = Reader::open(&folder);
        let steps = |records: Vec<Record>| {
            let step = |record| {
                if let Record::Step(step) = record {
                    step.step
                } else {
                    None
                }
            };
            records.into_iter().filter_map(step).collect::<Vec<_>>()
        };
        assert_eq!(steps(reader.read().unwrap()), [1.0, 2.0]);
        let samples = Samples::new();
        reader.save(&samples).unwrap();
        let begun_before = samples.drain();
        assert!(begun_before.is_empty());
        reader.save(&samples).unwrap();
        let mut killed_before_all_was_stored = Reader::open(&folder);
        assert_eq!(steps(killed_before_all_was_stored.read().unwrap()), [1.0, 2.0]);
        samples.note_stored();
        reader.save(&samples).unwrap();
        let mut next_agent = Reader::open(&folder);
        assert_eq!(steps(next_agent.read().unwrap()), [3.0]);
        assert_eq!(steps(next_agent.read().unwrap()), [0.0; 0]);
    }
}
