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

/// How long one wait lasts; the thread ends within this time.
const WAIT_MS: u32 = 1_000;
/// How often the same event of the same GPU is told: a storm is one trouble.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// `GET_GPU_RECOVERY_ACTION` changed, with the new one as data.
const RECOVERY: u64 = 0x8000;

/// Types since NVML 13 that say more than a number: bit, kind of our event, severity, meaning.
const NEWER: [(u64, &str, Severity, &str); 6] = [
    (
        0x200,
        "gpu_ecc_storm",
        Severity::Warning,
        "corrects memory errors at a rate that calls for attention",
    ),
    (
        0x400,
        "gpu_memory_retired",
        Severity::Warning,
        "takes a failing part of its memory out of use at the next reset",
    ),
    (
        0x800,
        "gpu_memory_retirement_failed",
        Severity::Critical,
        "could not take a failing part of its memory out of use; have it replaced",
    ),
    (
        0x1000,
        "gpu_poison",
        Severity::Warning,
        "met damaged data and stopped the program that used it",
    ),
    (
        0x2000,
        "gpu_poison_fatal",
        Severity::Critical,
        "met damaged data that was not contained; reset it",
    ),
    (
        0x4000,
        "gpu_unavailable",
        Severity::Critical,
        "is not available any more",
    ),
];

/// Ends the thread when dropped.
pub(super) struct Watch(Arc<AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread. Without it (no events on this system, no thread to be had) all else goes on.
pub(super) fn watch(nvml: Arc<Nvml>, sightings: Sightings, events: Events) -> Watch {
    let ended = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&ended);
    let body = move || {
        let watcher = Watcher {
            sightings,
            events,
            told: HashMap::new(),
        };
        if let Err(error) = watcher.run(&nvml, &ending) {
            tracing::warn!(%error, "NVML tells no events on this node; Xid errors come from the kernel's log alone");
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("xid".into())
        .stack_size(256 << 10)
        .spawn(body)
    {
        tracing::warn!(%error, "cannot start the thread that waits for Xid errors");
    }
    Watch(ended)
}

struct Watcher {
    sightings: Sightings,
    events: Events,
    told: HashMap<(u32, u64), Instant>,
}

impl Watcher {
    fn run(mut self, nvml: &Nvml, ended: &AtomicBool) -> Result<(), NvmlError> {
        let newer = NEWER.iter().fold(XID | RECOVERY, |all, (bit, ..)| all | bit);
        let listener = Listener::register(nvml, newer)?;
        while !ended.load(Ordering::Relaxed) {
            match listener.wait(WAIT_MS) {
                Ok(event) => self.happened(event),
                Err(NvmlError::Timeout) => {}
                Err(error @ (NvmlError::FailedToLoadSymbol(_) | NvmlError::NotSupported)) => {
                    return Err(error);
                }
                // A lost GPU makes the wait fail at once, again and again.
                Err(_) => thread::sleep(Duration::from_millis(WAIT_MS.into())),
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: RawEvent) {
        if event.kind == XID {
            let xid = u32::try_from(event.data).unwrap_or(999);
            return self.sightings.saw(event.gpu, xid, event.instance);
        }
        let now = Instant::now();
        let told = self.told.insert((event.gpu, event.kind ^ event.data << 16), now);
        if told.is_some_and(|told| now.duration_since(told) < TELL_AGAIN) {
            return;
        }
        if let Some((kind, severity, words)) = in_words(event) {
            self.events.report(Event {
                at_ms: now_ms(),
                severity,
                kind: kind.to_owned(),
                node: None,
                gpu: Some(event.gpu),
                run: None,
                message: format!("GPU {} {words}", event.gpu),
            });
        }
    }
}

/// Kind, severity and the rest of a sentence.
fn in_words(event: RawEvent) -> Option<(&'static str, Severity, String)> {
    if event.kind == RECOVERY {
        let recovery = Recovery::from_number(event.data);
        let action = recovery.action();
        return Some(match recovery {
            Recovery::None => (
                "gpu_recovery_action",
                Severity::Info,
                "needs no recovery any more".to_owned(),
            ),
            _ => (
                "gpu_recovery_action",
                Severity::Critical,
                format!("asks for recovery. {}: {}", action.word(), action.advice()),
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
    fn newer_events_are_said_in_words_and_unknown_ones_are_not_invented() {
        let said = |kind, data| in_words(raw(kind, data)).map(|(kind, severity, _)| (kind, severity));
        assert_eq!(said(0x200, 0), Some(("gpu_ecc_storm", Severity::Warning)));
        assert_eq!(said(0x4000, 0), Some(("gpu_unavailable", Severity::Critical)));
        assert_eq!(said(RECOVERY, 0), Some(("gpu_recovery_action", Severity::Info)));
        assert_eq!(
            said(RECOVERY, 2),
            Some(("gpu_recovery_action", Severity::Critical))
        );
        assert_eq!(said(0x10_0000, 0), None);
        let asked = in_words(raw(RECOVERY, 2));
        assert!(asked.is_some_and(|(_, _, words)| words.contains("RESTART_BM")));
    }
}
