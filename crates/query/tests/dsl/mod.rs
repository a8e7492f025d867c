//! Reader of Prometheus' test language for queries, compatible with its `promqltest` package.
//!
//! ```text
//! load 1m                                   one series per line; the first value is at time 0
//!   gpu_power_watts{gpu="0"} 400+10x3 _ stale
//! eval instant at 2m max(gpu_power_watts)   expected results follow, up to a blank line
//!   expect no_warn
//!   {} 420
//! eval range from 0 to 2m step 1m gpu_power_watts
//!   gpu_power_watts{gpu="0"} 400 410 420
//! clear
//! ```

pub(crate) mod check;
pub(crate) mod series;
pub(crate) mod source;

use domain::time::parse_duration_ms;
use query::Params;

use series::{Expected, Line};

/// A file as a list of commands.
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) commands: Vec<Command>,
}

pub(crate) enum Command {
    Clear,
    /// A line that starts a command that this reader does not support.
    Unknown {
        line: usize,
        text: String,
    },
    Load {
        /// True if classic buckets also make native histograms.
        with_nhcb: bool,
        step_ms: i64,
        lines: Vec<Line>,
    },
    Eval(Box<Eval>),
}

/// One evaluation and its expected result.
pub(crate) struct Eval {
    /// Line number, from 1.
    pub(crate) line: usize,
    pub(crate) params: Params,
    pub(crate) query: String,
    pub(crate) expected: Expected,
}

/// Parses a file.
pub(crate) fn read(name: &str, text: &str) -> Script {
    // A comment ends a block, like a blank line.
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .map(|line| if line.starts_with('#') { "" } else { line })
        .collect();
    let mut commands = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let length = lines[at..].iter().take_while(|line| !line.is_empty()).count();
        if length == 0 {
            at += 1;
            continue;
        }
        let block = &lines[at..at + length];
        // `clear` is a block of its own, even without a blank line after it.
        let used = if block[0] == "clear" { 1 } else { length };
        commands.push(command(&block[..used], at + 1));
        at += used;
    }
    Script {
        name: name.to_owned(),
        commands,
    }
}

fn command(block: &[&str], line: usize) -> Command {
    let unknown = || Command::Unknown {
        line,
        text: block[0].to_owned(),
    };
    let (word, rest) = block[0].split_once(char::is_whitespace).unwrap_or((block[0], ""));
    match word {
        "clear" => Command::Clear,
        "load" | "load_with_nhcb" => match parse_duration_ms(rest.trim()) {
            Ok(step_ms) => Command::Load {
                with_nhcb: word == "load_with_nhcb",
                step_ms,
                lines: block[1..].iter().map(|line| series::line(line)).collect(),
            },
            Err(_) => unknown(),
        },
        _ if word == "eval" || word.starts_with("eval_") => eval(
            word.trim_start_matches("eval").trim_start_matches('_'),
            rest,
            block,
            line,
        )
        .unwrap_or_else(unknown),
        _ => unknown(),
    }
}

fn eval(kind: &str, rest: &str, block: &[&str], line: usize) -> Option<Command> {
    let (params, query) = match rest.trim().split_once(char::is_whitespace)? {
        ("instant", rest) => {
            let (time, query) = rest
                .trim()
                .strip_prefix("at")?
                .trim()
                .split_once(char::is_whitespace)?;
            (Params::instant(time_ms(time)?), query)
        }
        ("range", rest) => {
            let (start, rest) = rest.trim().strip_prefix("from")?.split_once(" to ")?;
            let (end, rest) = rest.split_once(" step ")?;
            let (step, query) = rest.trim().split_once(char::is_whitespace)?;
            (
                Params::range(time_ms(start.trim())?, time_ms(end.trim())?, time_ms(step)?),
                query,
            )
        }
        _ => return None,
    };
    let expected = Expected::read(kind, &block[1..]);
    Some(Command::Eval(Box::new(Eval {
        line,
        params,
        query: query.trim().to_owned(),
        expected,
    })))
}

/// Parses a time since the start of the test, in milliseconds. It may be negative.
pub(crate) fn time_ms(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(text) => parse_duration_ms(text).ok().map(|ms| -ms),
        None => parse_duration_ms(text).ok(),
    }
}
