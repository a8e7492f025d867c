//! Device handles. They are numbers, never addresses, so a stale or invented handle is refused and not dereferenced.
//!
//! A handle contains the driver's generation, so handles from before a reload of the driver are stale after it:
//!
//! ```text
//! 0x1GGG_NNII   G generation   NN GPU, from 0   II 00 the GPU itself, otherwise its instance, from 1
//! ```

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::machine::Machine;
use super::session;
use crate::engine::fault::CallEffect;
use crate::engine::gpu::Gpu;
use crate::engine::mig::Instance;
use crate::engine::node::Node;
use crate::engine::status::Status;

/// The base of handles, far from null and from usual counts, so that a confusion with them is detected.
const DEVICE_BASE: usize = 0x1000_0000;
const GENERATION_STEP: usize = 0x1_0000;
/// The number of different generations. After this many reloads, an old handle looks like a new one again.
const GENERATIONS: usize = 0x1000;
const DEVICE_STEP: usize = 0x100;

/// A GPU that answers, and the time of the answer.
pub(crate) struct Device {
    pub machine: Arc<Machine>,
    index: usize,
    pub t: f64,
}

/// The object of a handle: a GPU, or one instance of it.
pub(crate) struct Subject {
    pub device: Device,
    pub instance: Option<Instance>,
}

impl Device {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.machine.node.gpus[self.index]
    }

    pub(crate) fn node(&self) -> &Node {
        &self.machine.node
    }

    /// Returns the handle of one of the GPU's instances.
    pub(crate) fn instance_handle(&self, instance: &Instance) -> usize {
        handle_of(&self.machine, self.gpu().index) + 1 + instance.id as usize
    }
}

/// Returns the handle of a GPU.
pub(crate) fn handle_of(machine: &Machine, gpu: u32) -> usize {
    let generation = machine.node.driver.generation(machine.now());
    DEVICE_BASE + generation % GENERATIONS * GENERATION_STEP + gpu as usize * DEVICE_STEP
}

/// Returns the GPU of a handle. For instances, NVML supports only the calls that use [`subject`].
pub(crate) fn device(handle: usize) -> Result<Device, Status> {
    let subject = subject(handle)?;
    match subject.instance {
        None => Ok(subject.device),
        Some(_) => Err(Status::NotSupported),
    }
}

/// Returns the GPU or instance of a handle. Faults of the GPU take effect here: the call is refused, delayed, or does not return.
pub(crate) fn subject(handle: usize) -> Result<Subject, Status> {
    let machine = session::machine()?;
    let offset = handle
        .checked_sub(handle_of(&machine, 0))
        .ok_or(Status::InvalidArgument)?;
    let (index, part) = (offset / DEVICE_STEP, offset % DEVICE_STEP);
    let gpu = machine.node.gpus.get(index).ok_or(Status::InvalidArgument)?;
    let t = wait_for_faults(&machine, gpu)?;
    let instance = match (part as u32).checked_sub(1) {
        None => None,
        Some(id) => Some(*gpu.instance(id, t).ok_or(Status::InvalidArgument)?),
    };
    let device = Device { machine, index, t };
    Ok(Subject { device, instance })
}

/// Waits as the GPU's faults require, and returns the time after that. If the driver was replaced meanwhile, the call fails.
fn wait_for_faults(machine: &Machine, gpu: &Gpu) -> Result<f64, Status> {
    loop {
        let t = machine.now();
        let effect = gpu.call_effect(t);
        match effect {
            CallEffect::Normal => return Ok(t),
            CallEffect::Lost => return Err(Status::GpuIsLost),
            CallEffect::Slow(delay) => thread::sleep(delay),
            CallEffect::HangsUntil(end) if end.is_finite() => thread::sleep(Duration::from_secs_f64(end - t)),
            CallEffect::HangsUntil(_) => loop {
                thread::park();
            },
        }
        session::machine()?;
        if matches!(effect, CallEffect::Slow(_)) {
            return Ok(machine.now());
        }
    }
}
