//! Lines of all logs of an attempt in one list, ordered by the time at which the collector received the end of each line.
//!
//! ```text
//! rank-0.stdout   writes at 12.1  12.4        12.9 ─▶ LogReader ┐ the earliest next line first
//! rank-1.stderr   writes at       12.3  12.6       ─▶ LogReader ┴▶ matching lines ─▶ until the limit, the bound of one request, or the end
//! ```
//! Each write of a run has its own time, so a time and an offset are a position in the whole list. One request reads a bounded number of
//! bytes and returns the position that it reached. To read backwards, it reads the newest period with enough bytes, then the period before
//! it, and so on.

mod period;
mod reader;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use domain::api::runs::{LogLine, LogLines, LogSource};
use domain::ident::{AttemptNo, RunId};
use domain::run::log_level::LogLevel;
use domain::run::ranks::RankSet;
use domain::time::TimestampMs;
use regex::bytes::Regex;

use self::reader::{LogReader, Reached};
use super::file::LogFile;
use super::{LogError, Logs, READS_MAX, logs_of, now_us};

/// Number of returned lines: the default and the maximum.
const LINES_DEFAULT: usize = 200;
const LINES_MAX: usize = 2_000;
/// Bounds of one request: the bytes that it searches, and its time. Both are checked after each line, so a request always makes progress.
const SEARCHED_BYTES_MAX: u64 = 64 << 20;
const TIME_MAX: Duration = Duration::from_secs(5);
/// Bound of the bytes that all logs together read ahead, and of the block that one log reads, in bytes.
const AHEAD_BYTES: u64 = 32 << 20;
const BLOCK_BYTES_MIN: u64 = 16 << 10;
const BLOCK_BYTES_MAX: u64 = 256 << 10;
/// Size of the first period of a request that reads backwards, and of the longest one, in bytes.
const PERIOD_BYTES_MIN: u64 = 256 << 10;
const PERIOD_BYTES_MAX: u64 = 8 << 20;

/// A position in the list: after all lines that ended before `time_us`, and after those that ended at this time and at or before `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    time_us: u64,
    offset: u64,
}

/// A text is not a cursor.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a position in the lines of a log; use `earlier` or `later` of a response")]
pub struct CursorError(String);

/// Which lines are requested.
#[derive(Debug, Clone, Copy)]
pub enum LinePosition {
    /// The first lines after a position.
    After(Cursor),
    /// The last lines before a position.
    Before(Cursor),
    /// The last lines of all.
    End,
}

/// Which lines are requested, and of which logs.
#[derive(Debug)]
pub struct LineQuery {
    /// The attempt.
    pub attempt: AttemptNo,
    /// The attempt writes nothing any more. A line without an end is then complete.
    pub has_ended: bool,
    /// Only these ranks, and the launchers if `launchers` is true. `None`: all ranks and launchers.
    pub ranks: Option<RankSet>,
    /// See `ranks`.
    pub launchers: bool,
    /// Only this stream, `stdout` or `stderr`.
    pub stream: Option<String>,
    /// Only lines that match.
    pub pattern: Option<Regex>,
    /// Only lines of at least this level.
    pub level: Option<LogLevel>,
    /// Where in the list.
    pub position: LinePosition,
    limit: usize,
    searched_bytes_max: u64,
}

/// A log of the attempt.
struct TimedLog {
    file: LogFile,
    source: LogSource,
}

impl Cursor {
    /// Returns the position before all lines that ended at this time or later.
    #[must_use]
    pub fn at_ms(time_ms: TimestampMs) -> Self {
        let time_us = u64::try_from(time_ms).unwrap_or(0).saturating_mul(1_000);
        Self::before_us(time_us)
    }

    fn before_us(time_us: u64) -> Self {
        Self {
            time_us: time_us.saturating_sub(1),
            offset: u64::MAX,
        }
    }

    fn time_ms(self) -> TimestampMs {
        TimestampMs::try_from(self.time_us / 1_000).unwrap_or(TimestampMs::MAX)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.time_us, self.offset)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let wrong = || CursorError(text.chars().take(100).collect());
        let (time_us, offset) = text.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            time_us: time_us.parse().map_err(|_| wrong())?,
            offset: offset.parse().map_err(|_| wrong())?,
        })
    }
}

