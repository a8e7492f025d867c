//! Describes an Xid in an event.

use std::fmt::Write;

use domain::event::{Event, Severity};
use domain::xid::{Assessment, LogDetails, find};

use super::ErrorLocation;
use super::ledger::Settled;

/// Returns the value of the label `severity`.
pub(super) fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// Returns the event about an error. `suppressed` is the number of earlier errors that were not reported.
pub(super) fn event(
    settled: &Settled,
    assessment: &Assessment,
    run: Option<String>,
    suppressed: u32,
) -> Event {
    let gpu = match settled.location {
        ErrorLocation::Gpu(index) => Some(index),
        ErrorLocation::Device(_) => None,
    };
    let message = message(settled, assessment, run.as_deref(), suppressed);
    Event {
        gpu,
        run,
        ..Event::new(settled.at_ms, assessment.severity, "xid", message)
    }
}

fn message(settled: &Settled, assessment: &Assessment, run: Option<&str>, suppressed: u32) -> String {
    let meaning = find(settled.xid).map_or("not in NVIDIA's catalogue", |entry| entry.meaning);
    let mut text = match settled.location {
        ErrorLocation::Gpu(index) => format!("GPU {index} reports Xid {}: {meaning}", settled.xid),
        ErrorLocation::Device(pci) => format!("the GPU at {pci} reports Xid {}: {meaning}", settled.xid),
    };
    let mut add = |words: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = text.write_fmt(words);
    };
    if let Some(instance) = settled.details.instance {
        add(format_args!(", in MIG instance {instance}"));
    }
    if let LogDetails::Nvlink(fault) = &settled.details.log_details {
        let link = fault
            .link
            .map(|link| format!(" of link {link}"))
            .unwrap_or_default();
        add(format_args!(
            ", {}{link}, sub-code {}",
            fault.unit, fault.sub_code
        ));
    }
    if !assessment.why.is_empty() {
        add(format_args!("; {}", assessment.why));
    }
    if settled.times + suppressed > 1 {
        add(format_args!("; {} times", settled.times + suppressed));
    }
    let process = settled.details.process.as_deref().unwrap_or("process");
    match (settled.details.pid, run) {
        (Some(pid), Some(run)) => add(format_args!("; {process} (pid {pid}) of run {run}")),
        (Some(pid), None) => add(format_args!("; {process} (pid {pid})")),
        (None, Some(run)) => add(format_args!("; run {run} is on this GPU")),
        (None, None) => {}
    }
    let action = assessment.action;
    add(format_args!(". {}: {}", action.word(), action.advice()));
    if !settled.details.words.is_empty() {
        add(format_args!(". The driver says: {}", settled.details.words));
    }
    text
}
