//! The thread that makes all NVML readings. It may hang in the driver; nobody waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use domain::topology::Inventory;
use nvml_wrapper::Nvml;
use tokio::sync::watch;

use super::gpu::{Slot, Surroundings};
use super::inventory::describe;
use super::library::{Library, Opened};
use super::meter::Meter;
use super::processes::Naming;
use super::xid;
use crate::sample::Samples;
use crate::sample::process::Identities;
use crate::sample::schedule::Tick;
use crate::uplink::Events;

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
}

impl NvmlReader {
    /// Runs until the ticks end. Without a driver it looks again in the slowest tier: drivers get installed and loaded.
    pub(crate) fn run(self, ticks: &Receiver<Tick>) {
        while let Ok(tick) = ticks.recv() {
            if !tick.topology {
                continue;
            }
            match self.library.open(&self.meter) {
                Ok(opened) => return self.read(opened, tick, ticks),
                Err(error) => {
                    let why = self.library.why_missing(&error);
                    self.update_inventory(|inventory| inventory.gpus_missing = Some(why.clone()));
                    self.settled.send_replace(true);
                }
            }
        }
    }

    fn read(&self, opened: Opened, first: Tick, ticks: &Receiver<Tick>) {
        let Opened { nvml, simulated } = opened;
        let nvml = Arc::new(nvml);
        self.meter.set_open(true);
        let xids = xid::watch(Arc::clone(&nvml), self.samples.clone(), self.events.clone());
        let mut gpus = Gpus::find(self, &nvml, simulated);
        let mut tick = first;
        loop {
            gpus.read(&tick);
            self.settled.send_replace(true);
            match ticks.recv() {
                Ok(next) => tick = next,
                Err(_) => break,
            }
        }
        drop(xids);
        self.meter.set_open(false);
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

/// All GPUs of the machine, in NVML's order.
struct Gpus<'a> {
    reader: &'a NvmlReader,
    nvml: &'a Nvml,
    simulated: Option<String>,
    naming: Naming<'a>,
    slots: Vec<Slot<'a>>,
}

impl<'a> Gpus<'a> {
    fn find(reader: &'a NvmlReader, nvml: &'a Nvml, simulated: Option<String>) -> Self {
        let naming = match &simulated {
            Some(_) => Naming::Simulated(nvml),
            None => Naming::Host(Identities::new(&reader.root)),
        };
        let count = reader.meter.call(None, || nvml.device_count()).unwrap_or(0);
        let around = Surroundings {
            nvml,
            meter: &reader.meter,
            samples: &reader.samples,
            events: &reader.events,
        };
        let slots = (0..count).map(|index| Slot::new(index, around)).collect();
        Self {
            reader,
            nvml,
            simulated,
            naming,
            slots,
        }
    }

    fn read(&mut self, tick: &Tick) {
        for slot in &mut self.slots {
            slot.read(tick, &mut self.naming);
        }
        if tick.topology {
            self.publish();
        }
    }

    fn publish(&self) {
        let devices = (0..).zip(self.slots.iter().map(Slot::device));
        self.reader.meter.call(None, || {
            self.reader.update_inventory(|inventory| {
                describe(inventory, self.nvml, self.simulated.as_ref(), devices);
            });
        });
    }
}
