//! The lines of one log, in order, each with the time at which its end arrived.

use std::borrow::Cow;
use std::io;

use domain::api::runs::LogLine;
use domain::run::log_level::LevelReader;
use domain::run::log_text::plain;

use super::super::file::{Found, LogFile};
use super::super::missing_note;
use super::super::search::{around, steers};
use super::super::times::Mark;
use super::{Cursor, LineSearch, TimedLog};

/// How much text before the first line is read, in bytes: it has the beginning of that line, and the beginning of its traceback.
const LOOK_BACK_BYTES: u64 = 16 << 10;
/// A longer line is listed in parts, in bytes.
const PART_BYTES_MAX: u64 = 1 << 20;
/// How much of a line is searched, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Number of marks that are in memory at once.
const MARKS_MAX: usize = 512;

/// Where a reader stopped.
pub(super) enum Reached {
    /// The next line ends at this time.
    Time(u64),
    /// The end of the log or of the period.
    End,
    /// The search is full after the line at this position.
    Full(Cursor),
}

/// Reads the lines of a log after a position.
pub(super) struct LogReader<'a> {
    log: &'a TimedLog,
    from: Cursor,
    /// The next line does not end before this time.
    next_us: u64,
    /// A line begins where reading starts.
    is_line_start: bool,
    is_open: bool,
    times: Times<'a>,
    levels: LevelReader,
    /// The bytes before `read_to`, from a point before the next line on.
    buffer: Vec<u8>,
    read_to: u64,
    /// Where the next line begins, in the buffer and in the log.
    begin: usize,
    line_start: u64,
    /// Up to here, the buffer has no end of the next line.
    scanned: usize,
    next: Option<LineEnd>,
}

/// The end of the next line.
#[derive(Debug, Clone, Copy)]
struct LineEnd {
    /// In the buffer.
    index: usize,
    cursor: Cursor,
    /// It is no line, but the note that bytes are missing.
    is_note: bool,
}

impl<'a> LogReader<'a> {
    /// Returns a reader of the lines after a position, or `None` if there are none. Reads only marks.
    pub(super) fn seek(log: &'a TimedLog, from: Cursor) -> io::Result<Option<Self>> {
        let file = &log.file;
        let segment = file.segment_until(from.time_us)?;
        let marks = file.marks(segment)?;
        let until = marks.partition_point(|mark| mark.time_us <= from.time_us);
        let after = match marks.get(until) {
            Some(mark) => Some(*mark),
            None => file.first_mark_after(segment)?,
        };
        let is_own = until > 0 && marks[until - 1].time_us == from.time_us;
        let after_offset = after.map_or(file.end(), |mark| mark.offset);
        let (start, next_us, is_line_start) = if is_own && from.offset < after_offset {
            // Within the write of this position. The position before a line may be before the write, and a wrong one far before it.
            let begin = file.start_of_write(segment, from.time_us)?.unwrap_or(from.offset);
            let begin = file.gap_before(begin).unwrap_or(begin);
            (from.offset.max(begin), from.time_us, from.offset >= begin)
        } else {
            let Some(after) = after else { return Ok(None) };
            let start = file.gap_before(after.offset).unwrap_or(after.offset);
            (start, after.time_us, is_own && from.offset == start)
        };
        Ok(Some(Self {
            log,
            from,
            next_us,
            is_line_start,
            is_open: false,
            times: Times::new(file),
            levels: LevelReader::default(),
            buffer: Vec::new(),
            read_to: start,
            begin: 0,
            line_start: start,
            scanned: 0,
            next: None,
        }))
    }

    /// Returns a time before which no line ends.
    pub(super) fn next_us(&self) -> u64 {
        self.next_us
    }

    #[cfg(test)]
    pub(super) fn read_to(&self) -> u64 {
        self.read_to
    }

