//! Shows progress on one line of the terminal. Shows nothing if stderr is not a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use domain::bytes::DisplayBytes;

/// Minimum time between two updates of the line.
const EVERY: Duration = Duration::from_millis(200);

/// A line that is overwritten by each update.
pub(super) struct Progress {
    shown: bool,
    began: Instant,
    last_update: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            began: Instant::now(),
            last_update: None,
        }
    }

    /// Shows the number of bytes, and the total if it is known.
    pub(super) fn bytes(&mut self, done: u64, of: Option<u64>) {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = DisplayBytes((done as f64 / seconds) as u64);
        let of = of.map_or(String::new(), |of| format!(" of {}", DisplayBytes(of)));
        self.line(&format!("{}{of}, {rate}/s", DisplayBytes(done)));
    }

    /// Shows how many of the things named `what` are done.
    pub(super) fn things(&mut self, what: &str, done: u64, of: u64) {
        self.line(&format!("{what}: {done} of {of}"));
    }

    fn line(&mut self, text: &str) {
        if !self.shown || self.last_update.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.last_update = Some(Instant::now());
        eprint!("\r\x1b[K{text}");
        let _cannot_be_shown = std::io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last_update.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
