//! Parses the text of Python's `faulthandler` into threads and frames.
//!
//! ```text
//! Current thread 0x00007f15368266c0 (most recent call first):
//!   <no Python frame>
//!
//! Thread 0x00007f15f1ffeb80 [MainThread] (most recent call first):        the name from Python 3.14 on
//!   File "/home/a/train.py", line 57 in step
//!   File "/home/a/train.py", line 80 in <module>
//! ```
//! The thread that was started last comes first, so the main thread is the last one. If there are more than one hundred, the oldest are
//! left out, including the main thread, and an unindented line `...` stands for them. Lines of any other form are ignored.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of threads and frames accepted from one rank: `faulthandler` writes at most one hundred of each.
const THREADS_MAX: usize = 128;
const FRAMES_MAX: usize = 128;

/// The line that stands for the threads that are left out.
const MORE_THREADS: &str = "...";

/// The parsed stacks of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stacks {
    /// The threads; the one that was started last comes first.
    pub threads: Vec<Thread>,
    /// True if the main thread is the last of them, false if it was left out.
    pub has_main: bool,
}

/// One Python thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Thread {
    /// Id of the thread, as Python writes it: `0x00007f15f1ffeb80`.
    pub id: String,
    /// Name of the thread, if this version of Python writes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The frames, innermost first; empty for a thread that runs no Python code.
    pub frames: Vec<Frame>,
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Frame {
    /// The file.
    pub file: String,
    /// The line in the file.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// As in a traceback, on one line: `forward (/srv/train.py:12)`.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.function, self.file, self.line)
    }
}

/// Parses the text.
#[must_use]
pub fn parse_threads(text: &str) -> Stacks {
    let mut threads: Vec<Thread> = Vec::new();
    let mut has_main = false;
    for line in text.lines() {
        if line == MORE_THREADS {
            has_main = false;
        } else if let Some(thread) = parse_head(line) {
            has_main = true;
            if threads.len() == THREADS_MAX {
                threads.remove(0);
            }
            threads.push(thread);
        } else if let (Some(frame), Some(thread)) = (parse_frame(line), threads.last_mut())
            && thread.frames.len() < FRAMES_MAX
        {
            thread.frames.push(frame);
        }
    }
    Stacks { threads, has_main }
}

fn parse_head(line: &str) -> Option<Thread> {
    let rest = line
        .strip_prefix("Thread ")
        .or_else(|| line.strip_prefix("Current thread "))?;
    let rest = rest.strip_suffix(" (most recent call first):")?;
    let (id, name) = rest.split_once(' ').unwrap_or((rest, ""));
    let hexadecimal = id.strip_prefix("0x")?;
    hexadecimal
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| Thread {
            id: id.to_owned(),
            name: name.trim_start_matches('[').trim_end_matches(']').to_owned(),
            frames: Vec::new(),
        })
}

/// A file name may contain anything, so its end is searched from the end of the line.
fn parse_frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix("  File \"")?;
    let (file, rest) = rest.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some(Frame {
        file: file.to_owned(),
        line: number.parse().ok()?,
        function: function.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame {
            file: file.into(),
            line,
            function: function.into(),
        }
    }

    #[test]
    fn a_frame_is_one_line() {
        let frame = Frame {
            file: "/home/a/train.py".into(),
            line: 57,
            function: "average".into(),
        };
        assert_eq!(frame.to_string(), "average (/home/a/train.py:57)");
    }

    #[test]
    fn threads_and_frames_are_read_with_any_names() {
        let text = "Current thread 0x00007f15368266c0 (most recent call first):\n  <no Python frame>\n\n\
                    Thread 0x00007f15f1ffeb80 [Main Thread] (most recent call first):\n  \
                    File \"/home/a b/\", line 1 in x/train.py\", line 57 in step\n  \
                    File \"/home/a/train.py\", line 80 in <module>\n  ...\nrubbish\n";
        let Stacks { threads, has_main } = parse_threads(text);
        assert_eq!((threads.len(), has_main), (2, true));
        assert_eq!((threads[0].frames.len(), threads[0].name.as_str()), (0, ""));
        assert_eq!(
            (threads[1].id.as_str(), threads[1].name.as_str()),
            ("0x00007f15f1ffeb80", "Main Thread")
        );
        let expected = [
            frame("/home/a b/\", line 1 in x/train.py", 57, "step"),
            frame("/home/a/train.py", 80, "<module>"),
        ];
        assert_eq!(threads[1].frames, expected);
    }

    #[test]
    fn what_is_no_such_text_gives_nothing_and_a_flood_is_bounded() {
        for text in [
            "",
            "<html>no</html>",
            "Thread nine (most recent call first):\n",
            "  File \"x\", line 1 in f\n",
        ] {
            assert_eq!(parse_threads(text), Stacks::default(), "{text}");
        }
        // More than `faulthandler` ever writes.
        let flood = "Thread 0x1 (most recent call first):\n".repeat(1_000);
        let frames = "  File \"x\", line 99999999999 in f\n  File \"x\", line 1 in f\n".repeat(500);
        let threads = parse_threads(&format!("{flood}{frames}")).threads;
        assert_eq!(threads.len(), THREADS_MAX);
        assert_eq!(threads.last().map(|last| last.frames.len()), Some(FRAMES_MAX));
    }

    #[test]
    fn with_more_than_a_hundred_threads_the_main_one_is_missing() {
        let thread = |n: u32| {
            format!("Thread 0x{n:x} (most recent call first):\n  File \"x\", line {n} in work\n  ...\n\n")
        };
        let hundred: String = (0..100).map(thread).collect();
        let whole = parse_threads(hundred.trim_end());
        assert_eq!((whole.threads.len(), whole.has_main), (100, true));
        let part = parse_threads(&format!("{hundred}...\n"));
        assert_eq!((part.threads.len(), part.has_main), (100, false));
        assert_eq!(part.threads, whole.threads);
    }
}
