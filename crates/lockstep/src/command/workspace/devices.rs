//! Finds which of this machine's GPUs a workspace can use.

use domain::container::Gpus;
use domain::topology::Inventory;
use serde::Serialize;

/// A GPU or MIG instance that a workspace can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    /// NVML's index of the GPU.
    pub(super) index: u32,
    pub(super) uuid: String,
    pub(super) name: String,
}

/// Returns the requested devices that exist. A UUID may be shortened, as the runtimes allow.
pub(super) fn existing(gpus: &Gpus, inventory: &Inventory) -> Vec<Device> {
    let whole = inventory.gpus.iter().map(|gpu| Device {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
    });
    let whole: Vec<Device> = whole.collect();
    match gpus {
        Gpus::None => Vec::new(),
        Gpus::All => whole,
        Gpus::Devices(asked) => {
            let instances = inventory.gpus.iter().flat_map(|gpu| {
                gpu.mig_instances.iter().map(|instance| Device {
                    index: gpu.index,
                    uuid: instance.uuid.clone(),
                    name: instance.name.clone(),
                })
            });
            let known: Vec<Device> = whole.iter().cloned().chain(instances).collect();
            let of = |asked: &String| match asked.parse::<u32>() {
                Ok(index) => whole.iter().find(|gpu| gpu.index == index),
                Err(_) => known.iter().find(|device| device.uuid.starts_with(asked)),
            };
            asked.iter().filter_map(of).cloned().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::topology::{Gpu, MigInstance};

    use super::*;
    use crate::command::workspace::settings::gpus;

    #[test]
    fn gpus_are_found_by_index_by_uuid_and_by_instance() {
        let gpu = |index, uuid: &str| Gpu {
            index,
            uuid: uuid.into(),
            name: "NVIDIA H100".into(),
            ..Gpu::default()
        };
        let divided = Gpu {
            mig_instances: vec![MigInstance {
                uuid: "MIG-c3".into(),
                ..MigInstance::default()
            }],
            ..gpu(1, "GPU-b2")
        };
        let inventory = Inventory {
            gpus: vec![gpu(0, "GPU-a1"), divided],
            ..Inventory::default()
        };
        for (asked, expected) in [
            ("all", &["GPU-a1", "GPU-b2"][..]),
            ("none", &[]),
            ("1", &["GPU-b2"]),
            ("1,0", &["GPU-b2", "GPU-a1"]),
            ("GPU-a,MIG-c3", &["GPU-a1", "MIG-c3"]),
            ("7", &[]),
        ] {
            let asked = gpus(asked).expect("GPUs");
            let found = existing(&asked, &inventory);
            let uuids: Vec<&str> = found.iter().map(|device| device.uuid.as_str()).collect();
            assert_eq!(uuids, expected, "{asked:?}");
        }
    }
}
