//! An Xid in words.

use std::fmt::Write;

use domain::event::{Event, Severity};
use domain::xid::{Said, Verdict, find};

use super::Place;
use super::ledger::Settled;

/// The label `severity`.
pub(super) fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// One line of the event log. `folded` earlier ones were not told.
pub(super) fn event(settled: &Settled, verdict: &Verdict, run: Option<String>, folded: u32) -> Event {
    let gpu = match settled.place {
        Place::Gpu(index) => Some(index),
        Place::Device(_) => None,
    };
    Event {
        at_ms: settled.at_ms,
        severity: verdict.severity,
        kind: "xid".to_owned(),
        node: None,
        gpu,
        message: message(settled, verdict, run.as_deref(), folded),
        run,
    }
}

fn message(settled: &Settled, verdict: &Verdict, run: Option<&str>, folded: u32) -> String {
    let meaning = find(settled.xid).map_or("not in NVIDIA's catalogue", |entry| entry.meaning);
    let mut text = match settled.place {
        Place::Gpu(index) => format!("GPU {index} reports Xid {}: {meaning}", settled.xid),
        Place::Device(pci) => format!("the GPU at {pci} reports Xid {}: {meaning}", settled.xid),
    };
    let mut add = |words: std::fmt::Arguments<'_>| {
        // Writing to a text cannot fail.
        let _ = text.write_fmt(words);
    };
    if let Some(instance) = settled.told.instance {
        add(format_args!(", in MIG instance {instance}"));
    }
    if let Said::Nvlink(fault) = &settled.told.said {
        let link = fault
            .link
            .map(|link| format!(" of link {link}"))
            .unwrap_or_default();
        add(format_args!(
            ", {}{link}, sub-code {}",
            fault.unit, fault.sub_code
        ));
    }
    if !verdict.why.is_empty() {
        add(format_args!("; {}", verdict.why));
    }
    if settled.times + folded > 1 {
        add(format_args!("; {} times", settled.times + folded));
    }
    let process = settled.told.process.as_deref().unwrap_or("process");
    match (settled.told.pid, run) {
        (Some(pid), Some(run)) => add(format_args!("; {process} (pid {pid}) of run {run}")),
        (Some(pid), None) => add(format_args!("; {process} (pid {pid})")),
        (None, Some(run)) => add(format_args!("; run {run} is on this GPU")),
        (None, None) => {}
    }
    let action = verdict.action;
    add(format_args!(". {}: {}", action.word(), action.advice()));
    if !settled.told.words.is_empty() {
        add(format_args!(". The driver says: {}", settled.told.words));
    }
    text
}
