//! The events that the driver reports: Xids, ECC errors, recovery actions.

use super::fault::{Fault, FaultKind, MemoryKind};
use super::gpu::Gpu;

/// The bits of `nvmlEventType*`.
pub(crate) mod kind {
    pub(crate) const SINGLE_BIT_ECC: u64 = 0x1;
    pub(crate) const DOUBLE_BIT_ECC: u64 = 0x2;
    pub(crate) const PSTATE: u64 = 0x4;
    pub(crate) const XID: u64 = 0x8;
    pub(crate) const CLOCK: u64 = 0x10;
    pub(crate) const MIG_CONFIG: u64 = 0x100;
    pub(crate) const ECC_STORM: u64 = 0x200;
    pub(crate) const RECOVERY_ACTION: u64 = 0x8000;
}

/// One event of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    /// Seconds since the start.
    pub at: f64,
    pub gpu: u32,
    pub kind: u64,
    /// The Xid; 0 for other kinds.
    pub data: u64,
}

/// Returns the kinds of events that a GPU can report.
pub(crate) fn supported(gpu: &Gpu) -> u64 {
    let common = kind::XID | kind::PSTATE | kind::CLOCK | kind::RECOVERY_ACTION;
    let ecc = kind::SINGLE_BIT_ECC | kind::DOUBLE_BIT_ECC | kind::ECC_STORM;
    let with = |has: bool, kinds: u64| if has { kinds } else { 0 };
    common | with(gpu.profile.ecc, ecc) | with(!gpu.profile.mig.is_empty(), kind::MIG_CONFIG)
}

/// Returns all events that a GPU will report, in the order of time.
pub(crate) fn of(gpu: &Gpu) -> Vec<Event> {
    let fault_events = gpu.faults.iter().flat_map(|fault| of_fault(*fault));
    let partitioned = gpu
        .partitions
        .0
        .iter()
        .flat_map(|(window, _)| [window.start, window.end])
        .map(|at| (at, kind::MIG_CONFIG, 0));
    let mut events: Vec<Event> = fault_events
        .chain(partitioned)
        .filter(|(at, _, _)| at.is_finite())
        .map(|(at, kind, data)| Event {
            at,
            gpu: gpu.index,
            kind,
            data,
        })
        .collect();
    events.sort_by(|one, other| one.at.total_cmp(&other.at));
    events
}

/// Returns the time, kind and data of the events of a fault.
fn of_fault(fault: Fault) -> Vec<(f64, u64, u64)> {
    let (start, worst) = (fault.window.start, fault.uncorrectable_at());
    match fault.kind {
        FaultKind::Xid(code) => vec![(start, kind::XID, code)],
        FaultKind::Throttle(_) => vec![(start, kind::CLOCK, 0)],
        FaultKind::Ecc(MemoryKind::Dram) => vec![
            (start, kind::SINGLE_BIT_ECC, 0),
            (start + 1.0, kind::ECC_STORM, 0),
            (worst, kind::DOUBLE_BIT_ECC, 0),
            // A double-bit error, the row that it costs, and the report that the error was contained.
            (worst, kind::XID, 48),
            (worst, kind::XID, 63),
            (worst, kind::XID, 94),
            (worst, kind::RECOVERY_ACTION, 1),
        ],
        FaultKind::Ecc(MemoryKind::Sram) => vec![
            (start, kind::SINGLE_BIT_ECC, 0),
            (worst, kind::DOUBLE_BIT_ECC, 0),
            // An error in SRAM is not contained.
            (worst, kind::XID, 95),
            (worst, kind::RECOVERY_ACTION, 1),
        ],
        // NVLink errors have their own Xid.
        FaultKind::LinkDown(_) => vec![(start, kind::XID, 74)],
        _ => Vec::new(),
    }
}

/// The events that one event set requested, and the position of the next one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subscription {
    registrations: Vec<Registration>,
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct Registration {
    gpu: u32,
    kinds: u64,
    since: f64,
}

impl Subscription {
    /// Adds the events of a GPU of these kinds, from `now` on.
    pub(crate) fn register(&mut self, gpu: u32, kinds: u64, now: f64) {
        self.registrations.push(Registration {
            gpu,
            kinds,
            since: now,
        });
    }

    /// Returns the next requested event that has happened by `now`. Each event is returned once.
    pub(crate) fn take(&mut self, events: &[Event], now: f64) -> Option<Event> {
        while let Some(event) = events.get(self.next).filter(|event| event.at <= now) {
            self.next += 1;
            if self.is_registered(event) {
                return Some(*event);
            }
        }
        None
    }

    /// Returns the time from `now` until the next event, requested or not.
    pub(crate) fn until_next(&self, events: &[Event], now: f64) -> Option<f64> {
        events.get(self.next).map(|event| (event.at - now).max(0.0))
    }

    fn is_registered(&self, event: &Event) -> bool {
        let matches =
            |one: &Registration| one.gpu == event.gpu && one.kinds & event.kind != 0 && event.at > one.since;
        self.registrations.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(at: f64, gpu: u32, data: u64) -> Event {
        Event {
            at,
            gpu,
            kind: kind::XID,
            data,
        }
    }

    #[test]
    fn each_event_comes_once_in_order_and_not_early() {
        let events = [xid(10.0, 0, 48), xid(10.0, 0, 63), xid(20.0, 0, 79)];
        let mut set = Subscription::default();
        set.register(0, kind::XID, 1.0);
        let mut took = |now| set.take(&events, now).map(|event| event.data);
        assert_eq!(
            [
                took(9.0),
                took(10.0),
                took(10.0),
                took(10.0),
                took(25.0),
                took(99.0)
            ],
            [None, Some(48), Some(63), None, Some(79), None]
        );
    }

    #[test]
    fn only_what_was_asked_for_and_only_later() {
        let events = [
            xid(10.0, 0, 1),
            xid(20.0, 1, 2),
            Event {
                at: 21.0,
                gpu: 0,
                kind: kind::CLOCK,
                data: 3,
            },
            xid(22.0, 0, 4),
        ];
        let mut set = Subscription::default();
        set.register(0, kind::XID, 15.0);
        assert_eq!(set.take(&events, 30.0).map(|event| event.data), Some(4));
        assert_eq!(set.take(&events, 30.0), None);
    }
}
