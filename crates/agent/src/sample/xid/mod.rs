//! Xid errors of this node's GPUs: heard twice, told once, judged by what surrounds them. SXid errors of its NVSwitches beside them.
//!
//! ```text
//! thread "xid" (NVML)  ──Sighting──▶ ┐                     ┌─▶ gpu_xid_errors_total at once
//!                                    ├─▶ Ledger: one error ┤
//! /dev/kmsg, each second ──Spoken──▶ ┘   within ±2 s       └─▶ after 2 s: domain::xid::judge ─▶ event, gpu_xid_judged_total
//!                        ──SwitchError──▶ domain::sxid::judge ─▶ event, nvswitch_sxid_errors_total
//! ```
//! NVML is quick and needs no privilege, but is silent about a GPU that is gone; the kernel's log has process, link and sub-code.
//! The wait of two seconds lets both come together, and lets 94 or 95 arrive before 48 is judged.

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
use domain::xid::{Job, Verdict};
use tokio::sync::watch;

use self::ledger::{Ledger, Settled};
use self::switch::Switches;
use super::kernel_log::{Heard, KernelLog, Spoken, Told};
use super::process::Identities;
use super::schedule::Tick;
use super::series::series;
use crate::sample::Samples;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// Sightings between NVML's thread and this one: a second of a driver that repeats itself. Beyond, NVML's are dropped; the
/// kernel's log has them too.
const SIGHTINGS_MAX: usize = 1_024;
/// Series of errors; a healthy large node has none, a sick one some dozens. Beyond, they count as `other`.
const COUNTED_MAX: usize = 512;
/// Ticks for which the log waits until it is known which GPU has which address. A driver that hangs is not waited for.
const SETTLE_TICKS: u32 = 8;

/// Where an error happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A GPU NVML knows.
    Gpu(u32),
    /// A device NVML does not list, or not any more.
    Device(PciAddress),
}

impl Place {
    fn label(self) -> String {
        match self {
            Self::Gpu(index) => index.to_string(),
            Self::Device(pci) => pci.to_string(),
        }
    }
}

/// Who saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Witness {
    Nvml,
    KernelLog,
}

/// One error, as one witness saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) at_ms: TimestampMs,
    pub(crate) place: Place,
    pub(crate) xid: u32,
    pub(crate) witness: Witness,
    pub(crate) told: Told,
    /// The run of the process that was named.
    pub(crate) run: Option<String>,
}

/// Where NVML's thread puts what it sees. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub(crate) struct Sightings(SyncSender<Sighting>);

impl Sightings {
    /// A GPU, or an instance of it, reports an Xid.
    pub(crate) fn saw(&self, gpu: u32, xid: u32, instance: Option<u32>) {
        let sighting = Sighting {
            at_ms: now_ms(),
            place: Place::Gpu(gpu),
            xid,
            witness: Witness::Nvml,
            told: Told {
                instance,
                ..Told::default()
            },
            run: None,
        };
        if self.0.try_send(sighting).is_err() {
            tracing::debug!(
                gpu,
                xid,
                "too many Xid errors at once; this one is not counted twice"
            );
        }
    }
}

/// Whether a run is being stopped.
pub(crate) type Ending = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Listens to the log, gathers what NVML saw, and tells both.
pub(crate) struct XidReader {
    log: KernelLog,
    seen: Receiver<Sighting>,
    inventory: watch::Receiver<Arc<Inventory>>,
    settled: watch::Receiver<bool>,
    waited: u32,
    identities: Identities,
    ending: Ending,
    ledger: Ledger,
    switches: Switches,
    counters: Counters,
    events: Events,
    real_root: bool,
}

/// What an [`XidReader`] is made with.
pub(crate) struct Setting<'a> {
    pub(crate) root: &'a Path,
    /// Remembers between agents how far the log was heard.
    pub(crate) memory: Option<PathBuf>,
    pub(crate) inventory: watch::Receiver<Arc<Inventory>>,
    pub(crate) settled: watch::Receiver<bool>,
    pub(crate) ending: Ending,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
}

impl XidReader {
    /// A reader, and where NVML's thread tells it what it sees.
    pub(crate) fn new(setting: Setting<'_>) -> (Self, Sightings) {
        let (sender, seen) = sync_channel(SIGHTINGS_MAX);
        let reader = Self {
            log: KernelLog::new(setting.root, setting.memory),
            seen,
            inventory: setting.inventory,
            settled: setting.settled,
            waited: 0,
            identities: Identities::new(setting.root),
            ending: setting.ending,
            ledger: Ledger::default(),
            switches: Switches::default(),
            counters: Counters::new(setting.samples),
            events: setting.events,
            real_root: setting.root == Path::new("/"),
        };
        (reader, Sightings(sender))
    }

