//! The processes on a GPU: how much memory each uses, and which user and job it belongs to.

use std::collections::HashSet;

use domain::series::Labels;
use domain::time::TimestampMs;
use nvml_wrapper::Nvml;

use crate::sample::Samples;
use crate::sample::assignment;
use crate::sample::process::{Identities, Identity};
use crate::sample::series::series;

/// The maximum number of processes of a GPU with series, those with the most memory first. The number of series must not grow with what
/// users start.
const SHOWN_MAX: usize = 32;

/// Finds the name and owner of a process. Process ids of a simulated GPU do not belong to this machine and must not be looked up on it.
pub(crate) enum Naming<'a> {
    /// The processes of this machine.
    Host(Identities),
    /// The processes of the simulator.
    Simulated(&'a Nvml),
}

impl Naming<'_> {
    fn identify(&mut self, pid: u32) -> Identity {
        match self {
            Naming::Host(identities) => identities.of(pid),
            Naming::Simulated(nvml) => {
                let path = nvml.sys_process_name(pid, 256).unwrap_or_default();
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                Identity {
                    name,
                    ..Identity::default()
                }
            }
        }
    }
}

/// The processes of one GPU that have series.
pub(crate) struct Processes {
    gpu: String,
    shown: HashSet<Labels>,
}

impl Processes {
    pub(crate) fn new(gpu: u32) -> Self {
        Self {
            gpu: gpu.to_string(),
            shown: HashSet::new(),
        }
    }

    /// Writes the running processes, and ends the series of those that have ended.
    pub(crate) fn show(
        &mut self,
        mut running: Vec<(u32, Option<u64>)>,
        naming: &mut Naming<'_>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) {
        running.sort_unstable_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
        running.truncate(SHOWN_MAX);
        let mut now = HashSet::new();
        for (pid, bytes) in running {
            let identity = naming.identify(pid);
            if let Some(bytes) = bytes {
                let memory = self.memory(pid, &identity.name);
                samples.push(&memory, at_ms, bytes as f64);
                now.insert(memory);
            }
            if let Some(assignment) = assignment::of(&self.gpu, &identity) {
                // The source of an assignment is decided once, when the assignment is new.
                if self.shown.contains(&assignment) {
                    samples.push(&assignment, at_ms, 1.0);
                } else {
                    assignment::put(samples, &assignment, at_ms);
                }
                now.insert(assignment);
            }
        }
        self.shown
            .difference(&now)
            .for_each(|gone| samples.end(gone, at_ms));
        self.shown = now;
    }

    fn memory(&self, pid: u32, process: &str) -> Labels {
        let pid = pid.to_string();
        series(
            "gpu_process_memory_bytes",
            &[("gpu", &self.gpu), ("pid", &pid), ("process", process)],
        )
    }
}