impl LineQuery {
    /// Requests the last lines of all logs of an attempt; `limit` lines at most.
    #[must_use]
    pub fn new(attempt: AttemptNo, has_ended: bool, limit: Option<usize>) -> Self {
        Self {
            attempt,
            has_ended,
            ranks: None,
            launchers: false,
            stream: None,
            pattern: None,
            level: None,
            position: LinePosition::End,
            limit: limit.unwrap_or(LINES_DEFAULT).clamp(1, LINES_MAX),
            searched_bytes_max: SEARCHED_BYTES_MAX,
        }
    }

    fn covers(&self, source: &LogSource) -> bool {
        let is_writer = match (&self.ranks, source.rank) {
            (None, _) => true,
            (Some(ranks), Some(rank)) => ranks.contains(rank),
            (Some(_), None) => self.launchers,
        };
        is_writer && self.stream.as_ref().is_none_or(|stream| *stream == source.stream)
    }

    /// Returns where the line matches, in bytes; `None` if it does not match.
    fn find(&self, level: Option<LogLevel>, text: &str) -> Option<usize> {
        if let Some(least) = self.level
            && level.is_none_or(|level| level < least)
        {
            return None;
        }
        match &self.pattern {
            Some(pattern) => pattern.find(text.as_bytes()).map(|found| found.start()),
            None => Some(0),
        }
    }
}

impl Logs {
    /// Returns lines of all logs of an attempt in one list.
    ///
    /// # Errors
    /// Returns an error if the disk fails.
    pub async fn lines(&self, run: &RunId, query: LineQuery) -> Result<LogLines, LogError> {
        let root = self.root.join(run.as_str());
        let turn = Arc::clone(&self.lists).acquire_owned().await;
        let until_us = self.settled_us(run).await;
        let read = tokio::task::spawn_blocking(move || {
            // Held until the work ends: a client that goes away does not end it.
            let _turn = turn;
            read_lines(&root, &query, until_us)
        });
        Ok(read.await.map_err(io::Error::other)??)
    }

    /// Returns a time up to which everything is on disk. Everything that is written from now on gets a later time.
    async fn settled_us(&self, run: &RunId) -> u64 {
        let before_us = now_us().saturating_sub(1);
        let Some(room) = self.open().get(run).map(Arc::clone) else {
            return before_us;
        };
        // No write is in progress while the logs are locked.
        let mut open = room.lock().await;
        match open.as_mut() {
            Some(open) => {
                // The clock may be set back before the next write.
                open.last_us = open.last_us.max(before_us);
                open.last_us
            }
            None => before_us,
        }
    }
}

fn read_lines(root: &Path, query: &LineQuery, until_us: u64) -> io::Result<LogLines> {
    for _ in 1..READS_MAX {
        match try_read_lines(root, query, until_us) {
            // A segment was packed or removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lines => return lines,
        }
    }
    try_read_lines(root, query, until_us)
}

fn try_read_lines(root: &Path, query: &LineQuery, until_us: u64) -> io::Result<LogLines> {
    let mut logs = Vec::new();
    let mut untimed_logs = 0;
    for (path, source) in logs_of(root, query.attempt) {
        if query.covers(&source) {
            let file = LogFile::open(&path)?;
            untimed_logs += u32::from(file.is_untimed()?);
            logs.push(TimedLog { file, source });
        }
    }
    let end = Cursor {
        time_us: until_us,
        offset: u64::MAX,
    };
    let mut search = LineSearch::new(query, logs.len());
    let (found, to) = match query.position {
        LinePosition::After(from) => read_on(&logs, (from, end.max(from)), &mut search)?,
        LinePosition::Before(to) => read_back(&logs, to.min(end), &mut search)?,
        LinePosition::End => read_back(&logs, end, &mut search)?,
    };
    Ok(LogLines {
        attempt: query.attempt,
        lines: found.lines,
        earlier: found.earlier.map(|cursor| cursor.to_string()),
        later: to.to_string(),
        at_end: to >= end,
        searched_from_ms: found.from.time_ms(),
        searched_to_ms: to.time_ms(),
        untimed_logs,
    })
}

/// The lines that were found from one position on.
struct Found {
    lines: Vec<LogLine>,
    from: Cursor,
    /// Where to continue backwards; `None` if nothing is before `from`.
    earlier: Option<Cursor>,
}

