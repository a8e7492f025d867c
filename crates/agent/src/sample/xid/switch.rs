//! Errors of the node's NVSwitches (SXid). Only the kernel's log has them, so one line is one error.

use std::collections::HashMap;
use std::fmt::Write;

use domain::event::{Event, Severity};
use domain::sxid::{Verdict, find, judge};
use domain::time::TimestampMs;

use super::Counters;
use super::report::severity_word;
use crate::sample::kernel_log::SwitchError;
use crate::sample::series::series;

/// How often an error that goes on is told again.
const TELL_AGAIN_MS: i64 = 60_000;
/// Switches and numbers remembered; more than a sick fabric has. Beyond, all are forgotten, and told once more.
const REMEMBERED_MAX: usize = 512;

/// What was told of the switches.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// By switch and number: when it was told last, how bad it was, and how many came since.
    told: HashMap<(u32, u32), (TimestampMs, Severity, u32)>,
}

impl Switches {
    /// Counts an error; gives the event about it, unless the same was told just now.
    pub(super) fn take(
        &mut self,
        at_ms: TimestampMs,
        error: &SwitchError,
        counters: &mut Counters,
    ) -> Option<Event> {
        let verdict = judge(error.sxid, error.said);
        let switch = error.switch.to_string();
        counters.add(error.sxid, 1.0, |sxid| {
            let labels = [
                ("nvswitch", switch.as_str()),
                ("sxid", sxid),
                ("severity", severity_word(verdict.severity)),
                ("action", verdict.action.word()),
            ];
            series("nvswitch_sxid_errors_total", &labels)
        });
        let folded = self.worth_telling(at_ms, error, verdict.severity)?;
        Some(event(at_ms, error, verdict, folded))
    }

    /// How many errors an event stands for beside itself; `None` for none.
    fn worth_telling(&mut self, at_ms: TimestampMs, error: &SwitchError, severity: Severity) -> Option<u32> {
        let key = (error.switch, error.sxid);
        if let Some((then, worst, folded)) = self.told.get_mut(&key)
            && at_ms - *then < TELL_AGAIN_MS
            && *worst >= severity
        {
            *folded += 1;
            return None;
        }
        if self.told.len() >= REMEMBERED_MAX && !self.told.contains_key(&key) {
            self.told.clear();
        }
        let before = self.told.insert(key, (at_ms, severity, 0));
        Some(before.map_or(0, |(.., folded)| folded))
    }
}

fn event(at_ms: TimestampMs, error: &SwitchError, verdict: Verdict, folded: u32) -> Event {
    let meaning = find(error.sxid).map_or("not in NVIDIA's list", |entry| entry.meaning);
    let mut message = format!(
        "NVSwitch {} at {} reports SXid {}: {meaning}",
        error.switch, error.pci, error.sxid
    );
    let mut add = |words: std::fmt::Arguments<'_>| {
        // Writing to a text cannot fail.
        let _ = message.write_fmt(words);
    };
    if let Some(link) = error.link {
        add(format_args!(", on its port {link}"));
    }
    if folded > 0 {
        add(format_args!("; {} times", folded + 1));
    }
    let action = verdict.action;
    add(format_args!(". {}: {}", action.word(), action.advice()));
    if !error.words.is_empty() {
        add(format_args!(". The driver says: {}", error.words));
    }
    Event {
        at_ms,
        severity: verdict.severity,
        kind: "sxid".to_owned(),
        node: None,
        gpu: None,
        run: None,
        message,
    }
}
