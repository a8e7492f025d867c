//! GPM, the performance counters of Hopper and newer: take two samples, ask for what lay between.

use super::Answer;
use super::exports;
use super::pointer::Out;
use super::session::{self, GpmSample, device, with_sample};
use super::structs::{GpmMetric, GpmRequest, GpmSupport};
use crate::engine::gpm;
use crate::engine::gpu::Gpu;
use crate::engine::status::Status;

/// Plain numbers, unlike the version words of other structs.
const SUPPORT_VERSION: u32 = 1;
const METRICS_VERSION: u32 = 1;
/// The longest metrics array any release has declared; a greater count is a mistake.
const METRICS_MAX: u32 = 512;

exports! {
    fn nvmlGpmQueryDeviceSupport(handle: usize, support: Out<GpmSupport>) {
        let device = device(handle)?;
        let version = support.version()?;
        if version != SUPPORT_VERSION {
            return Err(Status::ArgumentVersionMismatch);
        }
        support.put(GpmSupport { version, is_supported: u32::from(is_supported(device.gpu())) })
    }

    fn nvmlGpmSampleAlloc(sample: Out<usize>) {
        if sample.is_null() {
            return Err(Status::InvalidArgument);
        }
        sample.put(session::new_sample()?)
    }

    fn nvmlGpmSampleFree(sample: usize) {
        session::free_sample(sample)
    }

    fn nvmlGpmSampleGet(handle: usize, sample: usize) {
        let device = device(handle)?;
        if !is_supported(device.gpu()) {
            return Err(Status::NotSupported);
        }
        let taken = Some((device.gpu().index, device.t));
        with_sample(sample, |place| *place = GpmSample { taken })
    }

    /// MIG is off.
    fn nvmlGpmMigSampleGet(handle: usize, _instance: u32, _sample: usize) {
        device(handle)?;
        Err(Status::NotSupported)
    }

    fn nvmlGpmMetricsGet(request: Out<GpmRequest>) {
        let machine = session::machine()?;
        if request.version()? != METRICS_VERSION {
            return Err(Status::ArgumentVersionMismatch);
        }
        let GpmRequest { count, sample1, sample2, .. } = request.get()?;
        if !(1..=METRICS_MAX).contains(&count) {
            return Err(Status::InvalidArgument);
        }
        let (gpu, from) = taken(sample1)?;
        let (other, to) = taken(sample2)?;
        if gpu != other || to < from {
            return Err(Status::InvalidArgument);
        }
        let gpu = machine.node.gpus.get(gpu as usize).ok_or(Status::InvalidArgument)?;
        let metrics = request.followed_by::<GpmMetric>()?;
        (0..count as usize).try_for_each(|index| answer(gpu, &metrics, index, from, to))
    }

    fn nvmlGpmQueryIfStreamingEnabled(handle: usize, state: Out<u32>) {
        device(handle)?;
        state.put(0)
    }

    fn nvmlGpmSetStreamingEnabled(handle: usize, _state: u32) {
        device(handle)?;
        Err(Status::NotSupported)
    }
}

fn is_supported(gpu: &Gpu) -> bool {
    gpu.profile.gpm && gpu.driver.has_gpm()
}

/// Of which GPU a sample is and when it was taken; a sample that was only allocated is of no use.
fn taken(sample: usize) -> Result<(u32, f64), Status> {
    with_sample(sample, |place| place.taken)?.ok_or(Status::InvalidArgument)
}

fn answer(gpu: &Gpu, metrics: &Out<GpmMetric>, index: usize, from: f64, to: f64) -> Answer {
    let id = metrics.get_at(index)?.id;
    let (status, value) = match gpm::metric(gpu, id, from, to) {
        Ok(value) => (Status::Success, value),
        Err(status) => (status, 0.0),
    };
    let label = gpm::label(id);
    metrics.put_at(
        index,
        GpmMetric {
            id,
            status: status.code(),
            value,
            short_name: label.short.as_ptr(),
            long_name: label.long.as_ptr(),
            unit: label.unit.as_ptr(),
        },
    )
}
