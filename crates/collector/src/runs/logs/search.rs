//! Searches for a text in all logs of a run: line by line, as a reader would see them, within a time limit.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::api::runs::{LogMatch, LogMatches, LogSource};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::log_text::plain;
use regex::bytes::{Regex, RegexBuilder};

use super::file::{Found, LogFile};
use super::{LogError, Logs, all_logs};

/// Number of returned lines: the default and the maximum.
const MATCHES_DEFAULT: usize = 200;
const MATCHES_MAX: usize = 2_000;
/// Maximum length of a pattern, in bytes. Users type shorter ones.
const PATTERN_BYTES_MAX: usize = 1_024;
/// Memory bounds of a compiled pattern and of its cache. They reject patterns such as `a{1000}{1000}`.
const PATTERN_SIZE_MAX: usize = 1 << 20;
const PATTERN_CACHE_MAX: usize = 8 << 20;
/// Time limit of one search: enough for half a gigabyte of log or more. Lines found by then are returned.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Size of one read, in bytes. It is also the longest line that is searched as a whole; a longer line is searched in parts.
const BLOCK_BYTES: u64 = 1 << 20;
/// How much a part of a long line overlaps with the part before it, so that a match of up to this length is complete in one of them: the
/// longest possible text, with room for what an expression adds.
const OVERLAP_BYTES: usize = 64 << 10;
/// Maximum number of characters of a returned line, around the match.
const LINE_CHARS_MAX: usize = 1_000;
/// How many of them are before the match.
const BEFORE_CHARS: usize = 200;

/// What to search for, and where.
#[derive(Debug)]
pub struct Search {
    pattern: Regex,
    /// Search only this attempt.
    pub attempt: Option<AttemptNo>,
    /// Search only this rank.
    pub rank: Option<Rank>,
    /// Search only this stream, `stdout` or `stderr`.
    pub stream: Option<String>,
    limit: usize,
}

/// Why a pattern is rejected.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The pattern is empty.
    #[error("give the text to search for in `q`")]
    Empty,
    /// The pattern is too long.
    #[error("the pattern is longer than {PATTERN_BYTES_MAX} bytes")]
    Long,
    /// The pattern is not a valid regular expression, or it would need too much memory.
    #[error("not a usable regular expression: {0}")]
    Pattern(String),
}

impl Search {
    /// Compiles a pattern: a literal text, or a regular expression without look-around and back-references. Its search time is always
    /// proportional to the length of the text.
    ///
    /// # Errors
    /// Returns an error if the pattern is invalid or too large.
    pub fn new(
        text: &str,
        is_regex: bool,
        ignore_case: bool,
        limit: Option<usize>,
    ) -> Result<Self, SearchError> {
        Ok(Self {
            pattern: pattern(text, is_regex, ignore_case)?,
            attempt: None,
            rank: None,
            stream: None,
            limit: limit.unwrap_or(MATCHES_DEFAULT).clamp(1, MATCHES_MAX),
        })
    }

    fn covers(&self, source: &LogSource) -> bool {
        self.attempt.is_none_or(|attempt| attempt == source.attempt)
            && self.rank.is_none_or(|rank| Some(rank) == source.rank)
            && self.stream.as_ref().is_none_or(|stream| *stream == source.stream)
    }
}

/// Compiles a pattern, as [`Search::new`] does.
///
/// # Errors
/// Returns an error if the pattern is invalid or too large.
pub(crate) fn pattern(text: &str, is_regex: bool, ignore_case: bool) -> Result<Regex, SearchError> {
    if text.is_empty() {
        return Err(SearchError::Empty);
    }
    if text.len() > PATTERN_BYTES_MAX {
        return Err(SearchError::Long);
    }
    let text = if is_regex {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(regex::escape(text))
    };
    RegexBuilder::new(&text)
        .case_insensitive(ignore_case)
        .size_limit(PATTERN_SIZE_MAX)
        .dfa_size_limit(PATTERN_CACHE_MAX)
        .build()
        .map_err(|error| SearchError::Pattern(error.to_string()))
}

impl Logs {
    /// Searches the logs of a run.
    ///
    /// # Errors
    /// Returns an error if the disk fails.
    pub async fn search(&self, run: &RunId, search: Search) -> Result<LogMatches, LogError> {
        let root = self.root.join(run.as_str());
        let turn = Arc::clone(&self.searches).acquire_owned().await;
        let found = tokio::task::spawn_blocking(move || {
            // Held until the work ends: a client that goes away does not end it.
            let _turn = turn;
            search_logs(&root, &search, Instant::now() + TIME_MAX)
        });
        Ok(found.await.map_err(io::Error::other)??)
    }
}

