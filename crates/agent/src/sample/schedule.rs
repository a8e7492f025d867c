//! Decides when each tier is read. Ticks are on whole seconds of the node's clock, so that all nodes share a time axis.
//!
//! ```text
//! tier       period   readings
//! core       1 s      utilization, memory, clocks, power, traffic; host
//! slow       10 s     links, ECC, PCIe, processes; file systems
//! topology   60 s     inventory
//! ```
//! Each reader has a thread and room for one tick. A busy reader misses ticks; ticks never queue up.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use std::{io, thread};

use domain::time::TimestampMs;

use crate::uplink::link::now_ms;

const SLOW_EVERY: u64 = 10;
const TOPOLOGY_EVERY: u64 = 60;
/// Readers use little stack. The default of 8 MB of address space each is not needed.
const READER_STACK_BYTES: usize = 512 << 10;

/// One time to read at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The time of everything that is read at this tick.
    pub at_ms: TimestampMs,
    /// True if the slow tier is due.
    pub slow: bool,
    /// True if the slowest tier is due.
    pub topology: bool,
}

impl Tick {
    /// Returns the n-th tick. The first one is of every tier.
    #[must_use]
    pub fn nth(n: u64, at_ms: TimestampMs) -> Self {
        Self {
            at_ms,
            slow: n.is_multiple_of(SLOW_EVERY),
            topology: n.is_multiple_of(TOPOLOGY_EVERY),
        }
    }
}

/// A handle to a reader's thread.
#[derive(Debug)]
pub(crate) struct Worker {
    ticks: SyncSender<Tick>,
    missed: Tick,
    late: u64,
    slow: bool,
    thread: thread::JoinHandle<()>,
}

impl Worker {
    /// Starts a thread that reads at each tick, until the worker is dropped.
    pub(crate) fn spawn(name: &str, read: impl FnOnce(Receiver<Tick>) + Send + 'static) -> io::Result<Self> {
        let (ticks, receiver) = sync_channel(1);
        let builder = thread::Builder::new()
            .name(name.into())
            .stack_size(READER_STACK_BYTES);
        let thread = builder.spawn(move || read(receiver))?;
        Ok(Self {
            ticks,
            missed: Tick {
                at_ms: 0,
                slow: false,
                topology: false,
            },
            late: 0,
            slow: false,
            thread,
        })
    }

    /// Passes only ticks of the slow tier. Waking a thread for nothing costs more than some readings.
    pub(crate) fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    /// Returns how many ticks were skipped because the reader was busy.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Stops the thread after its current work. If that takes longer than `timeout`, the thread is left running.
    pub(crate) async fn finish(self, timeout: Duration) {
        let Self { ticks, thread, .. } = self;
        drop(ticks);
        let deadline = tokio::time::Instant::now() + timeout;
        while !thread.is_finished() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Passes a tick to the reader, or drops it if the reader is busy. A missed slower tier is due at the next tick.
    pub(crate) fn tick(&mut self, tick: Tick) {
        let slow = tick.slow || self.missed.slow;
        let topology = tick.topology || self.missed.topology;
        if self.slow && !slow {
            return;
        }
        let tick = Tick {
            slow,
            topology,
            ..tick
        };
        let taken = self.ticks.try_send(tick).is_ok();
        self.late += u64::from(!taken);
        self.missed = Tick {
            slow: slow && !taken,
            topology: topology && !taken,
            ..tick
        };
    }
}

/// Lets a thread wait until a time has passed or the sender at the other end is dropped. A timer of the runtime would wake its thread
/// several times for each wait.
#[derive(Debug)]
pub(crate) struct StopTimer(Receiver<Infallible>);

impl StopTimer {
    /// Returns a guard and a `StopTimer` that works while the guard lives.
    pub(crate) fn while_held() -> (impl Send, Self) {
        let (held, receiver) = sync_channel(0);
        (held, Self(receiver))
    }

    /// Waits. Returns false if the guard was dropped.
    pub(crate) fn pass(&self, time: Duration) -> bool {
        matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// Waits for the next whole second and returns it, or `None` if the guard was dropped.
    pub(crate) fn next_second(&self) -> Option<TimestampMs> {
        let now = now_ms();
        let next = now - now.rem_euclid(1_000) + 1_000;
        self.pass(Duration::from_millis(next.abs_diff(now)))
            .then_some(next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn each_tier_is_due_at_its_period() {
        let slow: Vec<u64> = (0..25).filter(|n| Tick::nth(*n, 0).slow).collect();
        assert_eq!(slow, [0, 10, 20]);
        assert!(Tick::nth(60, 0).topology && !Tick::nth(30, 0).topology);
    }

    #[test]
    fn a_slow_reader_is_not_woken_in_between() {
        let (seen, saw) = sync_channel(4);
        let read = move |ticks: Receiver<Tick>| ticks.iter().for_each(|tick| seen.send(tick.at_ms).unwrap());
        let mut worker = Worker::spawn("test", read).unwrap().slow();
        for n in 8..=11 {
            worker.tick(Tick::nth(n, n as i64));
        }
        drop(worker);
        assert_eq!(saw.iter().collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn a_busy_reader_misses_ticks_but_no_tier() {
        let (go, gate) = sync_channel::<()>(0);
        let (seen, saw) = sync_channel(4);
        let mut worker = Worker::spawn("test", move |ticks| {
            for tick in ticks {
                seen.send(tick).unwrap();
                gate.recv().unwrap();
            }
        })
        .unwrap();
        worker.tick(Tick::nth(1, 1));
        assert_eq!(saw.recv().unwrap().at_ms, 1);
        // One tick waits in the channel; the others are missed while the reader is busy.
        worker.tick(Tick::nth(2, 2));
        worker.tick(Tick::nth(10, 10));
        worker.tick(Tick::nth(11, 11));
        go.send(()).unwrap();
        assert_eq!(
            saw.recv().unwrap(),
            Tick {
                at_ms: 2,
                slow: false,
                topology: false
            }
        );
        worker.tick(Tick::nth(12, 12));
        go.send(()).unwrap();
        assert_eq!(
            saw.recv().unwrap(),
            Tick {
                at_ms: 12,
                slow: true,
                topology: false
            }
        );
        drop(worker);
        go.send(()).unwrap();
    }
}
