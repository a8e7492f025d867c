//! All GPUs of a machine: reads rounds and burst rows while NVML is open.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use domain::time::TimestampMs;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::burst_reader::BURST_INTERVAL;
use super::fields::Numbering;
use super::gpu::{DriverGone, GpuContext, Slot};
use super::inventory::describe;
use super::processes::Naming;
use super::read_period::ReadPeriod;
use super::reader::NvmlReader;
use crate::sample::process::Identities;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;
use crate::uplink::link::now_ms;

/// A round is due every second. If the driver takes seconds for each, the period doubles up to 64 s.
const ROUND: Duration = Duration::from_secs(1);
const ROUND_DOUBLED_MAX: u32 = 6;
/// The largest share of its period that a round may spend in the driver.
const ROUND_BUDGET: f64 = 0.25;
/// A burst row is due every 100 ms. Its period doubles up to 1.6 s. Burst rows are less important than rounds, so their share is smaller.
const BURST_DOUBLED_MAX: u32 = 4;
const BURST_BUDGET: f64 = 0.1;
/// How long all GPUs must be lost, and NVML open, before the agent opens it again. In a container that lost its devices, only this helps.
const LOST_ALL: Duration = Duration::from_secs(300);

/// Why the reading ended.
pub(super) enum StopReason {
    /// The agent stops.
    AgentStops,
    /// A user requested that the GPUs be released, until this time.
    Released(TimestampMs),
    /// The driver has gone.
    Gone(NvmlError),
    /// No GPU answers.
    AllLost,
}

/// All GPUs of the machine, in NVML's order.
pub(super) struct Gpus<'a> {
    reader: &'a NvmlReader,
    nvml: &'a Nvml,
    simulated: Option<String>,
    naming: Naming<'a>,
    slots: Vec<Slot<'a>>,
    round_period: ReadPeriod,
    burst_period: ReadPeriod,
    next_burst_row: Instant,
    own: Family,
}

impl<'a> Gpus<'a> {
    /// Finds all GPUs. Those in `lost` are not reported as lost again.
    pub(super) fn find(
        reader: &'a NvmlReader,
        nvml: &'a Nvml,
        simulated: Option<String>,
        lost: &[u32],
    ) -> Self {
        let naming = match &simulated {
            Some(_) => Naming::Simulated(nvml),
            None => Naming::Host(Identities::new(&reader.root)),
        };
        let meter = &*reader.meter;
        let count = meter.call(None, || nvml.device_count()).unwrap_or(0);
        let driver = meter.call(None, || nvml.sys_driver_version());
        let context = GpuContext {
            nvml,
            numbering: Numbering::of_driver(&driver.unwrap_or_default()),
            meter,
            samples: &reader.samples,
            events: &reader.events,
        };
        let slot = |index| Slot::new(index, context, lost.contains(&index));
        Self {
            reader,
            nvml,
            simulated,
            naming,
            slots: (0..count).map(slot).collect(),
            round_period: ReadPeriod::new(ROUND, ROUND_DOUBLED_MAX, ROUND_BUDGET),
            burst_period: ReadPeriod::new(BURST_INTERVAL, BURST_DOUBLED_MAX, BURST_BUDGET),
            next_burst_row: Instant::now(),
            own: Family::default(),
        }
    }

    pub(super) fn lost(&self) -> Vec<u32> {
        let lost = self.slots.iter().filter(|slot| slot.lost_for().is_some());
        lost.map(Slot::index).collect()
    }

