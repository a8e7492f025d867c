//! Progress output of long steps: one line at the start, one from time to time, one at the end.
//!
//! Progress goes to standard error. Standard output contains only results that may be piped, such as the table of results.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

/// Seconds since the program started, so that lines of concurrent steps can be ordered.
fn clock() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Prints one line about a step. Ignores errors of the terminal.
pub(crate) fn say(step: &str, text: &str) {
    writeln!(io::stderr(), "{:>7.1}s {step:<14} {text}", clock()).ok();
}

/// Prints a block of text under a heading, such as the end of a failed child's log.
pub(crate) fn block(heading: &str, text: &str) {
    let mut out = io::stderr().lock();
    writeln!(out, "──── {heading}").ok();
    writeln!(out, "{}", text.trim_end()).ok();
    writeln!(out, "────").ok();
}

/// Prints a result on standard output.
pub(crate) fn result(text: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").ok();
    out.flush().ok();
}

/// Prints why the whole command failed.
pub(crate) fn failure(error: &anyhow::Error) {
    writeln!(io::stderr(), "error: {error:#}").ok();
}

/// Returns the exit code of a command whose checks passed or failed.
pub(crate) fn exit_code(passed: bool) -> ExitCode {
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
