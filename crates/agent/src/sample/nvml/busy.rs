//! How busy a GPU was, and its peak of power, from the driver's sample rings: averages of all that happened in the second
//! instead of one look at it. A ring that has nothing new (it runs dry in an idle GPU) gives way to the plain call.

use super::asker::{Asker, GpuLost};
use super::raw::{GPU_UTILIZATION, MEMORY_UTILIZATION, POWER, SampleRing};
use crate::sample::series::Writer;

/// The rings of one GPU.
pub(super) struct Busy {
    gpu: SampleRing,
    memory: SampleRing,
    power: SampleRing,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            gpu: SampleRing::new(GPU_UTILIZATION),
            memory: SampleRing::new(MEMORY_UTILIZATION),
            power: SampleRing::new(POWER),
        }
    }
}

impl Busy {
    /// Reads what the last second was like.
    pub(super) fn read(&mut self, asker: &mut Asker<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let gpu = asker.ask("utilization ring", |gpu| self.gpu.read(gpu))?.flatten();
        let memory = match gpu {
            Some(_) => asker
                .ask("memory utilization ring", |gpu| self.memory.read(gpu))?
                .flatten(),
            None => None,
        };
        let (mut gpu, mut memory) = (gpu.map(|since| since.mean), memory.map(|since| since.mean));
        if gpu.is_none() || memory.is_none() {
            let now = asker.ask("utilization", |gpu| gpu.utilization_rates())?;
            gpu = gpu.or(now.as_ref().map(|now| f64::from(now.gpu)));
            memory = memory.or(now.map(|now| f64::from(now.memory)));
        }
        if let Some(percent) = gpu {
            out.put("gpu_utilization_ratio", percent / 100.0);
        }
        if let Some(percent) = memory {
            out.put("gpu_memory_utilization_ratio", percent / 100.0);
        }
        if let Some(power) = asker.ask("power ring", |gpu| self.power.read(gpu))?.flatten() {
            out.put("gpu_power_max_watts", power.max / 1e3);
        }
        Ok(())
    }
}
