//! What share of a GPU's multiprocessors each process had.

use std::collections::HashSet;

use domain::series::Labels;
use domain::time::TimestampMs;

use super::asker::{Asker, GpuLost};
use super::raw;
use crate::sample::Samples;
use crate::sample::series::series;

/// Processes of a GPU that get a series of their own, the busiest first: series must not grow with what users start.
const SHOWN_MAX: usize = 32;

/// The shares on one GPU, and how far the driver's samples were read.
#[derive(Default)]
pub(super) struct Shares {
    last_seen: u64,
    shown: HashSet<Labels>,
    dry: bool,
}

impl Shares {
    /// Writes each process's share since the last time, and ends the series of what has gone or is idle.
    pub(super) fn read(
        &mut self,
        asker: &mut Asker<'_>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        let last_seen = &mut self.last_seen;
        let shares = asker.ask("process utilization", |gpu| {
            raw::processes_utilization(gpu, last_seen)
        })?;
        // Nothing new once is the driver's clock; twice is an idle GPU.
        let was_dry = std::mem::replace(&mut self.dry, shares.is_none());
        if shares.is_none() && !was_dry {
            return Ok(());
        }
        let mut shares = shares.unwrap_or_default();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        shares.truncate(SHOWN_MAX);
        let gpu = asker.index.to_string();
        let mut now = HashSet::new();
        for (pid, ratio) in shares {
            let labels = [("gpu", gpu.as_str()), ("pid", &pid.to_string())];
            let share = series("gpu_process_sm_ratio", &labels);
            samples.push(&share, at_ms, ratio);
            now.insert(share);
        }
        self.shown
            .difference(&now)
            .for_each(|gone| samples.end(gone, at_ms));
        self.shown = now;
        Ok(())
    }
}