    /// Reads the lines that end at `limit_us` or before it.
    pub(super) fn read_until(
        &mut self,
        limit_us: u64,
        until: Cursor,
        search: &mut LineSearch<'_>,
    ) -> io::Result<Reached> {
        while let Some(end) = self.peek(search)? {
            if end.cursor > until {
                return Ok(Reached::End);
            }
            if end.cursor.time_us > limit_us {
                return Ok(Reached::Time(end.cursor.time_us));
            }
            let is_new = end.cursor > self.from;
            self.take(end, is_new, search);
            if is_new && search.is_full() {
                return Ok(Reached::Full(end.cursor));
            }
        }
        Ok(Reached::End)
    }

    fn peek(&mut self, search: &mut LineSearch<'_>) -> io::Result<Option<LineEnd>> {
        if !self.is_open {
            self.open()?;
        }
        if self.next.is_none() {
            self.next = self.find_end(search)?;
        }
        Ok(self.next)
    }

    /// Reads what is before the first line.
    fn open(&mut self) -> io::Result<()> {
        self.is_open = true;
        let start = self.read_to;
        self.times.load(self.log.file.segment_at(start), start)?;
        let (before, is_whole) = text_before(&self.log.file, start)?;
        let is_end = |b: &u8| *b == b'\n';
        let whole = before.iter().rposition(is_end).map_or(0, |last| last + 1);
        let skipped = if is_whole {
            0
        } else {
            before.iter().position(is_end).map_or(0, |first| first + 1)
        };
        for line in before[skipped..whole].split_inclusive(is_end) {
            self.levels.read(&shown(line));
        }
        if !self.is_line_start {
            self.buffer = before[whole..].to_vec();
            self.line_start = start - self.buffer.len() as u64;
        }
        Ok(())
    }

    fn find_end(&mut self, search: &mut LineSearch<'_>) -> io::Result<Option<LineEnd>> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                return self.end_at(self.scanned + at + 1).map(Some);
            }
            self.scanned = self.buffer.len();
            if self.read_to - self.line_start >= PART_BYTES_MAX {
                return self.end_at(self.buffer.len()).map(Some);
            }
            self.shorten();
            let is_begun = self.begin < self.buffer.len();
            if self.read_to >= self.log.file.end() {
                return if is_begun && search.query.has_ended {
                    self.end_at(self.buffer.len()).map(Some)
                } else {
                    Ok(None)
                };
            }
            match self.log.file.read_on(self.read_to, search.block_bytes)? {
                Found::Bytes(bytes) if bytes.is_empty() => return Ok(None),
                Found::Bytes(bytes) => {
                    search.check_time();
                    self.buffer.drain(..self.begin);
                    (self.begin, self.scanned) = (0, self.buffer.len());
                    self.read_to += bytes.len() as u64;
                    self.buffer.extend(bytes);
                }
                // The line has lost its end.
                Found::Missing { .. } if is_begun => return self.end_at(self.buffer.len()).map(Some),
                Found::Missing { until } => return self.note(until).map(Some),
            }
        }
    }

    /// Returns the end of the line that ends at this index of the buffer.
    fn end_at(&mut self, index: usize) -> io::Result<LineEnd> {
        let offset = self.read_to - (self.buffer.len() - index) as u64;
        let time_us = self.times.at(offset.saturating_sub(1))?;
        Ok(LineEnd {
            index,
            cursor: Cursor { time_us, offset },
            is_note: false,
        })
    }

    /// Puts a note in place of missing bytes. It has the time of the bytes after them.
    fn note(&mut self, until: u64) -> io::Result<LineEnd> {
        let note = missing_note(until - self.read_to);
        self.buffer = note.trim().as_bytes().to_vec();
        (self.begin, self.scanned) = (0, self.buffer.len());
        self.read_to = until;
        let cursor = Cursor {
            time_us: self.times.at(until)?,
            offset: until,
        };
        Ok(LineEnd {
            index: self.buffer.len(),
            cursor,
            is_note: true,
        })
    }

    /// Drops a part of a very long line: what a progress bar has drawn over, or the middle.
    fn shorten(&mut self) {
        let line = &self.buffer[self.begin..];
        if line.len() < 2 * LINE_BYTES_MAX {
            return;
        }
        // A return at the end may belong to the end of the line.
        match line[..line.len() - 1].iter().rposition(|b| *b == b'\r') {
            Some(drawn_over) => _ = self.buffer.drain(self.begin..=self.begin + drawn_over),
            None => self.buffer.truncate(self.begin + LINE_BYTES_MAX),
        }
        self.scanned = self.buffer.len();
    }

    /// Takes the next line, and adds it to the search if it is new and matches.
    fn take(&mut self, end: LineEnd, is_new: bool, search: &mut LineSearch<'_>) {
        let text = shown(&self.buffer[self.begin..end.index]);
        let level = if end.is_note {
            None
        } else {
            self.levels.read(&text)
        };
        // A note is no line that could match.
        let is_hidden = end.is_note && search.query.pattern.is_some();
        if is_new
            && !is_hidden
            && let Some(at) = search.query.find(level, &text)
        {
            let before = Cursor {
                offset: self.line_start,
                ..end.cursor
            };
            let line = LogLine {
                source: self.log.source.clone(),
                time_ms: end.cursor.time_ms(),
                offset: self.line_start,
                level,
                text: around(&text, at),
            };
            search.add(before, line);
        }
        if is_new && !end.is_note {
            search.searched_bytes += end.cursor.offset - self.line_start;
        }
        (self.begin, self.scanned) = (end.index, end.index);
        self.line_start = end.cursor.offset;
        self.next = None;
    }
}

