//! The thread that makes all NVML readings. It may hang in the driver; nobody waits for it.
//!
//! ```text
//!          ┌────────── tries again: after a minute; after 2 s, 4 s … once there was a driver ◀─┐
//! closed ──┴─opens──▶ reading ──the driver is unloaded, replaced, shut down──▶ lets go of all ─┘
//!   ▲                   │ ticks: a round, as often as the pace allows; between them beats of the burst
//!   └─the time is over─ released ◀── lockstep agent release
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use domain::topology::Inventory;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tokio::sync::watch;

use super::beat::BEAT;
use super::burst::Burst;
use super::door::{Door, Reason};
use super::fields::Numbering;
use super::gpu::{DriverGone, Slot, Surroundings, ends_with_gpu};
use super::inventory::describe;
use super::library::{Library, Opened};
use super::meter::{Meter, PATIENCE_TO_OPEN};
use super::pace::Pace;
use super::processes::Naming;
use super::xid;
use crate::release::Release;
use crate::sample::Samples;
use crate::sample::footprint::Footprint;
use crate::sample::process::Identities;
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, series};
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// Rounds come every second, and as rarely as about every minute from a driver that takes seconds for each.
const ROUND: Duration = Duration::from_secs(1);
const ROUND_DOUBLED_MAX: u32 = 6;
/// The share of its period a round may spend in the driver. Two rounds a second fit into it even so.
const ROUND_BUDGET: f64 = 0.25;
/// Beats come every 100 ms and are as rare as rounds at last; they are a luxury, and may take less.
const BEAT_DOUBLED_MAX: u32 = 4;
const BEAT_BUDGET: f64 = 0.1;
/// How long every GPU must be lost, and NVML open, before opening it anew is tried: in a container that lost its devices
/// nothing else helps.
const LOST_ALL: Duration = Duration::from_secs(300);
/// How long the thread that waits for Xid errors may take to let go of NVML: it waits a second at a time.
const LET_GO_WITHIN: Duration = Duration::from_secs(4);

/// Reads GPUs whenever a tick comes.
pub(crate) struct NvmlReader {
    pub(crate) library: Library,
    pub(crate) root: PathBuf,
    pub(crate) meter: Arc<Meter>,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
    pub(crate) inventory: watch::Sender<Arc<Inventory>>,
    /// Set once it is known whether there are GPUs.
    pub(crate) settled: watch::Sender<bool>,
    pub(crate) release: Release,
    pub(crate) burst: Burst,
    pub(crate) footprint: Arc<Footprint>,
}

/// Why reading ended.
enum End {
    /// The agent ends.
    Over,
    /// Somebody wants the GPUs.
    Released(TimestampMs),
    /// The driver has gone.
    Gone(NvmlError),
    /// No GPU answers.
    AllLost,
}

impl NvmlReader {
    /// Runs until the ticks end.
    pub(crate) fn run(self, ticks: &Receiver<Tick>) {
        let mut door = Door::new(Instant::now());
        while let Ok(tick) = ticks.recv() {
            if let Some(until_ms) = self.release.until(tick.at_ms) {
                if door.close(Reason::Released) {
                    self.released(until_ms);
                }
                self.release.answer(until_ms);
                self.settled.send_replace(true);
            } else if door.is_due(Instant::now()) {
                match self.library.open(&self.meter) {
                    Ok(opened) => {
                        self.opened(&tick, &door);
                        match self.read(opened, &mut door, tick, ticks) {
                            End::Over => return,
                            End::Released(until_ms) => {
                                door.close(Reason::Released);
                                self.released(until_ms);
                                self.release.answer(until_ms);
                            }
                            End::Gone(error) => self.gone(&mut door, &error),
                            End::AllLost => door.reopen_at_once(),
                        }
                    }
                    Err(error) => self.not_opened(&tick, &mut door, &error),
                }
            } else if door.reason() == Reason::Gone {
                self.put_down(tick.at_ms);
            }
        }
    }

    fn read(&self, opened: Opened, door: &mut Door, first: Tick, ticks: &Receiver<Tick>) -> End {
        let Opened { nvml, simulated } = opened;
        let nvml = Arc::new(nvml);
        self.meter.set_open(true);
        let xids = xid::watch(Arc::clone(&nvml), self.samples.clone(), self.events.clone());
        let mut gpus = Gpus::find(self, &nvml, simulated, door.lost());
        door.opened();
        let end = gpus.read_on(first, ticks);
        door.remember_lost(gpus.lost());
        drop(gpus);
        drop(xids);
        self.close(nvml);
        end
    }

