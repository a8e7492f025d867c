//! Reads the utilization of a GPU and its peak power from the driver's sample rings. They give averages over the last second instead of one
//! momentary value. If a ring has no new values (this happens in an idle GPU), the plain call is used.

use super::queries::{GpuLost, GpuQueries};
use super::raw::{GPU_UTILIZATION, MEMORY_UTILIZATION, POWER, SampleRing};
use crate::sample::series::Writer;

/// The sample rings of one GPU.
pub(super) struct Utilization {
    gpu: SampleRing,
    memory: SampleRing,
    power: SampleRing,
}

impl Default for Utilization {
    fn default() -> Self {
        Self {
            gpu: SampleRing::new(GPU_UTILIZATION),
            memory: SampleRing::new(MEMORY_UTILIZATION),
            power: SampleRing::new(POWER),
        }
    }
}

impl Utilization {
    /// Reads the values of the last second.
    pub(super) fn read(&mut self, queries: &mut GpuQueries<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let gpu = queries
            .query("utilization ring", |gpu| self.gpu.read(gpu))?
            .flatten();
        let memory = match gpu {
            Some(_) => queries
                .query("memory utilization ring", |gpu| self.memory.read(gpu))?
                .flatten(),
            None => None,
        };
        let (mut gpu, mut memory) = (gpu.map(|since| since.mean), memory.map(|since| since.mean));
        if gpu.is_none() || memory.is_none() {
            let now = queries.query("utilization", |gpu| gpu.utilization_rates())?;
            gpu = gpu.or(now.as_ref().map(|now| f64::from(now.gpu)));
            memory = memory.or(now.map(|now| f64::from(now.memory)));
        }
        if let Some(percent) = gpu {
            out.put("gpu_utilization_ratio", percent / 100.0);
        }
        if let Some(percent) = memory {
            out.put("gpu_memory_utilization_ratio", percent / 100.0);
        }
        if let Some(power) = queries.query("power ring", |gpu| self.power.read(gpu))?.flatten() {
            out.put("gpu_power_max_watts", power.max / 1e3);
        }
        Ok(())
    }
}
