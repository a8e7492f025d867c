//! The level of a log line, by its beginning.
//!
//! | program | a line begins with | level |
//! |---|---|---|
//! | Python `logging` | `ERROR:root:`, `WARNING: `, `[INFO] `, or a date and one of the next four words is the level | the word |
//! | glog, absl, torchrun, PyTorch C++ | `E1129 00:17:21`, `[W1129 00:17:21`, also of eight digits | the letter |
//! | Python `warnings` | `/path/file.py:12: UserWarning:` | warning |
//! | Python | `Traceback (most recent call last):`, `Fatal Python error` | error |
//! | NCCL | `node:1:2 [0] NCCL WARN ` | warning |
//! | C++, compilers, scripts | `terminate called`, `error:`, `Warning:` | as it says |
//!
//! A prefix such as `[rank3]:` is skipped. An indented line has the level of the line before it, and so have all lines of a traceback,
//! including the exception at its end. Any other line has no level: a wrong level hides more than no level.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How severe a line is, by its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Information, and everything below it.
    Info,
    /// A warning.
    Warning,
    /// An error, and everything above it.
    Error,
}

/// How many bytes of a line can contain its level.
const HEAD_BYTES_MAX: usize = 160;
/// How many words after a date can be the level: the logger, the process, the thread and the level.
const WORDS_MAX: usize = 4;
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Reads the lines of one log in order and returns the level of each.
#[derive(Debug, Clone, Default)]
pub struct LevelReader {
    /// The level of the line before.
    level: Option<LogLevel>,
    in_traceback: bool,
}

impl LevelReader {
    /// Returns the level of the next line, which has no escape sequences.
    pub fn read(&mut self, line: &str) -> Option<LogLevel> {
        let line = without_rank(line);
        if line.trim_end().ends_with(TRACEBACK) {
            self.in_traceback = true;
            self.level = Some(LogLevel::Error);
        } else if line.trim().is_empty() {
            if !self.in_traceback {
                self.level = None;
            }
        } else if !line.starts_with([' ', '\t']) {
            let own = level_of(line);
            // The exception has no level of its own. Another thread may print a line in between.
            if own.is_some() || !self.in_traceback {
                self.level = own;
            }
            self.in_traceback = false;
        }
        self.level
    }
}

/// Removes the prefix that torchrun and PyTorch write in front of a rank's lines, such as `[rank3]: `.
fn without_rank(line: &str) -> &str {
    let rest = ["[rank", "[default"]
        .into_iter()
        .find_map(|prefix| line.strip_prefix(prefix));
    match rest.and_then(|rest| rest.split_once("]:")) {
        Some((number, rest)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            rest.strip_prefix(' ').unwrap_or(rest)
        }
        _ => line,
    }
}

fn level_of(line: &str) -> Option<LogLevel> {
    let head = &line[..line.floor_char_boundary(HEAD_BYTES_MAX)];
    let inner = head.trim_start_matches(['[', '(']);
    if let Some(level) = by_letter(inner) {
        return Some(level);
    }
    if has_date(inner) {
        return by_word_after_date(inner);
    }
    by_first_word(inner).or_else(|| by_phrase(head, line))
}

/// Reads `E1129 00:17:21` and `W20261129 00:17:21`.
fn by_letter(head: &str) -> Option<LogLevel> {
    let level = match head.as_bytes().first()? {
        b'I' | b'D' | b'V' => LogLevel::Info,
        b'W' => LogLevel::Warning,
        b'E' | b'F' | b'C' => LogLevel::Error,
        _ => return None,
    };
    let (date, time) = head[1..].split_once(' ')?;
    let is_date = matches!(date.len(), 4 | 8) && date.bytes().all(|b| b.is_ascii_digit());
    (is_date && has_time(time)).then_some(level)
}

/// Returns true for `2026-11-29…`, `2026/11/29…` and `00:17:21…`.
fn has_date(head: &str) -> bool {
    let digits = head.bytes().take_while(u8::is_ascii_digit).count();
    (digits == 4 && matches!(head.as_bytes().get(4), Some(b'-' | b'/'))) || has_time(head)
}

fn has_time(head: &str) -> bool {
    let shape = |(at, b): (usize, u8)| {
        if at == 2 { b == b':' } else { b.is_ascii_digit() }
    };
    head.len() >= 5 && head.bytes().take(5).enumerate().all(shape)
}

/// Reads `2026-11-29 00:17:21,123 - root - ERROR - …`.
fn by_word_after_date(head: &str) -> Option<LogLevel> {
    let words = head.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.'));
    let words = words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'));
    words.take(WORDS_MAX).find_map(by_word)
}

/// Reads `ERROR:root:…`, `ERROR] …`, `INFO 11-29 …` and `error: …`.
fn by_first_word(head: &str) -> Option<LogLevel> {
    let end = head.find(|c: char| !c.is_ascii_alphabetic())?;
    let (word, rest) = head.split_at(end);
    if rest.starts_with(':') {
        return by_word(&word.to_ascii_uppercase());
    }
    let is_dated = rest.trim_start().starts_with(|c: char| c.is_ascii_digit());
    (rest.starts_with(']') || is_dated)
        .then(|| by_word(word))
        .flatten()
}

