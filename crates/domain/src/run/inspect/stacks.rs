//! The text that Python's `faulthandler` writes, as threads and frames.
//!
//! ```text
//! Current thread 0x00007f15368266c0 (most recent call first):
//!   <no Python frame>
//!
//! Thread 0x00007f15f1ffeb80 [MainThread] (most recent call first):        the name from Python 3.14 on
//!   File "/home/a/train.py", line 57 in step
//!   File "/home/a/train.py", line 80 in <module>
//! ```
//! The thread that was started last comes first, so the main thread is the last one. A line that is none of these is passed over.

use serde::{Deserialize, Serialize};

/// Threads and frames that are taken of one rank: `faulthandler` writes at most a hundred each.
const THREADS_MAX: usize = 128;
const FRAMES_MAX: usize = 128;

/// One thread of Python's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// As Python counts them: `0x00007f15f1ffeb80`.
    pub id: String,
    /// Its name, where this Python tells it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The innermost first; none in a thread that is in no Python code.
    pub frames: Vec<Frame>,
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// The file.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// Reads the text; the main thread is the last.
#[must_use]
pub fn parse_threads(text: &str) -> Vec<Thread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in text.lines() {
        if let Some(thread) = parse_head(line) {
            if threads.len() == THREADS_MAX {
                // The main thread is yet to come.
                threads.remove(0);
            }
            threads.push(thread);
        } else if let (Some(frame), Some(thread)) = (parse_frame(line), threads.last_mut())
            && thread.frames.len() < FRAMES_MAX
        {
            thread.frames.push(frame);
        }
    }
    threads
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

/// A file's name may hold anything, so its end is looked for from behind.
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
    fn threads_and_frames_are_read_whatever_the_names_hold() {
        let text = "Current thread 0x00007f15368266c0 (most recent call first):\n  <no Python frame>\n\n\
                    Thread 0x00007f15f1ffeb80 [Main Thread] (most recent call first):\n  \
                    File \"/home/a b/\", line 1 in x/train.py\", line 57 in step\n  \
                    File \"/home/a/train.py\", line 80 in <module>\n  ...\nrubbish\n";
        let threads = parse_threads(text);
        assert_eq!(threads.len(), 2);
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
            assert_eq!(parse_threads(text), [], "{text}");
        }
        let head = |n: u32| format!("Thread 0x{n:x} (most recent call first):\n");
        let flood: String = (0..1_000).map(head).collect();
        let frames = "  File \"x\", line 99999999999 in f\n  File \"x\", line 1 in f\n".repeat(500);
        let threads = parse_threads(&format!("{flood}{frames}"));
        assert_eq!(threads.len(), THREADS_MAX);
        let main = threads
            .last()
            .map(|thread| (thread.id.as_str(), thread.frames.len()));
        assert_eq!(main, Some(("0x3e7", FRAMES_MAX)));
    }
}
