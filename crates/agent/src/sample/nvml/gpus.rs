//! All GPUs of a machine, round by round and beat by beat, for as long as NVML is open.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use domain::time::TimestampMs;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::beat::BEAT;
use super::fields::Numbering;
use super::gpu::{DriverGone, Slot, Surroundings};
use super::inventory::describe;
use super::pace::Pace;
use super::processes::Naming;
use super::reader::NvmlReader;
use crate::sample::process::Identities;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;
use crate::uplink::link::now_ms;

/// Rounds come every second, and as rarely as about every minute from a driver that takes seconds for each.
const ROUND: Duration = Duration::from_secs(1);
const ROUND_DOUBLED_MAX: u32 = 6;
/// The share of its period a round may spend in the driver.
const ROUND_BUDGET: f64 = 0.25;
/// Beats come every 100 ms and are as rare as rounds at last; they are a luxury, and may take less.
const BEAT_DOUBLED_MAX: u32 = 4;
const BEAT_BUDGET: f64 = 0.1;
/// How long every GPU must be lost, and NVML open, before opening it anew is tried: in a container that lost its devices
/// nothing else helps.
const LOST_ALL: Duration = Duration::from_secs(300);

/// Why reading ended.
pub(super) enum End {
    /// The agent ends.
    Over,
    /// Somebody wants the GPUs.
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
    rounds: Pace,
    beats: Pace,
    next_beat: Instant,
    own: Family,
}

impl<'a> Gpus<'a> {
    /// Those that were lost before are not lost anew.
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
        let around = Surroundings {
            nvml,
            numbering: Numbering::of_driver(&driver.unwrap_or_default()),
            meter,
            samples: &reader.samples,
            events: &reader.events,
        };
        let slot = |index| Slot::new(index, around, lost.contains(&index));
        Self {
            reader,
            nvml,
            simulated,
            naming,
            slots: (0..count).map(slot).collect(),
            rounds: Pace::new(ROUND, ROUND_DOUBLED_MAX, ROUND_BUDGET),
            beats: Pace::new(BEAT, BEAT_DOUBLED_MAX, BEAT_BUDGET),
            next_beat: Instant::now(),
            own: Family::default(),
        }
    }

    pub(super) fn lost(&self) -> Vec<u32> {
        let lost = self.slots.iter().filter(|slot| slot.lost_for().is_some());
        lost.map(Slot::index).collect()
    }

    /// Reads tick by tick until something ends it.
    pub(super) fn read_on(&mut self, first: Tick, ticks: &Receiver<Tick>) -> End {
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
                    return End::Gone(error);
                }
                read_ms = Some(tick.at_ms);
                (tick.slow, tick.topology) = (false, false);
            }
            self.reader.settled.send_replace(true);
            if opened.elapsed() > LOST_ALL && self.all_lost_for(LOST_ALL) {
                return End::AllLost;
            }
            let Some(next) = self.wait(ticks) else {
                return End::Over;
            };
            if let Some(until_ms) = self.reader.release.until(next.at_ms) {
                return End::Released(until_ms);
            }
            // What was due at a tick that was left out is due still.
            tick = Tick {
                slow: next.slow || tick.slow,
                topology: next.topology || tick.topology,
                ..next
            };
        }
    }

    /// Ticks fall on whole seconds, a little late at times: half a second is no second.
    fn is_due(&self, at_ms: TimestampMs, read_ms: Option<TimestampMs>) -> bool {
        let period = self.rounds.period().as_millis() as i64;
        read_ms.is_none_or(|read_ms| !(0..period - 500).contains(&(at_ms - read_ms)))
    }

    fn round(&mut self, tick: &Tick) -> Result<(), DriverGone> {
        let (_, before) = self.reader.meter.totals();
        let detail = self.reader.footprint.allows_detail();
        for slot in &mut self.slots {
            slot.read(tick, detail, &mut self.naming)?;
        }
        if tick.topology {
            self.publish();
        }
        let (_, after) = self.reader.meter.totals();
        let cost = after - before;
        if self.rounds.took(cost) {
            let period = self.rounds.period();
            tracing::warn!(
                ?cost,
                ?period,
                "reading the GPUs takes another share of the driver's time than before, and is done as often as it can bear"
            );
        }
        self.put_own(tick.at_ms, cost);
        Ok(())
    }

    /// The next tick; until it comes, beats.
    fn wait(&mut self, ticks: &Receiver<Tick>) -> Option<Tick> {
        loop {
            if !self.reader.footprint.allows_burst() {
                self.reader.burst.give_up();
                return ticks.recv().ok();
            }
            match ticks.recv_timeout(self.next_beat.saturating_duration_since(Instant::now())) {
                Ok(tick) => return Some(tick),
                Err(RecvTimeoutError::Timeout) => self.beat(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn beat(&mut self) {
        let (begun, (_, before)) = (Instant::now(), self.reader.meter.totals());
        let at_ms = now_ms();
        let rows: Vec<_> = self.slots.iter_mut().map(Slot::beat).collect();
        let values = rows.iter().flatten().filter(|value| value.is_finite());
        self.reader.samples.read_besides(values.count());
        self.reader.burst.keep(at_ms, &rows);
        let (_, after) = self.reader.meter.totals();
        self.beats.took(after - before);
        self.next_beat = begun + self.beats.period();
    }

    fn all_lost_for(&self, time: Duration) -> bool {
        let lost = |slot: &Slot<'_>| slot.lost_for().is_some_and(|lost| lost > time);
        !self.slots.is_empty() && self.slots.iter().all(lost)
    }

    fn put_own(&mut self, at_ms: TimestampMs, cost: Duration) {
        let burst = self.reader.footprint.allows_burst();
        let out = &mut self.own.at(&self.reader.samples, at_ms);
        out.put("lockstep_agent_nvml_round_seconds", cost.as_secs_f64());
        let period = self.rounds.period().as_secs_f64();
        out.put("lockstep_agent_nvml_period_seconds", period);
        let period = if burst {
            self.beats.period().as_secs_f64()
        } else {
            0.0
        };
        out.put("lockstep_agent_burst_period_seconds", period);
    }

    fn publish(&self) {
        let places = self.slots.iter().map(Slot::place);
        self.reader.meter.call(None, || {
            self.reader.update_inventory(|inventory| {
                describe(inventory, self.nvml, self.simulated.as_ref(), places);
            });
        });
    }
}
