//! Xid errors of this node's GPUs: seen by two witnesses, reported once, and assessed in their context. Also SXid errors of its NVSwitches.
//!
//! ```text
//! thread "xid" (NVML)  ────Sighting────▶ ┐                     ┌─▶ gpu_xid_errors_total at once
//!                                        ├─▶ Ledger: one error ┤
//! /dev/kmsg, every second ─XidMessage──▶ ┘   within ±2 s       └─▶ after 2 s: domain::xid::assess ─▶ event, gpu_xid_judged_total
//!                         ─SwitchError──▶ domain::sxid::assess ─▶ event, nvswitch_sxid_errors_total
//! ```
//! NVML is fast and needs no privilege, but does not report errors of a GPU that is gone. The kernel log has the process, link and
//! sub-code. The wait of two seconds lets both witnesses report, and lets 94 or 95 arrive before 48 is assessed.

mod ledger;
mod report;
mod switch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use domain::series::Labels;
use domain::time::TimestampMs;
use domain::topology::{Inventory, PciAddress};
use domain::xid::{Assessment, Job};
use tokio::sync::watch;

use self::ledger::{Ledger, Settled};
use self::switch::Switches;
use super::kernel_log::{KernelLog, KernelMessage, XidDetails, XidMessage};
use super::process::Identities;
use super::schedule::Tick;
use super::series::series;
use crate::sample::Samples;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// The maximum number of sightings between NVML's thread and this one: one second of a driver that repeats itself. When it is reached,
/// NVML's sightings are dropped; the kernel log contains them too.
const SIGHTINGS_MAX: usize = 1_024;
/// The maximum number of series of errors. A healthy large node has none, a failing one a few dozen. Further Xids count as `other`.
const COUNTED_MAX: usize = 512;
/// The number of ticks for which the log waits until the addresses of the GPUs are known. Then it no longer waits, because the driver may
/// hang.
const SETTLE_TICKS: u32 = 8;

/// Where an error happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ErrorLocation {
    /// A GPU that NVML lists.
    Gpu(u32),
    /// A device that NVML does not list, or no longer lists.
    Device(PciAddress),
}

impl ErrorLocation {
    fn label(self) -> String {
        match self {
            Self::Gpu(index) => index.to_string(),
            Self::Device(pci) => pci.to_string(),
        }
    }
}

/// The source of a sighting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Witness {
    Nvml,
    KernelLog,
}

/// One error, as one witness saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) at_ms: TimestampMs,
    pub(crate) location: ErrorLocation,
    pub(crate) xid: u32,
    pub(crate) witness: Witness,
    pub(crate) details: XidDetails,
    /// The run of the process that the message names.
    pub(crate) run: Option<String>,
}

/// The sink for the sightings of NVML's thread. Cheap to clone; it never waits.
#[derive(Debug, Clone)]
pub(crate) struct Sightings(SyncSender<Sighting>);

impl Sightings {
    /// Records that a GPU, or an instance of it, reports an Xid.
    pub(crate) fn record_xid(&self, gpu: u32, xid: u32, instance: Option<u32>) {
        let sighting = Sighting {
            at_ms: now_ms(),
            location: ErrorLocation::Gpu(gpu),
            xid,
            witness: Witness::Nvml,
            details: XidDetails {
                instance,
                ..XidDetails::default()
            },
            run: None,
        };
        if self.0.try_send(sighting).is_err() {
            tracing::debug!(
                gpu,
                xid,
                "too many Xid errors at once; NVML's report of this one is dropped"
            );
        }
    }
}

/// Returns true if a run is being stopped.
pub(crate) type IsStopping = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Reads the log, collects NVML's sightings, and reports both.
pub(crate) struct XidReader {
    log: KernelLog,
    sightings: Receiver<Sighting>,
    inventory: watch::Receiver<Arc<Inventory>>,
    settled: watch::Receiver<bool>,
    waited: u32,
    identities: Identities,
    is_stopping: IsStopping,
    ledger: Ledger,
    switches: Switches,
    counters: Counters,
    events: Events,
    real_root: bool,
}

/// The inputs of an [`XidReader`].
pub(crate) struct Setting<'a> {
    pub(crate) root: &'a Path,
    /// The file that stores the position up to which an earlier agent read the log.
    pub(crate) position_file: Option<PathBuf>,
    pub(crate) inventory: watch::Receiver<Arc<Inventory>>,
    pub(crate) settled: watch::Receiver<bool>,
    pub(crate) is_stopping: IsStopping,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
}

impl XidReader {
    /// Creates a reader, and the sink for the sightings of NVML's thread.
    pub(crate) fn new(setting: Setting<'_>) -> (Self, Sightings) {
        let (sender, sightings) = sync_channel(SIGHTINGS_MAX);
        let reader = Self {
            log: KernelLog::new(setting.root, setting.position_file),
            sightings,
            inventory: setting.inventory,
            settled: setting.settled,
            waited: 0,
            identities: Identities::new(setting.root),
            is_stopping: setting.is_stopping,
            ledger: Ledger::default(),
            switches: Switches::default(),
            counters: Counters::new(setting.samples),
            events: setting.events,
            real_root: setting.root == Path::new("/"),
        };
        (reader, Sightings(sender))
    }

    /// Runs until the channel of ticks closes.
    pub(crate) fn run(mut self, ticks: &Receiver<Tick>) {
        while let Ok(tick) = ticks.recv() {
            self.read(&tick);
        }
    }