fn search_logs(root: &Path, search: &Search, until: Instant) -> io::Result<LogMatches> {
    let mut found = LogMatches::default();
    for (path, source) in all_logs(root)
        .into_iter()
        .filter(|(_, source)| search.covers(source))
    {
        let log_search = LogSearch {
            search,
            source: &source,
            until,
            found: &mut found,
            reported: false,
        };
        match log_search.run(&path) {
            // Dropped or packed meanwhile: its lines are not found this time, and the result is marked as truncated.
            Err(error) if error.kind() == io::ErrorKind::NotFound => found.truncated = true,
            done => done?,
        }
        if found.matches.len() >= search.limit || Instant::now() >= until {
            break;
        }
    }
    Ok(found)
}

/// The search of one log.
struct LogSearch<'a> {
    search: &'a Search,
    source: &'a LogSource,
    until: Instant,
    found: &'a mut LogMatches,
    /// An earlier part of the current line has matched. A line is returned once.
    reported: bool,
}

impl LogSearch<'_> {
    fn run(mut self, path: &Path) -> io::Result<()> {
        let log = LogFile::open(path)?;
        let (mut at, end) = (0, log.end());
        // The beginning of a line that ends in the next block, and its offset.
        let mut begun: Vec<u8> = Vec::new();
        while at < end {
            if Instant::now() >= self.until {
                self.found.truncated = true;
                return Ok(());
            }
            match log.read_on(at, BLOCK_BYTES)? {
                Found::Bytes(bytes) if bytes.is_empty() => break,
                Found::Bytes(bytes) => {
                    let start = at - begun.len() as u64;
                    at += bytes.len() as u64;
                    begun.extend(bytes);
                    let whole = begun.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
                    let long = begun.len() as u64 >= BLOCK_BYTES && whole == 0;
                    let (full, done) = if long {
                        (self.piece(start, &begun), begun.len() - OVERLAP_BYTES)
                    } else {
                        (self.full(start, &begun[..whole]), whole)
                    };
                    if full {
                        return Ok(());
                    }
                    begun.drain(..done);
                }
                Found::Missing { until } => {
                    if self.full(at - begun.len() as u64, &std::mem::take(&mut begun)) {
                        return Ok(());
                    }
                    self.reported = false;
                    at = until;
                }
            }
        }
        self.full(at - begun.len() as u64, &begun);
        Ok(())
    }

    /// Searches complete lines. Returns true if the limit of matches is exceeded.
    fn full(&mut self, mut offset: u64, lines: &[u8]) -> bool {
        for line in lines.split_inclusive(|b| *b == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            if !std::mem::take(&mut self.reported)
                && let Some(line) = self.search.line(text)
                && self.is_too_much(offset, line)
            {
                return true;
            }
            offset += line.len() as u64;
        }
        false
    }

    /// Searches a part of a line whose end is not known.
    fn piece(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if !self.reported
            && let Some(line) = self.search.line(bytes)
        {
            self.reported = true;
            return self.is_too_much(offset, line);
        }
        false
    }

    /// Adds a match. Returns true if the limit is exceeded.
    fn is_too_much(&mut self, offset: u64, line: String) -> bool {
        if self.found.matches.len() >= self.search.limit {
            self.found.truncated = true;
            return true;
        }
        let source = self.source.clone();
        self.found.matches.push(LogMatch { source, offset, line });
        false
    }
}

impl Search {
    /// Returns the line as it is shown, if it matches. Most lines contain no control characters and are searched without a copy.
    fn line(&self, bytes: &[u8]) -> Option<String> {
        if !steers(bytes) {
            let at = self.pattern.find(bytes)?.start();
            return Some(around(&String::from_utf8_lossy(bytes), at));
        }
        let text = plain(&String::from_utf8_lossy(bytes));
        let at = self.pattern.find(text.as_bytes())?.start();
        Some(around(&text, at))
    }
}

/// Returns true if the line may contain control characters or escape sequences.
pub(super) fn steers(line: &[u8]) -> bool {
    line.iter().any(|b| (*b < 0x20 && *b != b'\t') || *b == 0xc2)
}

