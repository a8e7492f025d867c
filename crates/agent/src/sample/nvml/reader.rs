//! The thread that makes all NVML readings. It may hang in the driver, and no other thread waits for it.
//!
//! ```text
//!          ┌────────── tries again: after 1 min; after 2 s, 4 s … if there was a driver ◀───────────┐
//! closed ──┴─opens──▶ reading ──the driver is unloaded, replaced, shut down──▶ closes all handles ─┘
//!   ▲                   │ at ticks: rounds, as often as their period allows; between them: rows of the burst
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
use super::driver_connection::{ClosedReason, DriverConnection};
use super::gpu::ends_with_gpu;
use super::gpus::{Gpus, StopReason};
use super::library::{Library, Opened};
use super::meter::{Meter, OPEN_TIMEOUT};
use super::xid;
use crate::release::Release;
use crate::sample::Samples;
use crate::sample::memory_limit::MemoryLimit;
use crate::sample::schedule::Tick;
use crate::sample::series::series;
use crate::sample::xid::Sightings;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// How long other parts wait until it is known whether there are GPUs. A driver that takes longer hangs, and that must be reported.
pub(crate) const DETECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the thread that waits for Xid errors may take to close its NVML handle. Each of its waits lasts one second.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);

/// Reads the GPUs at each tick.
pub(crate) struct NvmlReader {
    pub(crate) library: Library,
    pub(crate) root: PathBuf,
    pub(crate) meter: Arc<Meter>,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
    /// The sink for Xid errors.
    pub(crate) sightings: Sightings,
    pub(crate) inventory: watch::Sender<Arc<Inventory>>,
    /// True when it is known whether there are GPUs.
    pub(crate) settled: watch::Sender<bool>,
    pub(crate) release: Release,
    pub(crate) burst: Burst,
    pub(crate) memory_limit: Arc<MemoryLimit>,
}

impl NvmlReader {
    /// Runs until the channel of ticks closes.
    pub(crate) fn run(self, ticks: &Receiver<Tick>) {
        let mut connection = DriverConnection::new(Instant::now());
        while let Ok(tick) = ticks.recv() {
            if let Some(until_ms) = self.release.until(tick.at_ms) {
                if connection.close(ClosedReason::Released) {
                    self.released(until_ms);
                }
                self.release.answer(until_ms);
                self.settled.send_replace(true);
            } else if connection.is_due(Instant::now()) {
                match self.library.open(&self.meter) {
                    Ok(opened) => {
                        self.opened(&tick, &connection);
                        match self.read(opened, &mut connection, tick, ticks) {
                            StopReason::AgentStops => return,
                            StopReason::Released(until_ms) => {
                                connection.close(ClosedReason::Released);
                                self.released(until_ms);
                                self.release.answer(until_ms);
                            }
                            StopReason::Gone(error) => self.gone(&mut connection, &error),
                            StopReason::AllLost => connection.reopen_at_once(),
                        }
                    }
                    Err(error) => self.not_opened(&tick, &mut connection, &error),
                }
            } else if connection.reason() == ClosedReason::Gone {
                self.put_down(tick.at_ms);
            }
        }
    }

    fn read(
        &self,
        opened: Opened,
        connection: &mut DriverConnection,
        first: Tick,
        ticks: &Receiver<Tick>,
    ) -> StopReason {
        let Opened { nvml, simulated } = opened;
        let nvml = Arc::new(nvml);
        self.meter.set_open(true);
        let xids = xid::watch(Arc::clone(&nvml), self.sightings.clone(), self.events.clone());
        let mut gpus = Gpus::find(self, &nvml, simulated, connection.lost());
        connection.opened();
        let end = gpus.read_until_stopped(first, ticks);
        connection.remember_lost(gpus.lost());
        drop(gpus);
        drop(xids);
        self.close(nvml);
        end
    }

    /// Shuts NVML down, which closes the devices. The thread that waits for Xid errors must close its handle first.
    fn close(&self, nvml: Arc<Nvml>) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while Arc::strong_count(&nvml) > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        if Arc::strong_count(&nvml) > 1 {
            tracing::warn!(
                "the thread that waits for Xid errors has not stopped; NVML stays open until it does"
            );
        }
        self.meter.call_within(OPEN_TIMEOUT, None, move || drop(nvml));
        self.meter.set_open(false);
    }

    // === Events and samples about the driver ===

    fn opened(&self, tick: &Tick, connection: &DriverConnection) {
        self.release.ended();
        match connection.reason() {
            ClosedReason::Gone => self.report(
                tick.at_ms,
                Severity::Info,
                "nvml_back",
                "The NVIDIA driver is back",
            ),
            ClosedReason::Released => {
                let message = "The agent uses the GPUs again after a release";
                self.report(tick.at_ms, Severity::Info, "gpus_taken_back", message);
            }
            ClosedReason::Never | ClosedReason::Open => {}
        }
        self.put_released(tick.at_ms, false);
    }

    fn not_opened(&self, tick: &Tick, connection: &mut DriverConnection, error: &NvmlError) {
        let why = self.library.why_missing(error);
        if connection.reason() != ClosedReason::Never {
            // NVML was open before.
            connection.close(ClosedReason::Gone);
        }
        if connection.is_first_mismatch(matches!(error, NvmlError::LibRmVersionMismatch)) {
            self.report(tick.at_ms, Severity::Critical, "nvml_version_mismatch", &why);
        }
        connection.failed(Instant::now());
        if connection.reason() == ClosedReason::Gone {
            self.put_down(tick.at_ms);
        } else {
            self.update_inventory(|inventory| inventory.gpus_missing = Some(why.clone()));
        }
        self.settled.send_replace(true);
    }

    fn gone(&self, connection: &mut DriverConnection, error: &NvmlError) {
        let at_ms = now_ms();
        connection.close(ClosedReason::Gone);
        let why = self.library.why_missing(error);
        let message = format!("The NVIDIA driver is gone: {why}. The agent keeps trying to open it");
        self.report(at_ms, Severity::Critical, "nvml_gone", &message);
        self.samples
            .end_where(at_ms, |series| ends_with_gpu(series, None));
        self.put_down(at_ms);
    }

    fn released(&self, until_ms: TimestampMs) {
        let at_ms = now_ms();
        let minutes = (until_ms - at_ms).max(0) / 60_000;
        let message = format!(
            "The agent has released the GPUs, as requested; it uses them again in {minutes} min, or after `lockstep agent release --end`"
        );
        self.report(at_ms, Severity::Info, "gpus_released", &message);
        // A GPU that is not read is neither up nor down.
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

    /// Writes that every GPU is down, because the driver is gone.
    fn put_down(&self, at_ms: TimestampMs) {
        self.samples
            .push(&series("lockstep_agent_nvml_up", &[]), at_ms, 0.0);
        for gpu in &self.inventory.borrow().gpus {
            let up = series("gpu_up", &[("gpu", &gpu.index.to_string())]);
            self.samples.push(&up, at_ms, 0.0);
        }
    }

    fn report(&self, at_ms: TimestampMs, severity: Severity, kind: &str, message: &str) {
        self.events
            .report(Event::new(at_ms, severity, kind, message.into()));
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
