//! The processes on a GPU: how much memory each holds, and whose it is.

use std::collections::HashSet;

use domain::series::Labels;
use domain::time::TimestampMs;
use nvml_wrapper::Nvml;

use crate::sample::Samples;
use crate::sample::assignment;
use crate::sample::process::{Identities, Identity};
use crate::sample::series::series;

/// Processes of a GPU that get a series of their own, the largest first: series must not grow with what users start.
const SHOWN_MAX: usize = 32;

/// Who a pid is. Pids of a simulated GPU are not of this machine and must not be looked up on it.
pub(crate) enum Naming<'a> {
    /// This machine's processes.
    Host(Identities),
    /// The simulator's.
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

    /// Writes what runs now, and ends the series of what has gone.
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
                // Who says it is settled once, when it is new.
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
