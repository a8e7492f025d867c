//! How far something is, on one line of the terminal; nothing where nobody watches.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use domain::bytes::DisplayBytes;

/// How often the line changes.
const EVERY: Duration = Duration::from_millis(200);

/// One line, written over and over.
pub(super) struct Progress {
    shown: bool,
    began: Instant,
    told: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            began: Instant::now(),
            told: None,
        }
    }

    /// Bytes so far, of how many if that is known.
    pub(super) fn bytes(&mut self, done: u64, of: Option<u64>) {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = DisplayBytes((done as f64 / seconds) as u64);
        let of = of.map_or(String::new(), |of| format!(" of {}", DisplayBytes(of)));
        self.line(&format!("{}{of}, {rate}/s", DisplayBytes(done)));
    }

    /// Things so far.
    pub(super) fn things(&mut self, what: &str, done: u64, of: u64) {
        self.line(&format!("{what}: {done} of {of}"));
    }

    fn line(&mut self, text: &str) {
        if !self.shown || self.told.is_some_and(|told| told.elapsed() < EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        eprint!("\r\x1b[K{text}");
        let _cannot_be_shown = std::io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.told.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
