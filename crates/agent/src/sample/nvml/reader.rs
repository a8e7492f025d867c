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
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use domain::topology::Inventory;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tokio::sync::watch;

use super::burst::Burst;
use super::door::{Door, Reason};
use super::gpu::ends_with_gpu;
use super::gpus::{End, Gpus};
use super::library::{Library, Opened};
use super::meter::{Meter, PATIENCE_TO_OPEN};
use super::xid;
use crate::release::Release;
use crate::sample::Samples;
use crate::sample::footprint::Footprint;
use crate::sample::schedule::Tick;
use crate::sample::series::series;
use crate::sample::xid::Sightings;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// How long others wait until it is known whether there are GPUs: a driver that takes longer hangs, and that is worth telling.
pub(crate) const SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// How long the thread that waits for Xid errors may take to let go of NVML: it waits a second at a time.
const LET_GO_WITHIN: Duration = Duration::from_secs(4);

/// Reads GPUs whenever a tick comes.
pub(crate) struct NvmlReader {
    pub(crate) library: Library,
    pub(crate) root: PathBuf,
    pub(crate) meter: Arc<Meter>,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
    /// Where Xid errors go.
    pub(crate) sightings: Sightings,
    pub(crate) inventory: watch::Sender<Arc<Inventory>>,
    /// Set once it is known whether there are GPUs.
    pub(crate) settled: watch::Sender<bool>,
    pub(crate) release: Release,
    pub(crate) burst: Burst,
    pub(crate) footprint: Arc<Footprint>,
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
        let xids = xid::watch(Arc::clone(&nvml), self.sightings.clone(), self.events.clone());
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
        if door.reason() != Reason::Never {
            // It was there before it was closed.
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

    pub(super) fn update_inventory(&self, change: impl FnOnce(&mut Inventory)) {
        self.inventory.send_if_modified(|inventory| {
            let mut changed = Inventory::clone(inventory);
            change(&mut changed);
            let differs = changed != **inventory;
            *inventory = Arc::new(changed);
            differs
        });
    }
}