    /// Shuts NVML down, which closes the devices. The thread that waits for Xid errors has to let go first.
    fn close(&self, nvml: Arc<Nvml>) {
        let deadline = Instant::now() + LET_GO_WITHIN;
        while Arc::strong_count(&nvml) > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        if Arc::strong_count(&nvml) > 1 {
            tracing::warn!("a wait for Xid errors does not end; NVML stays open until it does");
        }
        self.meter.call_within(PATIENCE_TO_OPEN, None, move || drop(nvml));
        self.meter.set_open(false);
    }

    // === What is said about it ===

    fn opened(&self, tick: &Tick, door: &Door) {
        self.release.taken_back();
        match door.reason() {
            Reason::Gone => self.report(
                tick.at_ms,
                Severity::Info,
                "nvml_back",
                "The NVIDIA driver is back",
            ),
            Reason::Released => {
                let message = "The agent has taken the GPUs back after a release";
                self.report(tick.at_ms, Severity::Info, "gpus_taken_back", message);
            }
            Reason::Never | Reason::Open => {}
        }
        self.put_released(tick.at_ms, false);
    }

    fn not_opened(&self, tick: &Tick, door: &mut Door, error: &NvmlError) {
        let why = self.library.why_missing(error);
        if door.reason() == Reason::Released {
            // It was there before the release.
            door.close(Reason::Gone);
        }
        if door.is_first_mismatch(matches!(error, NvmlError::LibRmVersionMismatch)) {
            self.report(tick.at_ms, Severity::Critical, "nvml_version_mismatch", &why);
        }
        door.failed(Instant::now());
        if door.reason() == Reason::Gone {
            self.put_down(tick.at_ms);
        } else {
            self.update_inventory(|inventory| inventory.gpus_missing = Some(why.clone()));
        }
        self.settled.send_replace(true);
    }

    fn gone(&self, door: &mut Door, error: &NvmlError) {
        let at_ms = now_ms();
        door.close(Reason::Gone);
        let why = self.library.why_missing(error);
        let message =
            format!("The NVIDIA driver has gone from under the agent: {why}. It is looked for again");
        self.report(at_ms, Severity::Critical, "nvml_gone", &message);
        self.samples
            .end_where(at_ms, |series| ends_with_gpu(series, None));
        self.put_down(at_ms);
    }

    fn released(&self, until_ms: TimestampMs) {
        let at_ms = now_ms();
        let minutes = (until_ms - at_ms).max(0) / 60_000;
        let message = format!(
            "The agent has let go of the GPUs, as asked; it takes them back in {minutes} min, or with `lockstep agent release --end`"
        );
        self.report(at_ms, Severity::Info, "gpus_released", &message);
        // A GPU that nobody reads is neither up nor down.
        let ends = |name: Option<&str>| matches!(name, Some("gpu_up" | "lockstep_agent_nvml_up"));
        self.samples.end_where(at_ms, |series| {
            ends_with_gpu(series, None) || ends(series.metric_name())
        });
        self.put_released(at_ms, true);
    }

    fn put_released(&self, at_ms: TimestampMs, released: bool) {
        let released = f64::from(released);
        let series = series("lockstep_agent_gpus_released", &[]);
        self.samples.push(&series, at_ms, released);
    }

    /// Of a driver that is not there, every GPU is down.
    fn put_down(&self, at_ms: TimestampMs) {
        self.samples
            .push(&series("lockstep_agent_nvml_up", &[]), at_ms, 0.0);
        for gpu in &self.inventory.borrow().gpus {
            let up = series("gpu_up", &[("gpu", &gpu.index.to_string())]);
            self.samples.push(&up, at_ms, 0.0);
        }
    }

    fn report(&self, at_ms: TimestampMs, severity: Severity, kind: &str, message: &str) {
        self.events.report(Event {
            at_ms,
            severity,
            kind: kind.into(),
            node: None,
            gpu: None,
            run: None,
            message: message.into(),
        });
    }

    fn update_inventory(&self, change: impl FnOnce(&mut Inventory)) {
        self.inventory.send_if_modified(|inventory| {
            let mut changed = Inventory::clone(inventory);
            change(&mut changed);
            let differs = changed != **inventory;
            *inventory = Arc::new(changed);
            differs
        });
    }
}

// === The GPUs ===

/// All GPUs of the machine, in NVML's order.
struct Gpus<'a> {
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
    fn find(reader: &'a NvmlReader, nvml: &'a Nvml, simulated: Option<String>, lost: &[u32]) -> Self {
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

    fn lost(&self) -> Vec<u32> {
        let lost = self.slots.iter().filter(|slot| slot.lost_for().is_some());
        lost.map(Slot::index).collect()
    }

    /// Reads tick by tick until something ends it.
    fn read_on(&mut self, first: Tick, ticks: &Receiver<Tick>) -> End {
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
