//! What a person sees while a long step runs: one line when it starts, one now and then, one when it ends.
//!
//! Lines go to standard error; standard output keeps what may be piped on (the table of results).

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Instant;

/// Seconds since the program started, so that lines of concurrent steps can be put in order.
fn clock() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// One line about a step. A broken terminal is no reason to stop working.
pub(crate) fn say(step: &str, text: &str) {
    writeln!(io::stderr(), "{:>7.1}s {step:<14} {text}", clock()).ok();
}

/// A block of text under a heading, such as a failed child's last words.
pub(crate) fn block(heading: &str, text: &str) {
    let mut out = io::stderr().lock();
    writeln!(out, "──── {heading}").ok();
    writeln!(out, "{}", text.trim_end()).ok();
    writeln!(out, "────").ok();
}

/// A result, on standard output.
pub(crate) fn result(text: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").ok();
    out.flush().ok();
}

/// Why the whole command ends.
pub(crate) fn failure(error: &anyhow::Error) {
    writeln!(io::stderr(), "error: {error:#}").ok();
}
