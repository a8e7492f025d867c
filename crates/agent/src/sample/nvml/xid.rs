//! Xid errors and the driver's newer events, on a thread that waits for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::xid::Recovery;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::raw_events::{Listener, RawEvent, XID};
use crate::sample::xid::Sightings;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// How long one wait lasts, in milliseconds. The thread ends within this time.
const WAIT_MS: u32 = 1_000;
/// The minimum time between two reports of the same event of the same GPU. Many equal events are one problem.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// `GET_GPU_RECOVERY_ACTION` changed. The data is the new action.
const RECOVERY: u64 = 0x8000;

/// Event types since NVML 13 that mean more than a number: bit, kind of the agent's event, severity, meaning.
const NEWER: [(u64, &str, Severity, &str); 6] = [
    (
        0x200,
        "gpu_ecc_storm",
        Severity::Warning,
        "corrects memory errors at an unusually high rate",
    ),
    (
        0x400,
        "gpu_memory_retired",
        Severity::Warning,
        "will retire a failing part of its memory at the next reset",
    ),
    (
        0x800,
        "gpu_memory_retirement_failed",
        Severity::Critical,
        "could not retire a failing part of its memory; replace the GPU",
    ),
    (
        0x1000,
        "gpu_poison",
        Severity::Warning,
        "found corrupted data and stopped the program that used it",
    ),
    (
        0x2000,
        "gpu_poison_fatal",
        Severity::Critical,
        "found corrupted data that was not contained; reset the GPU",
    ),
    (
        0x4000,
        "gpu_unavailable",
        Severity::Critical,
        "is no longer available",
    ),
];

/// Stops the thread when dropped.
pub(super) struct Watch(Arc<AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread. If it cannot run (no events on this system, no more threads), the agent continues without it.
pub(super) fn watch(nvml: Arc<Nvml>, sightings: Sightings, events: Events) -> Watch {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    let body = move || {
        let watcher = Watcher {
            sightings,
            events,
            reported: HashMap::new(),
        };
        if let Err(error) = watcher.run(&nvml, &stop) {
            tracing::warn!(%error, "NVML reports no events on this node; Xid errors come only from the kernel log");
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("xid".into())
        .stack_size(256 << 10)
        .spawn(body)
    {
        tracing::warn!(%error, "cannot start the thread that waits for Xid errors");
    }
    Watch(stopped)
}

struct Watcher {
    sightings: Sightings,
    events: Events,
    reported: HashMap<(u32, u64), Instant>,
}

impl Watcher {
    fn run(mut self, nvml: &Nvml, stopped: &AtomicBool) -> Result<(), NvmlError> {
        let newer = NEWER.iter().fold(XID | RECOVERY, |all, (bit, ..)| all | bit);
        let listener = Listener::register(nvml, newer)?;
        while !stopped.load(Ordering::Relaxed) {
            match listener.wait(WAIT_MS) {
                Ok(event) => self.handle(event),
                Err(NvmlError::Timeout) => {}
                Err(error @ (NvmlError::FailedToLoadSymbol(_) | NvmlError::NotSupported)) => {
                    return Err(error);
                }
                // If a GPU is lost, every wait fails immediately.
                Err(_) => thread::sleep(Duration::from_millis(WAIT_MS.into())),
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: RawEvent) {
        if event.kind == XID {
            let xid = u32::try_from(event.data).unwrap_or(999);
            return self.sightings.record_xid(event.gpu, xid, event.instance);
        }
        let now = Instant::now();
        let reported = self
            .reported
            .insert((event.gpu, event.kind ^ event.data << 16), now);
        if reported.is_some_and(|reported| now.duration_since(reported) < REPORT_INTERVAL) {
            return;
        }
        if let Some((kind, severity, words)) = describe(event) {
            let message = format!("GPU {} {words}", event.gpu);
            self.events.report(Event {
                gpu: Some(event.gpu),
                ..Event::new(now_ms(), severity, kind, message)
            });
        }
    }
}

/// Returns the kind, the severity and the end of the message.
fn describe(event: RawEvent) -> Option<(&'static str, Severity, String)> {
    if event.kind == RECOVERY {
        let recovery = Recovery::from_number(event.data);
        let action = recovery.action();
        return Some(match recovery {
            Recovery::None => (
                "gpu_recovery_action",
                Severity::Info,
                "no longer needs recovery".to_owned(),
            ),
            _ => (
                "gpu_recovery_action",
                Severity::Critical,
                format!("needs recovery. {}: {}", action.word(), action.advice()),
            ),
        });
    }
    let (_, kind, severity, words) = NEWER.iter().find(|(bit, ..)| *bit == event.kind)?;
    Some((kind, *severity, (*words).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: u64, data: u64) -> RawEvent {
        RawEvent {
            gpu: 0,
            kind,
            data,
            instance: None,
        }
    }

    #[test]
    fn newer_events_are_described_and_unknown_ones_are_skipped() {
        let described = |kind, data| describe(raw(kind, data)).map(|(kind, severity, _)| (kind, severity));
        assert_eq!(described(0x200, 0), Some(("gpu_ecc_storm", Severity::Warning)));
        assert_eq!(
            described(0x4000, 0),
            Some(("gpu_unavailable", Severity::Critical))
        );
        assert_eq!(
            described(RECOVERY, 0),
            Some(("gpu_recovery_action", Severity::Info))
        );
        assert_eq!(
            described(RECOVERY, 2),
            Some(("gpu_recovery_action", Severity::Critical))
        );
        assert_eq!(described(0x10_0000, 0), None);
        let described = describe(raw(RECOVERY, 2));
        assert!(described.is_some_and(|(_, _, words)| words.contains("RESTART_BM")));
    }
}
