//! Reads the host under a root path: processor, memory, disks, networks, file systems. Each file reads one of them and parses its format.
//! If a file is missing or malformed, only its own metrics are missing.

mod cpu;
mod disk;
mod filesystem;
mod infiniband;
mod inventory;
mod memory;
mod network;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

pub(crate) use filesystem::Filesystems;
pub(crate) use inventory::describe;

use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;

/// Reads everything of the host except file systems, which may hang and have their own thread.
pub(crate) struct HostReader {
    root: PathBuf,
    samples: Samples,
    family: Family,
    disks: disk::Disks,
    networks: network::Networks,
    infiniband: infiniband::Ports,
}

impl HostReader {
    /// Reads under `root`.
    pub(crate) fn new(root: &Path, samples: Samples) -> Self {
        Self {
            root: root.to_owned(),
            samples,
            family: Family::default(),
            disks: disk::Disks::default(),
            networks: network::Networks::default(),
            infiniband: infiniband::Ports::default(),
        }
    }

    /// Runs until the channel of ticks closes.
    pub(crate) fn run(mut self, ticks: &Receiver<Tick>) {
        while let Ok(tick) = ticks.recv() {
            self.read(&tick);
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, tick: &Tick) {
        let out = &mut self.family.at(&self.samples, tick.at_ms);
        cpu::read(&self.root, out);
        memory::read(&self.root, out);
        self.disks.read(&self.root, &self.samples, tick.at_ms);
        let rdma = self.infiniband.read(&self.root, &self.samples, tick);
        self.networks.read(&self.root, &self.samples, tick, &rdma);
    }
}

/// The initial room for a file of `/proc`. These files do not report their length; with this room most are read with one call.
const TEXT_BYTES: usize = 16 << 10;

/// Returns the text of a file, or `None` if it cannot be read.
fn text(root: &Path, path: &str) -> Option<String> {
    let mut text = String::with_capacity(TEXT_BYTES);
    File::open(root.join(path)).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Reads a file that contains one number.
fn number(path: &Path) -> Option<f64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
