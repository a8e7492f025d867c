//! Device handles: numbers, never addresses, so that a stale or invented one is refused, not followed.
//!
//! A number tells the driver's generation too, so that what was handed out before the driver was reloaded is stale after it:
//!
//! ```text
//! 0x1GGG_NNII   G generation   NN GPU, from 0   II 00 the GPU itself, else its instance, from 1
//! ```

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::machine::Machine;
use super::session;
use crate::engine::fault::Gate;
use crate::engine::gpu::Gpu;
use crate::engine::mig::Instance;
use crate::engine::node::Node;
use crate::engine::status::Status;

/// Spread out and far from null, so that mixing them up with counts shows.
const DEVICE_BASE: usize = 0x1000_0000;
const GENERATION_STEP: usize = 0x1_0000;
/// Drivers told apart; after so many reloads an old handle would look like a new one again.
const GENERATIONS: usize = 0x1000;
const DEVICE_STEP: usize = 0x100;

/// A GPU that answers, and the moment it does.
pub(crate) struct Device {
    pub machine: Arc<Machine>,
    index: usize,
    pub t: f64,
}

/// What a handle leads to: a GPU, or one instance of it.
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

    /// The handle of one of its instances.
    pub(crate) fn instance_handle(&self, instance: &Instance) -> usize {
        handle_of(&self.machine, self.gpu().index) + 1 + instance.id as usize
    }
}

/// The handle of a GPU.
pub(crate) fn handle_of(machine: &Machine, gpu: u32) -> usize {
    let generation = machine.node.driver.generation(machine.now());
    DEVICE_BASE + generation % GENERATIONS * GENERATION_STEP + gpu as usize * DEVICE_STEP
}

/// The GPU behind a handle; NVML answers for instances only what [`subject`] is used for.
pub(crate) fn device(handle: usize) -> Result<Device, Status> {
    let subject = subject(handle)?;
    match subject.instance {
        None => Ok(subject.device),
        Some(_) => Err(Status::NotSupported),
    }
}

/// The GPU or instance behind a handle. Here a call meets what is wrong with the GPU: it is refused, slowed, or
/// does not come back.
pub(crate) fn subject(handle: usize) -> Result<Subject, Status> {
    let machine = session::machine()?;
    let offset = handle
        .checked_sub(handle_of(&machine, 0))
        .ok_or(Status::InvalidArgument)?;
    let (index, part) = (offset / DEVICE_STEP, offset % DEVICE_STEP);
    let gpu = machine.node.gpus.get(index).ok_or(Status::InvalidArgument)?;
    let t = pass_gate(&machine, gpu)?;
    let instance = match (part as u32).checked_sub(1) {
        None => None,
        Some(id) => Some(*gpu.instance(id, t).ok_or(Status::InvalidArgument)?),
    };
    let device = Device { machine, index, t };
    Ok(Subject { device, instance })
}

/// Waits as the GPU's troubles demand; gives the moment after that. A driver that was replaced meanwhile knows nothing of
/// the call.
fn pass_gate(machine: &Machine, gpu: &Gpu) -> Result<f64, Status> {
    loop {
        let t = machine.now();
        let gate = gpu.gate(t);
        match gate {
            Gate::Open => return Ok(t),
            Gate::Lost => return Err(Status::GpuIsLost),
            Gate::Slow(delay) => thread::sleep(delay),
            Gate::Until(end) if end.is_finite() => thread::sleep(Duration::from_secs_f64(end - t)),
            Gate::Until(_) => loop {
                thread::park();
            },
        }
        session::machine()?;
        if matches!(gate, Gate::Slow(_)) {
            return Ok(machine.now());
        }
    }
}