fn by_word(word: &str) -> Option<LogLevel> {
    match word {
        "ERROR" | "CRITICAL" | "FATAL" | "SEVERE" => Some(LogLevel::Error),
        "WARNING" | "WARN" => Some(LogLevel::Warning),
        "INFO" | "DEBUG" | "TRACE" | "NOTICE" => Some(LogLevel::Info),
        _ => None,
    }
}

fn by_phrase(head: &str, line: &str) -> Option<LogLevel> {
    const ERRORS: [&str; 4] = [
        "Fatal Python error",
        "terminate called",
        "During handling of the above exception",
        "The above exception was the direct cause",
    ];
    if ERRORS.iter().any(|error| head.starts_with(error)) {
        Some(LogLevel::Error)
    } else if head.contains(" NCCL WARN ") || is_python_warning(line) {
        Some(LogLevel::Warning)
    } else if head.contains(" NCCL INFO ") {
        Some(LogLevel::Info)
    } else {
        None
    }
}

/// Returns true for `/path/file.py:12: UserWarning: …`.
fn is_python_warning(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(".py:") else {
        return false;
    };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let category = rest
        .strip_prefix(": ")
        .and_then(|rest| rest.split_once(':'))
        .map(|(category, _)| category);
    category.is_some_and(|category| category.ends_with("Warning") && !category.contains(' '))
}

#[cfg(test)]
mod tests {
    use LogLevel::{Error, Info, Warning};

    use super::*;

    fn check(lines: &[(&str, Option<LogLevel>)]) {
        let mut reader = LevelReader::default();
        for (line, expected) in lines {
            assert_eq!(reader.read(line), *expected, "{line:?}");
        }
    }

    #[test]
    fn the_beginning_of_a_line_has_its_level() {
        for (line, expected) in [
            ("ERROR:root:no such file", Some(Error)),
            ("CRITICAL:train:gone", Some(Error)),
            ("DEBUG:root:x", Some(Info)),
            ("[WARNING] slow", Some(Warning)),
            ("2026-11-29 00:17:21,123 - root - ERROR - x", Some(Error)),
            (
                "[2026-11-29 00:17:21,333][__main__][INFO] - ERROR later",
                Some(Info),
            ),
            (
                "[2026-11-29 00:17:21,000] torch.distributed.run: [WARNING] x",
                Some(Warning),
            ),
            ("00:17:21 | WARNING  | x", Some(Warning)),
            ("INFO 11-29 00:17:21 [config.py:12] x", Some(Info)),
            ("INFO:     Started server process [1]", Some(Info)),
            (
                "WARNING: All log messages before absl::InitializeLog()",
                Some(Warning),
            ),
            (
                "W1129 00:17:21.123000 4242 torch/distributed/run.py:766] x",
                Some(Warning),
            ),
            (
                "[rank0]:[E1129 00:17:21.1 ProcessGroupNCCL.cpp:632] x",
                Some(Error),
            ),
            ("I20261129 00:17:21.1 4242 a.cc:1] x", Some(Info)),
            ("/opt/a b/file.py:12: UserWarning: x", Some(Warning)),
            ("node-1:123:456 [0] NCCL WARN x", Some(Warning)),
            ("node-1:123:456 [0] NCCL INFO x", Some(Info)),
            (
                "terminate called after throwing an instance of 'c10::Error'",
                Some(Error),
            ),
            ("Error: no such option", Some(Error)),
            ("warning: deprecated", Some(Warning)),
            ("step 3 loss 1.5", None),
            ("ERROR rate: 0.5", None),
            ("MeanSquaredError: 0.5", None),
            ("validation error: 0.5", None),
            ("[12/100] ERROR 0.5", None),
            ("2026-11-29 00:17:21 a b c d ERROR", None),
            ("E1129", None),
            ("größe ✓", None),
            ("", None),
        ] {
            check(&[(line, expected)]);
        }
    }

    #[test]
    fn the_lines_of_a_traceback_belong_to_it() {
        check(&[
            ("[rank1]: Traceback (most recent call last):", Some(Error)),
            ("[rank1]:   File \"train.py\", line 3, in <module>", Some(Error)),
            ("[rank1]:     main()", Some(Error)),
            ("[rank1]: KeyError: 'x'", Some(Error)),
            ("", None),
            (
                "During handling of the above exception, another exception occurred:",
                Some(Error),
            ),
            ("", None),
            ("Traceback (most recent call last):", Some(Error)),
            ("  File \"train.py\", line 5", Some(Error)),
            ("INFO:root:of another thread", Some(Info)),
            ("step 3", None),
            ("  indented", None),
        ]);
    }

    #[test]
    fn an_indented_line_continues_the_line_before() {
        check(&[
            ("/a.py:1: FutureWarning: x", Some(Warning)),
            ("  x = f()", Some(Warning)),
            ("epoch 1", None),
            ("  20%", None),
        ]);
    }
}
