//! The performance counters of Hopper and newer GPUs (GPM): how busy the multiprocessors, their pipes, the memory and the links were. They
//! are averages over the whole second, so nothing between two readings is missed.

use std::time::Duration;

use nvml_wrapper::error::NvmlError;

use super::links::Pair;
use super::queries::{GpuLost, GpuQueries};
use super::raw::Gpm;
use crate::sample::series::Writer;

/// One metric of GPM.
struct Counter {
    /// The name of the query if a GPU does not support it.
    name: &'static str,
    id: u32,
    target: Target,
}

/// Where a value is written. Percentages become ratios; transfers are in MiB per second.
#[derive(Clone, Copy)]
enum Target {
    Ratio(&'static str),
    Pipe(&'static str),
    Rate,
}

const fn ratio(name: &'static str, id: u32, metric: &'static str) -> Counter {
    let target = Target::Ratio(metric);
    Counter { name, id, target }
}

const fn pipe(name: &'static str, id: u32, pipe: &'static str) -> Counter {
    let target = Target::Pipe(pipe);
    Counter { name, id, target }
}

const fn rate(name: &'static str, id: u32) -> Counter {
    let target = Target::Rate;
    Counter { name, id, target }
}

/// The counters that are read together every second.
const COUNTERS: [Counter; 17] = [
    ratio("gpm graphics", 1, "gpu_graphics_active_ratio"),
    ratio("gpm sm", 2, "gpu_sm_active_ratio"),
    ratio("gpm occupancy", 3, "gpu_sm_occupancy_ratio"),
    ratio("gpm tensor", 5, "gpu_tensor_active_ratio"),
    ratio("gpm dram", 10, "gpu_dram_active_ratio"),
    pipe("gpm integer", 4, "integer"),
    pipe("gpm dfma", 6, "tensor_dfma"),
    pipe("gpm hmma", 7, "tensor_hmma"),
    pipe("gpm dmma", 8, "tensor_dmma"),
    pipe("gpm imma", 9, "tensor_imma"),
    pipe("gpm fp64", 11, "fp64"),
    pipe("gpm fp32", 12, "fp32"),
    pipe("gpm fp16", 13, "fp16"),
    rate("gpm pcie tx", 20),
    rate("gpm pcie rx", 21),
    rate("gpm nvlink tx", 61),
    rate("gpm nvlink rx", 60),
];
/// The index of the first rate in the table.
const RATES: usize = 13;
pub(super) const MIB: f64 = 1_048_576.0;

/// The performance counters of one GPU.
#[derive(Default)]
pub(super) struct Counters<'a> {
    gpm: Option<Gpm<'a>>,
    /// The indexes in the table of the counters that this GPU supports.
    supported: Vec<usize>,
}

/// Bytes sent and received per second, over the interval between two samples.
pub(super) struct Rates {
    pub(super) interval: Duration,
    pub(super) pcie: Option<Pair>,
    pub(super) nvlink: Option<Pair>,
}

impl<'a> Counters<'a> {
    /// Writes the averages since the last call, and returns the rates of the links. The first call has nothing to return.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'a>,
        out: &mut Writer<'_>,
    ) -> Result<Option<Rates>, GpuLost> {
        let Some(gpm) = &mut self.gpm else {
            self.gpm = first_sample(queries)?;
            self.supported = (0..COUNTERS.len()).collect();
            return Ok(None);
        };
        let ids = self.supported.iter().map(|&n| COUNTERS[n].id);
        let Some(interval) = queries.query("gpm metrics", |_| gpm.query(ids))?.flatten() else {
            return Ok(None);
        };
        let mut rates = [None; COUNTERS.len() - RATES];
        for (&n, answer) in self.supported.iter().zip(gpm.answers()) {
            let counter = &COUNTERS[n];
            let Some(value) = queries.judge(counter.name, answer)? else {
                continue;
            };
            match counter.target {
                Target::Ratio(metric) => out.put(metric, value / 100.0),
                Target::Pipe(pipe) => out.put_by("gpu_pipe_active_ratio", ("pipe", pipe), value / 100.0),
                Target::Rate => rates[n - RATES] = Some(value * MIB),
            }
        }
        self.supported.retain(|&n| !queries.is_refused(COUNTERS[n].name));
        let [pcie_tx, pcie_rx, nvlink_tx, nvlink_rx] = rates;
        Ok(Some(Rates {
            interval,
            pcie: pcie_tx.zip(pcie_rx).map(Pair::from),
            nvlink: nvlink_tx.zip(nvlink_rx).map(Pair::from),
        }))
    }
}

/// Takes the first sample, if the GPU has these counters.
pub(super) fn first_sample<'a>(queries: &mut GpuQueries<'a>) -> Result<Option<Gpm<'a>>, GpuLost> {
    queries.query("gpm", |gpu| match gpu.gpm_support() {
        Ok(true) => Gpm::new(gpu, None),
        Ok(false) => Err(NvmlError::NotSupported),
        Err(error) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_at_the_end_and_metrics_in_the_catalogue() {
        for (n, counter) in COUNTERS.iter().enumerate() {
            assert_eq!(
                matches!(counter.target, Target::Rate),
                n >= RATES,
                "{}",
                counter.name
            );
            if let Target::Ratio(metric) = counter.target {
                assert!(domain::metric::find(metric).is_some(), "{metric}");
            }
        }
    }
}
