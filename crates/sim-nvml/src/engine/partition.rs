//! A GPU in MIG mode: when it is partitioned, and the values of its instances.

use super::fault::Window;
use super::gpu::{Gpu, Memory};
use super::mig::{Instance, Layout};

/// When a GPU is partitioned, and how. The windows do not overlap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Partitions(pub Vec<(Window, Layout)>);

impl Gpu {
    /// Returns the instances in the order of their indices, or `None` if MIG mode is off.
    pub(crate) fn instances(&self, t: f64) -> Option<&[Instance]> {
        let current = self.partitions.0.iter().find(|(window, _)| window.holds(t));
        current.map(|(_, layout)| layout.0.as_slice())
    }

    /// Returns the instance with this id, if it exists now.
    pub(crate) fn instance(&self, id: u32, t: f64) -> Option<&Instance> {
        self.instances(t)?.iter().find(|instance| instance.id == id)
    }

    /// Returns the memory of one instance. Nothing of it is reserved.
    pub(crate) fn instance_memory(&self, instance: &Instance, t: f64) -> Memory {
        let total = instance.slice.memory_mib << 20;
        let used = if self.job.is_training(t) {
            instance.used_bytes(self.noise)
        } else {
            0
        };
        Memory {
            total,
            reserved: 0,
            used,
            free: total - used,
        }
    }
}