/// The times of the bytes of a log, in order.
struct Times<'a> {
    file: &'a LogFile,
    segment: usize,
    marks: Vec<Mark>,
    /// The segment has marks after these.
    has_more: bool,
    next: usize,
    time_us: u64,
}

impl<'a> Times<'a> {
    fn new(file: &'a LogFile) -> Self {
        Self {
            file,
            segment: 0,
            marks: Vec::new(),
            has_more: false,
            next: 0,
            time_us: 0,
        }
    }

    /// Loads the marks of a segment, from the one that holds for this offset on.
    fn load(&mut self, segment: usize, offset: u64) -> io::Result<()> {
        let all = self.file.marks(segment)?;
        let begun = all.partition_point(|mark| mark.offset <= offset);
        let first = begun.saturating_sub(1);
        self.has_more = all.len() > first + MARKS_MAX;
        self.marks = all.into_iter().skip(first).take(MARKS_MAX).collect();
        (self.segment, self.next) = (segment, 0);
        Ok(())
    }

    /// Returns when the byte at this offset arrived; 0 if that is not known. Offsets must not decrease.
    fn at(&mut self, offset: u64) -> io::Result<u64> {
        loop {
            while let Some(mark) = self.marks.get(self.next).filter(|mark| mark.offset <= offset) {
                self.time_us = self.time_us.max(mark.time_us);
                self.next += 1;
            }
            let following = self.segment + 1;
            let is_last = self.next == self.marks.len();
            if is_last && self.has_more {
                self.load(self.segment, offset)?;
            } else if is_last && self.file.start_of(following).is_some_and(|start| start <= offset) {
                self.load(following, offset)?;
            } else {
                return Ok(self.time_us);
            }
        }
    }
}

/// Returns the text before an offset, and whether it begins with a whole line.
fn text_before(file: &LogFile, end: u64) -> io::Result<(Vec<u8>, bool)> {
    let begin = end.saturating_sub(LOOK_BACK_BYTES);
    let (from, found, is_whole) = match file.read_on(begin, end - begin)? {
        Found::Missing { until } if until < end => (until, file.read_on(until, end - until)?, true),
        found => (begin, found, begin == 0),
    };
    match found {
        Found::Bytes(bytes) if from + bytes.len() as u64 == end => Ok((bytes, is_whole)),
        _ => Ok((Vec::new(), true)),
    }
}

/// Returns the line as people see it. Most lines contain no control characters and are not copied.
fn shown(line: &[u8]) -> Cow<'_, str> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    if steers(line) {
        Cow::Owned(plain(&text))
    } else {
        text
    }
}
