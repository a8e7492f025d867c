//! GPM, the performance counters of Hopper and newer GPUs: a client takes two samples and requests the averages between them.

use super::CallResult;
use super::exports;
use super::handle::{Subject, device, subject};
use super::objects::{self, GpmSample, Taken, with_sample};
use super::pointer::Out;
use super::session;
use super::structs::{GpmMetric, GpmRequest, GpmSupport};
use crate::engine::gpm::{self, Scope};
use crate::engine::gpu::Gpu;
use crate::engine::status::Status;

/// Plain numbers, unlike the version words of other structs.
const SUPPORT_VERSION: u32 = 1;
const METRICS_VERSION: u32 = 1;
/// The longest metrics array in any release. A greater count is a mistake.
const METRICS_MAX: u32 = 512;

exports! {
    fn nvmlGpmQueryDeviceSupport(handle: usize, support: Out<GpmSupport>) {
        let subject = subject(handle)?;
        let version = support.version()?;
        if version != SUPPORT_VERSION {
            return Err(Status::ArgumentVersionMismatch);
        }
        support.put(GpmSupport { version, is_supported: u32::from(is_supported(&subject)) })
    }

    fn nvmlGpmSampleAlloc(sample: Out<usize>) {
        if sample.is_null() {
            return Err(Status::InvalidArgument);
        }
        sample.put(objects::new_sample()?)
    }

    fn nvmlGpmSampleFree(sample: usize) {
        objects::free_sample(sample)
    }

    /// Of a GPU, or of an instance by its own handle.
    fn nvmlGpmSampleGet(handle: usize, sample: usize) {
        take(&subject(handle)?, sample)
    }

    /// Of an instance by its id.
    fn nvmlGpmMigSampleGet(handle: usize, instance: u32, sample: usize) {
        let device = device(handle)?;
        let found = device.gpu().instances(device.t).ok_or(Status::NotSupported)?;
        let instance = found.iter().find(|one| one.id == instance).ok_or(Status::InvalidArgument)?;
        let instance = Some(*instance);
        take(&Subject { device, instance }, sample)
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
        let (from, to) = (taken(sample1)?, taken(sample2)?);
        if (from.gpu, from.instance) != (to.gpu, to.instance) || to.at < from.at {
            return Err(Status::InvalidArgument);
        }
        let gpu = machine.node.gpus.get(from.gpu as usize).ok_or(Status::InvalidArgument)?;
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

fn is_supported(subject: &Subject) -> bool {
    let gpu = subject.device.gpu();
    gpu.profile.gpm && gpu.driver.at(subject.device.t).has_gpm()
}

fn take(subject: &Subject, sample: usize) -> CallResult {
    if !is_supported(subject) {
        return Err(Status::NotSupported);
    }
    let taken = Taken {
        gpu: subject.device.gpu().index,
        instance: subject.instance.map(|instance| instance.id),
        at: subject.device.t,
    };
    with_sample(sample, |slot| *slot = GpmSample { taken: Some(taken) })
}

/// Returns what a sample covers. A sample that was only allocated is invalid.
fn taken(sample: usize) -> Result<Taken, Status> {
    with_sample(sample, |slot| slot.taken)?.ok_or(Status::InvalidArgument)
}

fn answer(gpu: &Gpu, metrics: &Out<GpmMetric>, index: usize, from: Taken, to: Taken) -> CallResult {
    let id = metrics.get_at(index)?.id;
    let scope = from.instance.map_or(Scope::Gpu, Scope::Instance);
    let (status, value) = match gpm::metric(gpu, scope, id, from.at, to.at) {
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
