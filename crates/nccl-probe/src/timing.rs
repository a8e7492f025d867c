//! The operations whose kernels are timed by the GPU. Each has a slot until all its channels have reported.
//!
//! ```text
//! operation starts ──▶ claimed ── a channel starts: earliest start ──▶ … ── the last channel stops: latest stop ──▶ finished, free
//!                         └─ not all channels report in time: finished with those that did, or unmeasured; free
//! ```
//! A handle contains the slot and the operation that uses it, so a late handle, or one from another process, changes nothing. The time of
//! an operation is its latest stop minus its earliest start, in nanoseconds of the GPU's own timer, whose resolution is about 1,024.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The maximum number of operations timed at once. A stream has a few dozen that have not run yet, and a process has a few streams. Further
/// operations are not timed, but counted.
pub(crate) const TIMINGS_MAX: usize = 1_024;
/// The number of slots that are checked for a free one.
const LOOKS_MAX: usize = 8;
/// How long after its start an operation is finished with the channels that reported, if some are missing.
const CHANNELS_TIMEOUT_NS: u64 = 2_000_000_000;
/// How long an operation may wait for its kernel: longer than any time-out of a process group.
const KERNEL_TIMEOUT_NS: u64 = 3_600_000_000_000;
/// The longest valid duration of a kernel. A longer one means that its timers are broken.
const DURATION_NS_MAX: u64 = 3_600_000_000_000;

const TAG_BITS: u32 = 2;
const PLACE_BITS: u32 = TIMINGS_MAX.trailing_zeros();
const TAG_OPERATION: usize = 1;
const TAG_KERNEL: usize = 2;

/// All slots.
#[derive(Debug)]
pub(crate) struct Timings {
    slots: Box<[Slot]>,
    owner: AtomicU64,
    hint: AtomicU32,
}

#[derive(Debug, Default)]
struct Slot {
    /// 0 if the slot is free, otherwise a number that is unique among all operations.
    owner: AtomicU64,
    tag: AtomicU64,
    sequence: AtomicU64,
    bytes: AtomicU64,
    enqueued_ns: AtomicU64,
    start_min_ns: AtomicU64,
    stop_max_ns: AtomicU64,
    started: AtomicU32,
    stopped: AtomicU32,
    channels: AtomicU32,
    /// True if a timer was not written.
    broken: AtomicBool,
}

/// An operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    /// The communicator and the function; opaque here.
    pub(crate) tag: u64,
    pub(crate) sequence: u64,
    pub(crate) bytes: u64,
    pub(crate) enqueued_ns: u64,
}

/// How the timing of an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The operation, and how long it ran on the GPU in nanoseconds.
    Measured(Timed, u64),
    /// A timer was missing or invalid.
    Unmeasured,
}

impl Timings {
    /// Creates free slots. `owner` continues the count after a fork.
    pub(crate) fn new(owner: u64) -> Self {
        Self {
            slots: (0..TIMINGS_MAX).map(|_| Slot::default()).collect(),
            owner: AtomicU64::new(owner),
            hint: AtomicU32::new(0),
        }
    }

    /// Takes a slot. Returns the handle of the operation, or `None` if there is no free slot.
    pub(crate) fn claim(&self, timed: Timed, channels: u8) -> Option<usize> {
        let owner = self.owner.fetch_add(1, Ordering::Relaxed) + 1;
        for _ in 0..LOOKS_MAX {
            let place = self.hint.fetch_add(1, Ordering::Relaxed) as usize % TIMINGS_MAX;
            let slot = &self.slots[place];
            let taken = slot
                .owner
                .compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                slot.begin(timed, channels);
                slot.owner.store(owner, Ordering::Release);
                return Some((owner as usize) << (PLACE_BITS + TAG_BITS) | place << TAG_BITS | TAG_OPERATION);
            }
        }
        None
    }

    /// Records the start of a channel of an operation's kernel. Returns the handle of the channel.
    pub(crate) fn channel_started(&self, operation: usize, timer_ns: u64) -> Option<usize> {
        let (slot, _) = self.slot(operation, TAG_OPERATION)?;
        slot.started.fetch_add(1, Ordering::AcqRel);
        if timer_ns == 0 {
            slot.broken.store(true, Ordering::Relaxed);
        } else {
            slot.start_min_ns.fetch_min(timer_ns, Ordering::AcqRel);
        }
        Some(operation & !TAG_OPERATION | TAG_KERNEL)
    }

    /// Records the GPU's time at which a channel stopped.
    pub(crate) fn channel_stop_time(&self, channel: usize, timer_ns: u64) {
        let Some((slot, _)) = self.slot(channel, TAG_KERNEL) else {
            return;
        };
        if timer_ns == 0 {
            slot.broken.store(true, Ordering::Relaxed);
        } else {
            slot.stop_max_ns.fetch_max(timer_ns, Ordering::AcqRel);
        }
    }

    /// Records that a channel has stopped. Returns the outcome if it was the last channel.
    pub(crate) fn channel_stopped(&self, channel: usize) -> Option<Outcome> {
        let (slot, owner) = self.slot(channel, TAG_KERNEL)?;
        let stopped = slot.stopped.fetch_add(1, Ordering::AcqRel) + 1;
        if stopped >= slot.channels.load(Ordering::Relaxed) {
            slot.finish(owner)
        } else {
            None
        }
    }

    /// Finishes operations that have waited too long. Call it periodically.
    pub(crate) fn tidy(&self, now_ns: u64, mut take: impl FnMut(Outcome)) {
        for slot in &self.slots {
            let owner = slot.owner.load(Ordering::Acquire);
            if owner == 0 || owner == u64::MAX {
                continue;
            }
            let waited_ns = now_ns.saturating_sub(slot.enqueued_ns.load(Ordering::Relaxed));
            let (started, stopped) = (
                slot.started.load(Ordering::Acquire),
                slot.stopped.load(Ordering::Acquire),
            );
            let all_reported = started > 0 && started == stopped;
            if (all_reported && waited_ns > CHANNELS_TIMEOUT_NS) || waited_ns > KERNEL_TIMEOUT_NS {
                slot.finish(owner).into_iter().for_each(&mut take);
            }
        }
    }

    fn slot(&self, handle: usize, tag: usize) -> Option<(&Slot, u64)> {
        if handle & ((1 << TAG_BITS) - 1) != tag {
            return None;
        }
        let slot = &self.slots[(handle >> TAG_BITS) & (TIMINGS_MAX - 1)];
        let owner = (handle >> (PLACE_BITS + TAG_BITS)) as u64;
        (owner != 0 && slot.owner.load(Ordering::Acquire) == owner).then_some((slot, owner))
    }
}

