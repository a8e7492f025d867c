//! The performance counters of Hopper and newer (GPM): how busy the multiprocessors, their pipes, memory and links were,
//! as averages over the whole second, so that nothing between two looks is missed.

use std::time::Duration;

use nvml_wrapper::error::NvmlError;

use super::asker::{Asker, GpuLost};
use super::links::Pair;
use super::raw::Gpm;
use crate::sample::series::Writer;

/// One metric of GPM.
struct Counter {
    /// What it is called where a GPU refuses it.
    name: &'static str,
    id: u32,
    goes: Goes,
}

/// Where a value goes. Percentages become ratios; transfers are MiB a second.
#[derive(Clone, Copy)]
enum Goes {
    Ratio(&'static str),
    Pipe(&'static str),
    Rate,
}

const fn ratio(name: &'static str, id: u32, metric: &'static str) -> Counter {
    let goes = Goes::Ratio(metric);
    Counter { name, id, goes }
}

const fn pipe(name: &'static str, id: u32, pipe: &'static str) -> Counter {
    let goes = Goes::Pipe(pipe);
    Counter { name, id, goes }
}

const fn rate(name: &'static str, id: u32) -> Counter {
    let goes = Goes::Rate;
    Counter { name, id, goes }
}

/// Asked together every second.
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
/// Where the rates begin in the table.
const RATES: usize = 13;
pub(super) const MIB: f64 = 1_048_576.0;

/// The counters of one GPU.
#[derive(Default)]
pub(super) struct Counters<'a> {
    gpm: Option<Gpm<'a>>,
    /// Which of the table this GPU has not refused.
    asked: Vec<usize>,
}

/// Bytes a second over the interval between two samples, sent and received.
pub(super) struct Rates {
    pub(super) interval: Duration,
    pub(super) pcie: Option<Pair>,
    pub(super) nvlink: Option<Pair>,
}

impl<'a> Counters<'a> {
    /// Writes the averages since the last time; gives the links' rates. The first time there is nothing to give.
    pub(super) fn read(
        &mut self,
        asker: &mut Asker<'a>,
        out: &mut Writer<'_>,
    ) -> Result<Option<Rates>, GpuLost> {
        let Some(gpm) = &mut self.gpm else {
            self.gpm = first_sample(asker)?;
            self.asked = (0..COUNTERS.len()).collect();
            return Ok(None);
        };
        let ids = self.asked.iter().map(|&n| COUNTERS[n].id);
        let Some(interval) = asker.ask("gpm metrics", |_| gpm.ask(ids))?.flatten() else {
            return Ok(None);
        };
        let mut rates = [None; COUNTERS.len() - RATES];
        for (&n, answer) in self.asked.iter().zip(gpm.answers()) {
            let counter = &COUNTERS[n];
            let Some(value) = asker.judge(counter.name, answer)? else {
                continue;
            };
            match counter.goes {
                Goes::Ratio(metric) => out.put(metric, value / 100.0),
                Goes::Pipe(pipe) => out.put_by("gpu_pipe_active_ratio", ("pipe", pipe), value / 100.0),
                Goes::Rate => rates[n - RATES] = Some(value * MIB),
            }
        }
        self.asked.retain(|&n| !asker.is_refused(COUNTERS[n].name));
        let [pcie_tx, pcie_rx, nvlink_tx, nvlink_rx] = rates;
        Ok(Some(Rates {
            interval,
            pcie: pcie_tx.zip(pcie_rx).map(Pair::from),
            nvlink: nvlink_tx.zip(nvlink_rx).map(Pair::from),
        }))
    }
}

/// The first sample, of a GPU that has these counters.
pub(super) fn first_sample<'a>(asker: &mut Asker<'a>) -> Result<Option<Gpm<'a>>, GpuLost> {
    asker.ask("gpm", |gpu| match gpu.gpm_support() {
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
            assert_eq!(matches!(counter.goes, Goes::Rate), n >= RATES, "{}", counter.name);
            if let Goes::Ratio(metric) = counter.goes {
                assert!(domain::metric::find(metric).is_some(), "{metric}");
            }
        }
    }
}
