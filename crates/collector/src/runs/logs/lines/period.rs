//! Where a period begins that has about a number of bytes. Only marks are read.

use std::collections::BinaryHeap;
use std::io;

use super::super::file::LogFile;
use super::super::times::Mark;
use super::{Cursor, TimedLog};

/// Number of marks of one log that are in memory at once.
const MARKS_MAX: usize = 256;

/// Returns when the period before `to` begins that has this many bytes or a few more; if the logs have less, when their first bytes arrived.
/// `None` if no bytes are before `to`.
pub(super) fn start(logs: &[TimedLog], to: Cursor, bytes: u64) -> io::Result<Option<u64>> {
    let mut writes = Vec::with_capacity(logs.len());
    let mut newest = BinaryHeap::new();
    for (index, log) in logs.iter().enumerate() {
        let of_log = Writes::before(&log.file, to)?;
        newest.extend(of_log.newest_us().map(|time_us| (time_us, index)));
        writes.push(of_log);
    }
    let (mut start_us, mut found) = (None, 0);
    while let Some((time_us, index)) = newest.pop() {
        start_us = Some(time_us);
        found += writes[index].take()?;
        if found >= bytes {
            break;
        }
        let next_us = writes[index].newest_us();
        newest.extend(next_us.map(|time_us| (time_us, index)));
    }
    Ok(start_us)
}

/// The writes of one log, the newest first.
struct Writes<'a> {
    file: &'a LogFile,
    segment: usize,
    /// The oldest marks of the segment, which are not in memory.
    left: usize,
    /// The marks after those, up to the newest one that was not taken.
    marks: Vec<Mark>,
    /// Where the bytes of the newest write end.
    end: u64,
}

impl<'a> Writes<'a> {
    fn before(file: &'a LogFile, to: Cursor) -> io::Result<Self> {
        let segment = file.segment_until(to.time_us)?;
        let marks = file.marks(segment)?;
        let mut count = marks.partition_point(|mark| mark.time_us <= to.time_us);
        let after = match marks.get(count) {
            Some(mark) => Some(*mark),
            None => file.first_mark_after(segment)?,
        };
        let mut end = after.map_or(file.end(), |mark| mark.offset);
        if count > 0 && marks[count - 1].time_us == to.time_us && to.offset < end {
            end = to.offset;
            // Nothing of this write is before the position.
            if marks[count - 1].offset >= end {
                count -= 1;
            }
        }
        let mut writes = Self {
            file,
            segment,
            left: 0,
            marks: Vec::new(),
            end,
        };
        writes.keep(marks, count);
        writes.load()?;
        Ok(writes)
    }

    /// Returns when the newest write arrived.
    fn newest_us(&self) -> Option<u64> {
        self.marks.last().map(|mark| mark.time_us)
    }

    /// Takes the newest write. Returns its number of bytes.
    fn take(&mut self) -> io::Result<u64> {
        let Some(mark) = self.marks.pop() else {
            return Ok(0);
        };
        let bytes = self.end.saturating_sub(mark.offset);
        self.end = mark.offset;
        self.load()?;
        Ok(bytes)
    }

    /// Keeps the last of the first `count` marks of the segment in memory.
    fn keep(&mut self, mut marks: Vec<Mark>, count: usize) {
        marks.truncate(count);
        self.left = count.saturating_sub(MARKS_MAX);
        self.marks = marks.split_off(self.left);
    }

    /// Loads older marks if none is in memory.
    fn load(&mut self) -> io::Result<()> {
        while self.marks.is_empty() && (self.left > 0 || self.segment > 0) {
            let mut count = self.left;
            if count == 0 {
                self.segment -= 1;
                count = usize::MAX;
            }
            let marks = self.file.marks(self.segment)?;
            let count = count.min(marks.len());
            self.keep(marks, count);
        }
        Ok(())
    }
}
