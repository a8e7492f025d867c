//! The probe of this process: the work of the callbacks, in safe code. It is created with the first communicator, and again in a forked
//! child that creates its own communicator.
//!
//! It is never freed, because a callback on another thread may be using it.
#![allow(unsafe_code, reason = "one pointer to memory that is never freed")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{monotonic_ns, wall_ns};
use crate::comm::Comms;
use crate::descriptor::{Abi, Operation};
use crate::function::Function;
use crate::mask::Mask;
use crate::ring::Ring;
use crate::settings::Settings;
use crate::summary::Summary;
use crate::timing::{Outcome, Timed, Timings};
use crate::version::Version;
use crate::worker;

/// The maximum number of events that wait for the plugin's thread, which works every 50 ms: 160,000 per second, ten times what the busiest
/// training starts. This takes 512 KiB. Further events are dropped and counted; totals lose nothing.
pub(crate) const EVENTS_MAX: usize = 8_192;

/// How long the end of the last communicator may wait until the last totals are sent. This is the only callback that waits.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// The arguments of `init` about a communicator; zero or empty if there are none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommInfo<'a> {
    pub(crate) abi: Abi,
    pub(crate) hash: u64,
    pub(crate) name: &'a [u8],
    pub(crate) nodes: u32,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
}

/// The state of a process.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) settings: Settings,
    pub(crate) abi: Abi,
    /// The version that NCCL reports.
    pub(crate) version: Option<Version>,
    pub(crate) comms: Comms,
    pub(crate) timings: Timings,
    pub(crate) mask: Mask,
    pub(crate) events: Ring<EVENT_WORDS>,
    /// Events lost because the ring was full.
    pub(crate) dropped: AtomicU64,
    /// Operations that should have been timed but were not: there was no slot, or a timer was not written.
    pub(crate) untimed: AtomicU64,
    pub(crate) summary: Mutex<Summary>,
}

static CURRENT: AtomicPtr<Probe> = AtomicPtr::new(std::ptr::null_mut());
/// True if the probe is switched off in this process.
static OFF: AtomicBool = AtomicBool::new(false);
/// The number of probes that this process and its ancestors have created. Each probe numbers its communicators in its own range.
static MADE: AtomicU64 = AtomicU64::new(0);
const RANGE_BITS: u32 = 32;

#[inline]
fn current() -> Option<&'static Probe> {
    // SAFETY: null, or from `Box::leak` and never freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

// === the callbacks ===

/// Handles the creation of a communicator. Returns its context, or 0 if it is not watched.
pub(crate) fn open(mask: *mut c_int, info: &CommInfo<'_>) -> usize {
    if OFF.load(Ordering::Relaxed) {
        return 0;
    }
    let Some(probe) = current().or_else(|| begin(mask, info.abi)) else {
        OFF.store(true, Ordering::Relaxed);
        return 0;
    };
    let context = probe.comms.open(info);
    if context != 0 {
        probe.mask.begin(mask);
        probe.set_timing();
    }
    context
}

