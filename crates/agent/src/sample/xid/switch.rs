//! Errors of the node's NVSwitches (SXid). Only the kernel log has them, so one line is one error.

use std::collections::HashMap;
use std::fmt::Write;

use domain::event::{Event, Severity};
use domain::sxid::{Assessment, assess, find};
use domain::time::TimestampMs;

use super::Counters;
use super::report::severity_word;
use crate::sample::kernel_log::SwitchError;
use crate::sample::series::series;

/// How often a continuing error is reported again.
const REPORT_INTERVAL_MS: i64 = 60_000;
/// The maximum number of switches and SXids kept, more than a failing fabric has. When it is reached, all are removed and may be reported
/// again.
const REMEMBERED_MAX: usize = 512;

/// What was reported about the switches.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// By switch and SXid: when it was last reported, its severity, and the number of errors since then.
    reported: HashMap<(u32, u32), (TimestampMs, Severity, u32)>,
}

impl Switches {
    /// Counts an error. Returns an event about it, unless the same error was reported recently.
    pub(super) fn take(
        &mut self,
        at_ms: TimestampMs,
        error: &SwitchError,
        counters: &mut Counters,
    ) -> Option<Event> {
        let assessment = assess(error.sxid, error.log_severity);
        let switch = error.switch.to_string();
        counters.add(error.sxid, 1.0, |sxid| {
            let labels = [
                ("nvswitch", switch.as_str()),
                ("sxid", sxid),
                ("severity", severity_word(assessment.severity)),
                ("action", assessment.action.word()),
            ];
            series("nvswitch_sxid_errors_total", &labels)
        });
        let suppressed = self.begin_report(at_ms, error, assessment.severity)?;
        Some(event(at_ms, error, assessment, suppressed))
    }

    /// Returns the number of earlier errors that the event also represents, or `None` if no event should be written.
    fn begin_report(&mut self, at_ms: TimestampMs, error: &SwitchError, severity: Severity) -> Option<u32> {
        let key = (error.switch, error.sxid);
        if let Some((then, worst, suppressed)) = self.reported.get_mut(&key)
            && at_ms - *then < REPORT_INTERVAL_MS
            && *worst >= severity
        {
            *suppressed += 1;
            return None;
        }
        if self.reported.len() >= REMEMBERED_MAX && !self.reported.contains_key(&key) {
            self.reported.clear();
        }
        let before = self.reported.insert(key, (at_ms, severity, 0));
        Some(before.map_or(0, |(.., suppressed)| suppressed))
    }
}

fn event(at_ms: TimestampMs, error: &SwitchError, assessment: Assessment, suppressed: u32) -> Event {
    let meaning = find(error.sxid).map_or("not in NVIDIA's list", |entry| entry.meaning);
    let mut message = format!(
        "NVSwitch {} at {} reports SXid {}: {meaning}",
        error.switch, error.pci, error.sxid
    );
    let mut add = |words: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = message.write_fmt(words);
    };
    if let Some(link) = error.link {
        add(format_args!(", on its port {link}"));
    }
    if suppressed > 0 {
        add(format_args!("; {} times", suppressed + 1));
    }
    let action = assessment.action;
    add(format_args!(". {}: {}", action.word(), action.advice()));
    if !error.words.is_empty() {
        add(format_args!(". The driver says: {}", error.words));
    }
    Event::new(at_ms, assessment.severity, "sxid", message)
}