    /// Reads at each tick until a reason to end occurs.
    pub(super) fn read_until_stopped(&mut self, first: Tick, ticks: &Receiver<Tick>) -> StopReason {
        let opened = Instant::now();
        let mut read_ms = None;
        let mut tick = Tick {
            slow: true,
            topology: true,
            ..first
        };
        loop {
            if self.is_due(tick.at_ms, read_ms) {
                if let Err(DriverGone(error)) = self.round(&tick) {
                    return StopReason::Gone(error);
                }
                read_ms = Some(tick.at_ms);
                (tick.slow, tick.topology) = (false, false);
            }
            self.reader.settled.send_replace(true);
            if opened.elapsed() > LOST_ALL && self.all_lost_for(LOST_ALL) {
                return StopReason::AllLost;
            }
            let Some(next) = self.wait(ticks) else {
                return StopReason::AgentStops;
            };
            if let Some(until_ms) = self.reader.release.until(next.at_ms) {
                return StopReason::Released(until_ms);
            }
            // What was due at a skipped tick is still due.
            tick = Tick {
                slow: next.slow || tick.slow,
                topology: next.topology || tick.topology,
                ..next
            };
        }
    }

    /// Returns true if a round is due. Ticks are on whole seconds, sometimes a little late, so half a second of tolerance is allowed.
    fn is_due(&self, at_ms: TimestampMs, read_ms: Option<TimestampMs>) -> bool {
        let period = self.round_period.current().as_millis() as i64;
        read_ms.is_none_or(|read_ms| !(0..period - 500).contains(&(at_ms - read_ms)))
    }

    fn round(&mut self, tick: &Tick) -> Result<(), DriverGone> {
        let (_, before) = self.reader.meter.totals();
        let detail = self.reader.memory_limit.allows_detail();
        for slot in &mut self.slots {
            slot.read(tick, detail, &mut self.naming)?;
        }
        if tick.topology {
            self.publish();
        }
        let (_, after) = self.reader.meter.totals();
        let cost = after - before;
        if self.round_period.record(cost) {
            let period = self.round_period.current();
            tracing::warn!(
                ?cost,
                ?period,
                "the cost of reading the GPUs changed, so the agent reads them at another period"
            );
        }
        self.put_own(tick.at_ms, cost);
        Ok(())
    }

    /// Waits for the next tick, and reads burst rows until then.
    fn wait(&mut self, ticks: &Receiver<Tick>) -> Option<Tick> {
        loop {
            if !self.reader.memory_limit.allows_burst() {
                self.reader.burst.give_up();
                return ticks.recv().ok();
            }
            match ticks.recv_timeout(self.next_burst_row.saturating_duration_since(Instant::now())) {
                Ok(tick) => return Some(tick),
                Err(RecvTimeoutError::Timeout) => self.read_burst(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn read_burst(&mut self) {
        let (begun, (_, before)) = (Instant::now(), self.reader.meter.totals());
        let at_ms = now_ms();
        let rows: Vec<_> = self.slots.iter_mut().map(Slot::read_burst).collect();
        let values = rows.iter().flatten().filter(|value| value.is_finite());
        self.reader.samples.count_unstored(values.count());
        self.reader.burst.push(at_ms, &rows);
        let (_, after) = self.reader.meter.totals();
        self.burst_period.record(after - before);
        self.next_burst_row = begun + self.burst_period.current();
    }

    fn all_lost_for(&self, time: Duration) -> bool {
        let lost = |slot: &Slot<'_>| slot.lost_for().is_some_and(|lost| lost > time);
        !self.slots.is_empty() && self.slots.iter().all(lost)
    }

    fn put_own(&mut self, at_ms: TimestampMs, cost: Duration) {
        let burst = self.reader.memory_limit.allows_burst();
        let out = &mut self.own.at(&self.reader.samples, at_ms);
        out.put("lockstep_agent_nvml_round_seconds", cost.as_secs_f64());
        let period = self.round_period.current().as_secs_f64();
        out.put("lockstep_agent_nvml_period_seconds", period);
        let period = if burst {
            self.burst_period.current().as_secs_f64()
        } else {
            0.0
        };
        out.put("lockstep_agent_burst_period_seconds", period);
    }

    fn publish(&self) {
        let states = self.slots.iter().map(Slot::state);
        self.reader.meter.call(None, || {
            self.reader.update_inventory(|inventory| {
                describe(inventory, self.nvml, self.simulated.as_ref(), states);
            });
        });
    }
}
