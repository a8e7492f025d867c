//! The instances into which a GPU is divided (MIG): which exist, their memory, and their performance counters. They are searched every
//! minute, because only an administrator changes them.

use domain::series::Labels;
use domain::time::TimestampMs;
use domain::topology::MigInstance;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::queries::{GpuLost, GpuQueries, is_driver_gone};
use super::raw::{self, Gpm};
use crate::sample::Samples;
use crate::sample::series::{Family, series};

/// The performance counters that are read for an instance.
const COUNTERS: [(u32, &str); 4] = [
    (2, "gpu_mig_sm_active_ratio"),
    (3, "gpu_mig_sm_occupancy_ratio"),
    (5, "gpu_mig_tensor_active_ratio"),
    (10, "gpu_mig_dram_active_ratio"),
];
/// The query that reports whether a GPU is divided.
pub(super) const MIG_MODE: &str = "mig mode";

/// The instances of one GPU.
#[derive(Default)]
pub(super) struct MigInstances<'a>(Vec<Instance<'a>>);

struct Instance<'a> {
    device: Device<'a>,
    what: MigInstance,
    gpu_instance: u32,
    family: Family,
    info: Labels,
    counters: Counters<'a>,
}

/// The counters belong to a GPU instance. If it has several compute instances, the first one shows them.
enum Counters<'a> {
    NotYet,
    Read(Gpm<'a>),
    None,
}

impl<'a> MigInstances<'a> {
    /// Returns the instances, for the inventory.
    pub(super) fn describe(&self) -> impl Iterator<Item = MigInstance> {
        self.0.iter().map(|instance| instance.what.clone())
    }

    /// Finds the current instances. If they changed, ends the series of the old ones.
    pub(super) fn find(
        &mut self,
        queries: &mut GpuQueries<'a>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        let mode = queries.query(MIG_MODE, |gpu| gpu.mig_mode())?;
        let divided = mode.is_some_and(|mode| mode.current == 1);
        let most = match divided {
            true => queries
                .query("mig instances", |gpu| gpu.mig_device_count())?
                .unwrap_or(0),
            false => 0,
        };
        let mut found: Vec<Instance<'a>> = Vec::new();
        for index in 0..most {
            let Some((device, gpu_instance, what)) = queries
                .query("mig instance", |gpu| lenient(instance(gpu, index)))?
                .flatten()
            else {
                continue;
            };
            let first = found.iter().all(|other| other.gpu_instance != gpu_instance);
            found.push(Instance::new(queries.index, device, gpu_instance, what, first));
        }
        let same = |old: &Instance<'_>, new: &Instance<'_>| old.what == new.what;
        if self.0.len() == found.len() && self.0.iter().zip(&found).all(|(old, new)| same(old, new)) {
            return Ok(());
        }
        self.end(queries.index, samples, at_ms);
        self.0 = found;
        Ok(())
    }

    /// Reads the counters of each instance.
    pub(super) fn read_core(
        &mut self,
        queries: &mut GpuQueries<'a>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        self.0
            .iter_mut()
            .try_for_each(|instance| instance.read_counters(queries, samples, at_ms))
    }

    /// Reads the memory of each instance, and writes its info series.
    pub(super) fn read_slow(
        &mut self,
        queries: &mut GpuQueries<'a>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        for instance in &mut self.0 {
            samples.push(&instance.info, at_ms, 1.0);
            let (out, device) = (&mut instance.family.at(samples, at_ms), &instance.device);
            if let Some(memory) = queries
                .query("mig memory", |_| lenient(raw::memory(device)))?
                .flatten()
            {
                out.put("gpu_mig_memory_used_bytes", memory.used as f64);
                out.put("gpu_mig_memory_total_bytes", memory.total as f64);
            }
        }
        Ok(())
    }

    fn end(&self, gpu: u32, samples: &Samples, at_ms: TimestampMs) {
        if self.0.is_empty() {
            return;
        }
        let gpu = gpu.to_string();
        samples.end_where(at_ms, |series| {
            series.get("gpu") == Some(&gpu) && series.get("instance").is_some()
        });
    }
}

impl<'a> Instance<'a> {
    fn new(gpu: u32, device: Device<'a>, gpu_instance: u32, what: MigInstance, first: bool) -> Self {
        let gpu = gpu.to_string();
        let labels = [
            ("gpu", gpu.as_str()),
            ("instance", &what.instance),
            ("uuid", &what.uuid),
            ("name", &what.name),
        ];
        Self {
            info: series("gpu_mig_info", &labels),
            family: Family::new(vec![("gpu", gpu.clone()), ("instance", what.instance.clone())]),
            device,
            what,
            gpu_instance,
            counters: if first { Counters::NotYet } else { Counters::None },
        }
    }

    fn read_counters(
        &mut self,
        queries: &mut GpuQueries<'a>,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        let instance = self.gpu_instance;
        match &mut self.counters {
            Counters::None => {}
            Counters::NotYet => {
                let gpm = queries.query("mig gpm", |gpu| lenient(Gpm::new(gpu, Some(instance))))?;
                // An instance without compute resources has no counters.
                self.counters = gpm.flatten().map_or(Counters::None, Counters::Read);
            }
            Counters::Read(gpm) => {
                let ids = COUNTERS.iter().map(|(id, _)| *id);
                let answered = queries.query("mig gpm metrics", |_| lenient(gpm.query(ids)))?;
                if answered.flatten().flatten().is_some() {
                    let out = &mut self.family.at(samples, at_ms);
                    for ((_, metric), answer) in COUNTERS.into_iter().zip(gpm.answers()) {
                        if let Ok(percent) = answer {
                            out.put(metric, percent / 100.0);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn instance<'a>(gpu: &Device<'a>, index: u32) -> Result<(Device<'a>, u32, MigInstance), NvmlError> {
    let device = gpu.mig_device_by_index(index)?;
    let (gpu_instance, compute_instance) = raw::mig_instance(&device)?;
    let what = MigInstance {
        instance: format!("{gpu_instance}/{compute_instance}"),
        uuid: device.uuid()?,
        name: device.name().unwrap_or_default(),
        memory_total_bytes: raw::memory(&device).map_or(0, |memory| memory.total),
    };
    Ok((device, gpu_instance, what))
}

/// Ignores errors of an instance, which may disappear between two readings. Returns an error only if the GPU or the driver is gone.
fn lenient<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(error),
        Err(error) if is_driver_gone(&error) => Err(error),
        Err(_) => Ok(None),
    }
}