    fn read(&mut self, tick: &Tick) {
        for sighting in self.sightings.try_iter().collect::<Vec<_>>() {
            self.take(sighting);
        }
        if self.knows_addresses() {
            if tick.topology {
                self.log.retry();
            }
            for (at_ms, message) in self.log.read_new() {
                match message {
                    KernelMessage::Gpu(message) => self.take_message(at_ms, message),
                    KernelMessage::Switch(error) => {
                        if let Some(event) = self.switches.take(at_ms, &error, &mut self.counters) {
                            self.events.report(event);
                        }
                    }
                }
            }
        }
        for settled in self.ledger.settle(now_ms()) {
            self.report(&settled);
        }
        if tick.slow {
            self.counters.repeat(tick.at_ms);
        }
    }

    /// Returns the run of the process that a message names. The kernel's process ids differ from those in the agent's container, if it runs
    /// in one, so the name must match.
    fn run_of(&mut self, details: &XidDetails) -> Option<String> {
        let identity = self.identities.of(details.pid?);
        let named = details.process.as_deref();
        let same = named.is_none_or(|name| identity.name.is_empty() || name.starts_with(&identity.name));
        identity.run.filter(|_| same)
    }

    fn knows_addresses(&mut self) -> bool {
        self.waited = self.waited.saturating_add(1);
        self.waited > SETTLE_TICKS || *self.settled.borrow()
    }

    /// Returns the GPU at an address. The host's log is about the host's GPUs, never about simulated ones.
    fn location(&self, pci: PciAddress) -> ErrorLocation {
        let inventory = self.inventory.borrow();
        if self.real_root && inventory.simulated.is_some() {
            return ErrorLocation::Device(pci);
        }
        let at = |bus_id: &str| bus_id.parse() == Ok(pci);
        let gpu = inventory.gpus.iter().find(|gpu| at(&gpu.pci_bus_id));
        gpu.map_or(ErrorLocation::Device(pci), |gpu| ErrorLocation::Gpu(gpu.index))
    }

    fn take_message(&mut self, at_ms: TimestampMs, message: XidMessage) {
        let run = self.run_of(&message.details);
        self.take(Sighting {
            at_ms,
            location: self.location(message.pci),
            xid: message.xid,
            witness: Witness::KernelLog,
            details: message.details,
            run,
        });
    }

    fn take(&mut self, sighting: Sighting) {
        let (location, xid) = (sighting.location, sighting.xid);
        let new = self.ledger.take(sighting, now_ms());
        self.counters.errors(location, xid, new);
    }

    fn report(&mut self, settled: &Settled) {
        let run = settled
            .run
            .clone()
            .or_else(|| self.counters.run_on(settled.location));
        let job = match &run {
            None => Job::Unknown,
            Some(run) if (self.is_stopping)(run) => Job::Ending,
            Some(_) => Job::Running,
        };
        let assessment = settled.assess(job);
        self.counters.judged(settled.location, settled.xid, &assessment);
        if let Some(suppressed) = self.ledger.begin_report(settled, &assessment) {
            self.events
                .report(report::event(settled, &assessment, run, suppressed));
        }
    }
}

/// The counters of this node's errors, by series.
struct Counters {
    samples: Samples,
    counts: HashMap<Labels, f64>,
}

impl Counters {
    fn new(samples: Samples) -> Self {
        let counts = HashMap::new();
        Self { samples, counts }
    }

    fn errors(&mut self, location: ErrorLocation, xid: u32, new: u32) {
        let gpu = location.label();
        let labels = |xid: &str| series("gpu_xid_errors_total", &[("gpu", gpu.as_str()), ("xid", xid)]);
        self.add(xid, f64::from(new), labels);
    }

    fn judged(&mut self, location: ErrorLocation, xid: u32, assessment: &Assessment) {
        let gpu = location.label();
        let labels = |xid: &str| {
            let labels = [
                ("gpu", gpu.as_str()),
                ("xid", xid),
                ("severity", report::severity_word(assessment.severity)),
                ("action", assessment.action.word()),
                ("cause", assessment.cause.word()),
            ];
            series("gpu_xid_judged_total", &labels)
        };
        self.add(xid, 1.0, labels);
    }

    fn add(&mut self, number: u32, new: f64, labels: impl Fn(&str) -> Labels) {
        if new == 0.0 {
            return;
        }
        let mut name = labels(&number.to_string());
        if self.counts.len() >= COUNTED_MAX && !self.counts.contains_key(&name) {
            name = labels("other");
        }
        let at_ms = now_ms();
        let count = self.counts.entry(name.clone()).or_default();
        if *count == 0.0 {
            // A counter that starts at one shows no increase.
            self.samples.push(&name, at_ms - 1_000, 0.0);
        }
        *count += new;
        self.samples.push(&name, at_ms, *count);
    }

    /// Writes all counters again, so that they do not become stale between errors.
    fn repeat(&self, at_ms: TimestampMs) {
        for (name, count) in &self.counts {
            self.samples.push(name, at_ms, *count);
        }
    }

    /// Returns the run that was last seen on a GPU.
    fn run_on(&self, location: ErrorLocation) -> Option<String> {
        let gpu = location.label();
        let latest = self.samples.latest();
        let assignment = latest.iter().find(|sample| {
            sample.series.metric_name() == Some("gpu_assignment_info")
                && sample.series.get("gpu") == Some(gpu.as_str())
        });
        assignment?.series.get("run").map(ToOwned::to_owned)
    }
}

#[cfg(test)]
mod tests;