/// Returns the shown part of a long line: some text before the match, and the text after it. `at` is in bytes; it is only approximate if
/// invalid bytes were replaced.
pub(super) fn around(line: &str, at: usize) -> String {
    if line.len() <= LINE_CHARS_MAX {
        return line.to_owned();
    }
    let before = line.char_indices().filter(|(index, _)| *index < at).count();
    let skipped = before.saturating_sub(BEFORE_CHARS);
    let shown: String = line.chars().skip(skipped).take(LINE_CHARS_MAX).collect();
    let head = if skipped > 0 { "…" } else { "" };
    let more = line.chars().count() > skipped + LINE_CHARS_MAX;
    format!("{head}{shown}{}", if more { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn logs(lines: &[(u32, &str, &[u8])]) -> (tempfile::TempDir, Logs, RunId) {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::new(folder.path().to_owned());
        let run = RunId::new("r").expect("a name");
        for (rank, stream, bytes) in lines {
            let source = LogSource {
                attempt: AttemptNo(1),
                node: "n1".into(),
                rank: Some(Rank(*rank)),
                stream: (*stream).into(),
            };
            let length = logs.read(&run, &source, 0, 1).await.expect("reads").length;
            logs.write(&run, &source, (length, 0), bytes)
                .await
                .expect("writes");
        }
        (folder, logs, run)
    }

    fn search(text: &str, is_regex: bool, ignore_case: bool) -> Search {
        Search::new(text, is_regex, ignore_case, None).expect("a pattern")
    }

    #[tokio::test]
    async fn lines_are_found_in_all_ranks_with_their_positions() {
        let (_folder, logs, run) = logs(&[
            (1, "stderr", b"ok\nCUDA \x1b[31merror\x1b[0m: lost\n"),
            (10, "stdout", b"cuda error (no end"),
            (2, "stdout", b"\xff\xfe CUDA error\nx.y\nxzy\n"),
        ])
        .await;
        let found = logs
            .search(&run, search("cuda error", false, true))
            .await
            .expect("looks");
        let lines: Vec<_> = found
            .matches
            .iter()
            .map(|found| {
                (
                    found.source.rank.map_or(0, |rank| rank.0),
                    found.offset,
                    found.line.as_str(),
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                (1, 3, "CUDA error: lost"),
                (2, 0, "\u{fffd}\u{fffd} CUDA error"),
                (10, 0, "cuda error (no end")
            ]
        );
        assert!(!found.truncated);
        let literal = logs
            .search(&run, search("x.y", false, false))
            .await
            .expect("looks");
        assert_eq!(literal.matches.len(), 1);
        let mut by_regex = search("^x.y$", true, false);
        by_regex.rank = Some(Rank(2));
        assert_eq!(logs.search(&run, by_regex).await.expect("looks").matches.len(), 2);
    }

    #[tokio::test]
    async fn a_line_of_many_megabytes_does_not_hang_and_is_truncated() {
        let mut line = vec![b'x'; 5 << 20];
        line.extend_from_slice(b"needle");
        line.extend(vec![b'y'; 100_000]);
        let (_folder, logs, run) = logs(&[(0, "stdout", &line)]).await;
        let found = logs
            .search(&run, search("needle", false, false))
            .await
            .expect("looks");
        assert_eq!(found.matches.len(), 1);
        assert!(found.matches[0].line.chars().count() <= LINE_CHARS_MAX + 2);
        assert!(found.matches[0].line.contains("needle"));
    }

    #[tokio::test]
    async fn a_match_across_two_pieces_of_a_line_is_found_once_and_so_is_one_in_both() {
        let block = usize::try_from(BLOCK_BYTES).expect("a megabyte");
        for at in [
            block - 3,
            block - OVERLAP_BYTES / 2,
            2 * block - OVERLAP_BYTES - 3,
            7,
        ] {
            let mut line = vec![b'x'; 3 * block];
            line[at..at + 6].copy_from_slice(b"needle");
            let end = line.len() as u64;
            line.extend_from_slice(b" needle at the end\nanother needle\n");
            let (_folder, logs, run) = logs(&[(0, "stdout", &line)]).await;
            let found = logs
                .search(&run, search("needle", false, false))
                .await
                .expect("looks");
            assert_eq!(found.matches.len(), 2, "at {at}");
            assert!(found.matches[0].line.contains("xxneedlexx"), "at {at}");
            let second = &found.matches[1];
            assert_eq!(
                (second.line.as_str(), second.offset),
                ("another needle", end + 19)
            );
        }
    }

    #[tokio::test]
    async fn the_limit_is_kept_and_further_matches_are_reported() {
        let (_folder, logs, run) = logs(&[(0, "stdout", "hit\n".repeat(10).as_bytes())]).await;
        let three = Search::new("hit", false, false, Some(3)).expect("a pattern");
        let found = logs.search(&run, three).await.expect("looks");
        assert_eq!((found.matches.len(), found.truncated), (3, true));
        let ten = Search::new("hit", false, false, Some(10)).expect("a pattern");
        assert!(!logs.search(&run, ten).await.expect("looks").truncated);
    }

    #[test]
    fn patterns_that_would_cost_too_much_are_refused() {
        for (text, is_regex) in [("", false), ("(", true), ("a{1000}{1000}{1000}", true)] {
            assert!(Search::new(text, is_regex, false, None).is_err(), "{text}");
        }
        assert!(Search::new(&"x".repeat(2_000), false, false, None).is_err());
        assert!(Search::new("(", false, false, None).is_ok());
    }
}
