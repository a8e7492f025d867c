//! The share of a GPU's multiprocessors that each process used.

use std::collections::HashSet;

use domain::series::Labels;
use domain::time::TimestampMs;

use super::queries::{GpuLost, GpuQueries};
use super::raw;
use crate::sample::Samples;
use crate::sample::series::series;

/// The maximum number of processes of a GPU with series, the busiest first. The number of series must not grow with what users start.
const SHOWN_MAX: usize = 32;

/// The shares on one GPU, and the time of the last sample of the driver that was read.
#[derive(Default)]
pub(super) struct Shares {
    last_seen: u64,
    shown: HashSet<Labels>,
    dry: bool,
}

impl Shares {
    /// Writes the share of each process since the last reading. Ends the series of processes that have ended or are idle.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'_>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        let last_seen = &mut self.last_seen;
        let shares = queries.query("process utilization", |gpu| {
            raw::processes_utilization(gpu, last_seen)
        })?;
        // One reading without new samples is due to the driver's timing; two mean that the GPU is idle.
        let was_dry = std::mem::replace(&mut self.dry, shares.is_none());
        if shares.is_none() && !was_dry {
            return Ok(());
        }
        let mut shares = shares.unwrap_or_default();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        shares.truncate(SHOWN_MAX);
        let gpu = queries.index.to_string();
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