    /// Runs until the ticks end.
    pub(crate) fn run(mut self, ticks: &Receiver<Tick>) {
        while let Ok(tick) = ticks.recv() {
            self.read(&tick);
        }
    }

    fn read(&mut self, tick: &Tick) {
        for sighting in self.seen.try_iter().collect::<Vec<_>>() {
            self.take(sighting);
        }
        if self.knows_addresses() {
            if tick.topology {
                self.log.retry();
            }
            for (at_ms, heard) in self.log.listen() {
                match heard {
                    Heard::Gpu(spoken) => self.take_spoken(at_ms, spoken),
                    Heard::Switch(error) => {
                        if let Some(event) = self.switches.take(at_ms, &error, &mut self.counters) {
                            self.events.report(event);
                        }
                    }
                }
            }
        }
        for settled in self.ledger.settle(now_ms()) {
            self.tell(&settled);
        }
        if tick.slow {
            self.counters.repeat(tick.at_ms);
        }
    }

    /// The run of the process a line names. The kernel's numbers are not those of a container the agent may live in, so the name
    /// must be the same.
    fn whose(&mut self, told: &Told) -> Option<String> {
        let identity = self.identities.of(told.pid?);
        let named = told.process.as_deref();
        let same = named.is_none_or(|name| identity.name.is_empty() || name.starts_with(&identity.name));
        identity.run.filter(|_| same)
    }

    fn knows_addresses(&mut self) -> bool {
        self.waited = self.waited.saturating_add(1);
        self.waited > SETTLE_TICKS || *self.settled.borrow()
    }

    /// The GPU at an address. The host's log speaks of the host's GPUs, never of simulated ones.
    fn place(&self, pci: PciAddress) -> Place {
        let inventory = self.inventory.borrow();
        if self.real_root && inventory.simulated.is_some() {
            return Place::Device(pci);
        }
        let at = |bus_id: &str| bus_id.parse() == Ok(pci);
        let gpu = inventory.gpus.iter().find(|gpu| at(&gpu.pci_bus_id));
        gpu.map_or(Place::Device(pci), |gpu| Place::Gpu(gpu.index))
    }

    fn take_spoken(&mut self, at_ms: TimestampMs, spoken: Spoken) {
        let run = self.whose(&spoken.told);
        self.take(Sighting {
            at_ms,
            place: self.place(spoken.pci),
            xid: spoken.xid,
            witness: Witness::KernelLog,
            told: spoken.told,
            run,
        });
    }

    fn take(&mut self, sighting: Sighting) {
        let (place, xid) = (sighting.place, sighting.xid);
        let new = self.ledger.take(sighting, now_ms());
        self.counters.errors(place, xid, new);
    }

    fn tell(&mut self, settled: &Settled) {
        let run = settled
            .run
            .clone()
            .or_else(|| self.counters.run_on(settled.place));
        let job = match &run {
            None => Job::Unknown,
            Some(run) if (self.ending)(run) => Job::Ending,
            Some(_) => Job::Running,
        };
        let verdict = settled.judge(job);
        self.counters.judged(settled.place, settled.xid, &verdict);
        if let Some(folded) = self.ledger.worth_telling(settled, &verdict) {
            self.events.report(report::event(settled, &verdict, run, folded));
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

    fn errors(&mut self, place: Place, xid: u32, new: u32) {
        let gpu = place.label();
        let labels = |xid: &str| series("gpu_xid_errors_total", &[("gpu", gpu.as_str()), ("xid", xid)]);
        self.add(xid, f64::from(new), labels);
    }

    fn judged(&mut self, place: Place, xid: u32, verdict: &Verdict) {
        let gpu = place.label();
        let labels = |xid: &str| {
            let labels = [
                ("gpu", gpu.as_str()),
                ("xid", xid),
                ("severity", report::severity_word(verdict.severity)),
                ("action", verdict.action.word()),
                ("cause", verdict.cause.word()),
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
            // A counter that is born at one shows no increase.
            self.samples.push(&name, at_ms - 1_000, 0.0);
        }
        *count += new;
        self.samples.push(&name, at_ms, *count);
    }

    /// Writes all again, so that they do not go stale between errors.
    fn repeat(&self, at_ms: TimestampMs) {
        for (name, count) in &self.counts {
            self.samples.push(name, at_ms, *count);
        }
    }

    /// The run that was last seen on a GPU.
    fn run_on(&self, place: Place) -> Option<String> {
        let gpu = place.label();
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