impl Slot {
    fn begin(&self, timed: Timed, channels: u8) {
        self.tag.store(timed.tag, Ordering::Relaxed);
        self.sequence.store(timed.sequence, Ordering::Relaxed);
        self.bytes.store(timed.bytes, Ordering::Relaxed);
        self.enqueued_ns.store(timed.enqueued_ns, Ordering::Relaxed);
        self.start_min_ns.store(u64::MAX, Ordering::Relaxed);
        self.stop_max_ns.store(0, Ordering::Relaxed);
        self.started.store(0, Ordering::Relaxed);
        self.stopped.store(0, Ordering::Relaxed);
        self.channels.store(channels.max(1).into(), Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }

    /// Reads the outcome and frees the slot. Only one caller gets the outcome.
    fn finish(&self, owner: u64) -> Option<Outcome> {
        self.owner
            .compare_exchange(owner, u64::MAX, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        let timed = Timed {
            tag: self.tag.load(Ordering::Relaxed),
            sequence: self.sequence.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            enqueued_ns: self.enqueued_ns.load(Ordering::Relaxed),
        };
        let (start, stop) = (
            self.start_min_ns.load(Ordering::Relaxed),
            self.stop_max_ns.load(Ordering::Relaxed),
        );
        let broken = self.broken.load(Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
        let duration_ns = stop
            .checked_sub(start)
            .filter(|ns| (1..DURATION_NS_MAX).contains(ns));
        Some(match duration_ns {
            Some(ns) if !broken => Outcome::Measured(timed, ns),
            _ => Outcome::Unmeasured,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const TIMED: Timed = Timed {
        tag: 7,
        sequence: 3,
        bytes: 1 << 20,
        enqueued_ns: 1_000,
    };

    #[test]
    fn the_time_is_from_the_first_start_to_the_last_stop() {
        let timings = Timings::new(0);
        let operation = timings.claim(TIMED, 2).unwrap();
        let first = timings.channel_started(operation, 5_000).unwrap();
        let second = timings.channel_started(operation, 4_000).unwrap();
        timings.channel_stop_time(first, 9_000);
        assert_eq!(timings.channel_stopped(first), None);
        timings.channel_stop_time(second, 8_000);
        assert_eq!(
            timings.channel_stopped(second),
            Some(Outcome::Measured(TIMED, 5_000))
        );
        // Reports after the end have no effect.
        assert_eq!(timings.channel_started(operation, 1), None);
        assert_eq!(timings.channel_stopped(second), None);
    }

    #[test]
    fn a_timer_that_was_never_written_is_no_measurement() {
        let timings = Timings::new(0);
        let operation = timings.claim(TIMED, 1).unwrap();
        let channel = timings.channel_started(operation, 5_000).unwrap();
        timings.channel_stop_time(channel, 0);
        assert_eq!(timings.channel_stopped(channel), Some(Outcome::Unmeasured));
    }

    #[test]
    fn fewer_channels_than_announced_are_waited_for_and_then_enough() {
        let timings = Timings::new(0);
        let operation = timings.claim(TIMED, 4).unwrap();
        let channel = timings.channel_started(operation, 5_000).unwrap();
        timings.channel_stop_time(channel, 6_000);
        assert_eq!(timings.channel_stopped(channel), None);
        let mut outcomes = Vec::new();
        timings.tidy(TIMED.enqueued_ns + CHANNELS_TIMEOUT_NS, |outcome| {
            outcomes.push(outcome)
        });
        assert_eq!(outcomes, []);
        timings.tidy(TIMED.enqueued_ns + CHANNELS_TIMEOUT_NS + 1, |outcome| {
            outcomes.push(outcome)
        });
        assert_eq!(outcomes, [Outcome::Measured(TIMED, 1_000)]);
    }

    #[test]
    fn foreign_handles_change_nothing_and_a_full_pool_is_reported() {
        let timings = Timings::new(0);
        for handle in [0, 1, 2, 3, usize::MAX, 0xdead_beef] {
            assert_eq!(timings.channel_started(handle, 1), None);
            assert_eq!(timings.channel_stopped(handle), None);
        }
        let claimed = (0..TIMINGS_MAX).filter_map(|_| timings.claim(TIMED, 1)).count();
        assert_eq!((claimed, timings.claim(TIMED, 1)), (TIMINGS_MAX, None));
    }
}