/// Reads forwards. Returns the lines and the position that was reached.
fn read_on(
    logs: &[TimedLog],
    (from, until): (Cursor, Cursor),
    search: &mut LineSearch<'_>,
) -> io::Result<(Found, Cursor)> {
    let reached = read_period(logs, (from, until), search)?;
    let lines = std::mem::take(&mut search.lines);
    let found = Found {
        lines: lines.into_iter().map(|(_, line)| line).collect(),
        from,
        earlier: Some(from).filter(|from| from.time_us > 0),
    };
    Ok((found, reached.unwrap_or(until)))
}

/// Reads backwards. Returns the lines and the position from which it began.
fn read_back(logs: &[TimedLog], to: Cursor, search: &mut LineSearch<'_>) -> io::Result<(Found, Cursor)> {
    let limit = search.limit;
    let (mut from, mut bytes) = (to, PERIOD_BYTES_MIN);
    let mut kept: VecDeque<(Cursor, LogLine)> = VecDeque::new();
    search.keeps_last = true;
    let earlier = loop {
        let Some(start_us) = period::start(logs, from, bytes)? else {
            break None;
        };
        search.limit = limit - kept.len();
        let start = Cursor::before_us(start_us);
        read_period(logs, (start, from), search)?;
        search.check_time();
        for line in std::mem::take(&mut search.lines).into_iter().rev() {
            kept.push_front(line);
        }
        from = start;
        if kept.len() >= limit {
            from = kept.front().map_or(start, |(before, _)| *before);
            break Some(from);
        }
        if search.is_spent() {
            break Some(from);
        }
        bytes = (bytes * 4).min(PERIOD_BYTES_MAX);
    };
    let found = Found {
        lines: kept.into_iter().map(|(_, line)| line).collect(),
        from,
        earlier,
    };
    Ok((found, to))
}

/// Reads the lines after one position up to another one. Returns the position that was reached if that is not the end of the period.
fn read_period(
    logs: &[TimedLog],
    (from, until): (Cursor, Cursor),
    search: &mut LineSearch<'_>,
) -> io::Result<Option<Cursor>> {
    let mut readers = Vec::with_capacity(logs.len());
    let mut next = BinaryHeap::new();
    for (index, log) in logs.iter().enumerate() {
        let reader = LogReader::seek(log, from)?;
        let next_us = reader.as_ref().map(LogReader::next_us);
        let within = next_us.filter(|next_us| *next_us <= until.time_us);
        next.extend(within.map(|next_us| Reverse((next_us, index))));
        readers.push(reader);
    }
    while let Some(Reverse((_, index))) = next.pop() {
        let limit_us = next.peek().map_or(u64::MAX, |Reverse((time_us, _))| *time_us);
        let Some(reader) = &mut readers[index] else {
            continue;
        };
        match reader.read_until(limit_us, until, search)? {
            Reached::Time(time_us) => next.push(Reverse((time_us, index))),
            Reached::End => readers[index] = None,
            Reached::Full(cursor) => return Ok(Some(cursor)),
        }
    }
    Ok(None)
}

/// The lines that one request has found, and how much it has searched.
struct LineSearch<'a> {
    query: &'a LineQuery,
    block_bytes: u64,
    limit: usize,
    /// Keep the last lines of a period, not the first ones.
    keeps_last: bool,
    /// Matching lines, each with the position before it.
    lines: VecDeque<(Cursor, LogLine)>,
    searched_bytes: u64,
    until: Instant,
    is_late: bool,
}

impl<'a> LineSearch<'a> {
    fn new(query: &'a LineQuery, logs: usize) -> Self {
        Self {
            query,
            block_bytes: (AHEAD_BYTES / (logs as u64).max(1)).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
            limit: query.limit,
            keeps_last: false,
            lines: VecDeque::new(),
            searched_bytes: 0,
            until: Instant::now() + TIME_MAX,
            is_late: false,
        }
    }

    fn check_time(&mut self) {
        self.is_late |= Instant::now() >= self.until;
    }

    fn add(&mut self, before: Cursor, line: LogLine) {
        if self.keeps_last && self.lines.len() >= self.limit {
            self.lines.pop_front();
        }
        self.lines.push_back((before, line));
    }

    /// Returns true if the request may not search more.
    fn is_spent(&self) -> bool {
        self.searched_bytes >= self.query.searched_bytes_max || self.is_late
    }

    /// Returns true if reading stops before the end of the period.
    fn is_full(&self) -> bool {
        !self.keeps_last && (self.lines.len() >= self.limit || self.is_spent())
    }
}