/// Handles the end of a communicator.
pub(crate) fn close(context: usize) {
    let Some(probe) = current() else { return };
    if probe.comms.close(context) {
        probe.mask.end();
        // The process, and the plugin's thread with it, may end next.
        let until = Instant::now() + CLOSE_TIMEOUT;
        while Instant::now() < until {
            if let Ok(mut summary) = probe.summary.try_lock() {
                return summary.send_all(probe, until);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Handles an operation that is put into a stream. Returns its handle, or 0 if no further events about it are needed.
#[inline]
pub(crate) fn operation(context: usize, operation: &Operation) -> usize {
    let Some(probe) = current() else { return 0 };
    let Some((place, generation, comm)) = probe.comms.of(context) else {
        return 0;
    };
    let at_ns = monotonic_ns();
    comm.count(operation, at_ns);
    let origin = Origin {
        place,
        generation,
        function: operation.function,
        sequenced: operation.sequence.is_some(),
    };
    let timed = Timed {
        tag: origin.packed(),
        sequence: operation.sequence.unwrap_or(0),
        bytes: operation.bytes,
        enqueued_ns: at_ns,
    };
    if origin.sequenced {
        probe.put(&Event {
            timed,
            duration_ns: 0,
        });
    }
    if !probe.mask.times() || operation.bytes < probe.settings.timed_bytes_min {
        return 0;
    }
    let handle = probe.timings.claim(timed, operation.channels);
    if handle.is_none() {
        probe.untimed.fetch_add(1, Ordering::Relaxed);
    }
    handle.unwrap_or(0)
}

/// Handles the start of a channel of an operation's kernel. Returns its handle, or 0.
pub(crate) fn kernel_started(parent: usize, timer_ns: u64) -> usize {
    current()
        .and_then(|probe| probe.timings.channel_started(parent, timer_ns))
        .unwrap_or(0)
}

/// Handles the time at which a channel of a kernel stopped.
pub(crate) fn kernel_stop_time(handle: usize, timer_ns: u64) {
    if let Some(probe) = current() {
        probe.timings.channel_stop_time(handle, timer_ns);
    }
}

/// Handles the end of an event. Only kernels use it: the end of an operation means that it was put into the stream.
#[inline]
pub(crate) fn stopped(handle: usize) {
    if handle == 0 {
        return;
    }
    if let Some(probe) = current()
        && let Some(outcome) = probe.timings.channel_stopped(handle)
    {
        probe.finished(outcome);
    }
}

/// Switches the probe off in this process, after an internal error.
pub(crate) fn switch_off() {
    OFF.store(true, Ordering::Relaxed);
    if let Some(probe) = current() {
        probe.mask.clear();
    }
    forget();
}

/// Forgets the parent's probe. Called in a forked child, where only stores are safe.
pub(crate) fn forget() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}

/// Creates the probe and its thread, unless another thread has created them. Returns `None` if the probe must not run.
fn begin(mask: *mut c_int, abi: Abi) -> Option<&'static Probe> {
    let version = Version::of_library_with(mask.cast_const().cast());
    let likely = version.or_else(|| Version::of_abi(abi));
    let settings = Settings::read(likely, |name| std::env::var_os(name))?;
    let range = MADE.fetch_add(1, Ordering::Relaxed) << RANGE_BITS;
    let made = Box::into_raw(Box::new(Probe {
        summary: Mutex::new(Summary::new(&settings)),
        settings,
        abi,
        version,
        comms: Comms::new(range),
        timings: Timings::new(range),
        mask: Mask::default(),
        events: Ring::new(EVENTS_MAX),
        dropped: AtomicU64::new(0),
        untimed: AtomicU64::new(0),
    }));
    let before = CURRENT.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if before.is_err() {
        // SAFETY: the exchange failed, so no other thread has this pointer.
        drop(unsafe { Box::from_raw(made) });
        return current();
    }
    let probe = current()?;
    if worker::start(probe).is_err() {
        forget();
        return None;
    }
    Some(probe)
}

// === the plugin's thread ===

impl Probe {
    /// Does the periodic work of the plugin's thread: updates the mask, tidies the timings, summarises, and sends when it is due.
    pub(crate) fn run_once(&'static self) {
        self.set_timing();
        self.timings
            .tidy(monotonic_ns(), |outcome| self.finished(outcome));
        let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
        summary.run_once(self);
    }

    /// Returns true if the callbacks use this probe.
    pub(crate) fn is_current(&'static self) -> bool {
        std::ptr::eq(CURRENT.load(Ordering::Relaxed), self)
    }

    fn set_timing(&self) {
        // Before version 4, NCCL does not pass on the GPU's timers.
        let on = self.abi >= 4 && self.comms.live() > 0 && self.settings.timing.is_on(wall_ns());
        self.mask.set_timing(on);
    }

    fn finished(&self, outcome: Outcome) {
        match outcome {
            Outcome::Measured(timed, duration_ns) => self.put(&Event { timed, duration_ns }),
            Outcome::Unmeasured => {
                self.untimed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn put(&self, event: &Event) {
        if !self.events.push(event.packed()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === events ===

/// The number of words of an event in the ring. With the ring's own word they fit into a cache line.
pub(crate) const EVENT_WORDS: usize = 5;

/// An operation was put into a stream, or (with a duration) its kernel has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) timed: Timed,
    /// 0 for an operation that was put into a stream.
    pub(crate) duration_ns: u64,
}

/// The communicator and the function of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The index of the communicator's slot.
    pub(crate) place: usize,
    pub(crate) generation: u64,
    pub(crate) function: Function,
    pub(crate) sequenced: bool,
}

impl Event {
    fn packed(&self) -> [u64; EVENT_WORDS] {
        let Timed {
            tag,
            sequence,
            bytes,
            enqueued_ns,
        } = self.timed;
        [tag, sequence, bytes, enqueued_ns, self.duration_ns]
    }

    pub(crate) fn unpacked([tag, sequence, bytes, enqueued_ns, duration_ns]: [u64; EVENT_WORDS]) -> Self {
        let timed = Timed {
            tag,
            sequence,
            bytes,
            enqueued_ns,
        };
        Self { timed, duration_ns }
    }
}

impl Origin {
    /// ```text
    /// bits 0–7 slot   8–11 function   12 sequenced   13–63 generation
    /// ```
    fn packed(self) -> u64 {
        self.place as u64
            | (self.function as u64) << 8
            | u64::from(self.sequenced) << 12
            | self.generation << 13
    }

    pub(crate) fn unpacked(word: u64) -> Self {
        Self {
            place: (word & 0xff) as usize,
            generation: word >> 13,
            function: Function::at((word >> 8 & 0xf) as usize),
            sequenced: word >> 12 & 1 == 1,
        }
    }
}
