//! Operations whose kernels are being timed by the GPU. Each has a slot until all its channels have reported.
//!
//! ```text
//! operation starts ──▶ claimed ── a channel starts: earliest start ──▶ … ── the last channel stops: latest stop ──▶ finished, free
//!                         └─ no report for long: what there is, or nothing; free
//! ```
//! A handle names a slot and the operation that had it, so one that comes late, or from another process, touches nothing. Time of
//! an operation is its latest stop less its earliest start, in nanoseconds of the GPU's own timer, which steps by about 1,024.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Operations timed at once: a stream holds some tens that have not run yet, a process some streams. Beyond, operations are not
/// timed, and counted.
pub(crate) const TIMINGS_MAX: usize = 1_024;
/// How many slots are looked at for a free one.
const LOOKS_MAX: usize = 8;
/// How long after the last report an operation with channels missing is finished with those that reported.
const CHANNELS_PATIENCE_NS: u64 = 2_000_000_000;
/// How long an operation may wait for its kernel at all: longer than any time-out of a process group.
const KERNEL_PATIENCE_NS: u64 = 3_600_000_000_000;
/// A kernel that ran longer than this did not: its timers are broken.
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
    /// 0 when free; else a number that no other operation has or had.
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
    /// A timer was never written.
    broken: AtomicBool,
}

/// An operation that is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    /// Whose it is and what; opaque here.
    pub(crate) tag: u64,
    pub(crate) sequence: u64,
    pub(crate) bytes: u64,
    pub(crate) enqueued_ns: u64,
}

/// How an operation's timing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It took so many nanoseconds on the GPU.
    Measured(Timed, u64),
    /// A timer was missing or made no sense.
    Unmeasured,
}

impl Timings {
    /// Free slots. `owner` is where counting goes on after a fork.
    pub(crate) fn new(owner: u64) -> Self {
        Self {
            slots: (0..TIMINGS_MAX).map(|_| Slot::default()).collect(),
            owner: AtomicU64::new(owner),
            hint: AtomicU32::new(0),
        }
    }

    /// Takes a slot; the handle for the operation, or `None` when there is no room.
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

    /// A channel of an operation's kernel began; the handle for the channel.
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

    /// The GPU's time at which a channel ended.
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

    /// A channel has ended; the outcome when it was the last.
    pub(crate) fn channel_stopped(&self, channel: usize) -> Option<Outcome> {
        let (slot, owner) = self.slot(channel, TAG_KERNEL)?;
        let stopped = slot.stopped.fetch_add(1, Ordering::AcqRel) + 1;
        if stopped >= slot.channels.load(Ordering::Relaxed) {
            slot.finish(owner)
        } else {
            None
        }
    }

    /// Finishes what has waited too long. To be called now and then.
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
            if (all_reported && waited_ns > CHANNELS_PATIENCE_NS) || waited_ns > KERNEL_PATIENCE_NS {
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

    /// Reads the outcome and frees the slot; only one caller gets it.
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
        // What comes after the end finds nobody.
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
        timings.tidy(TIMED.enqueued_ns + CHANNELS_PATIENCE_NS, |outcome| {
            outcomes.push(outcome)
        });
        assert_eq!(outcomes, []);
        timings.tidy(TIMED.enqueued_ns + CHANNELS_PATIENCE_NS + 1, |outcome| {
            outcomes.push(outcome)
        });
        assert_eq!(outcomes, [Outcome::Measured(TIMED, 1_000)]);
    }

    #[test]
    fn foreign_handles_touch_nothing_and_a_full_pool_says_so() {
        let timings = Timings::new(0);
        for handle in [0, 1, 2, 3, usize::MAX, 0xdead_beef] {
            assert_eq!(timings.channel_started(handle, 1), None);
            assert_eq!(timings.channel_stopped(handle), None);
        }
        let claimed = (0..TIMINGS_MAX).filter_map(|_| timings.claim(TIMED, 1)).count();
        assert_eq!((claimed, timings.claim(TIMED, 1)), (TIMINGS_MAX, None));
    }
}
