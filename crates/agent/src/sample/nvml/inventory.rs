//! What GPUs there are, for the hello.

use domain::topology::{Gpu, Inventory};
use nvml_wrapper::{Device, Nvml};

use super::traffic::nvlinks;

/// Fills in what NVML knows of the system. GPUs that cannot be asked at the moment keep their place.
pub(super) fn describe<'a>(
    inventory: &mut Inventory,
    nvml: &Nvml,
    simulated: Option<&String>,
    devices: impl Iterator<Item = (u32, Option<&'a Device<'a>>)>,
) {
    inventory.simulated = simulated.cloned();
    inventory.driver_version = nvml.sys_driver_version().unwrap_or_default();
    inventory.cuda_version = nvml
        .sys_cuda_driver_version()
        .map(cuda_version)
        .unwrap_or_default();
    let known = std::mem::take(&mut inventory.gpus);
    let before = |index: u32| known.iter().find(|gpu| gpu.index == index).cloned();
    let place = |(index, device): (u32, Option<&'a Device<'a>>)| match (before(index), device) {
        // What a GPU is does not change while it is known; asking again could only meet a sick one.
        (Some(gpu), _) if !gpu.uuid.is_empty() => gpu,
        (_, Some(device)) => gpu(index, device),
        (_, None) => Gpu {
            index,
            ..Gpu::default()
        },
    };
    inventory.gpus = devices.map(place).collect();
    inventory.gpus_missing = inventory
        .gpus
        .is_empty()
        .then(|| "the NVIDIA driver is there, but it knows of no GPU".to_owned());
}

fn gpu(index: u32, device: &Device<'_>) -> Gpu {
    Gpu {
        index,
        uuid: device.uuid().unwrap_or_default(),
        name: device.name().unwrap_or_default(),
        pci_bus_id: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        memory_total_bytes: device.memory_info().map_or(0, |memory| memory.total),
        power_limit_watts: device
            .enforced_power_limit()
            .map_or(0.0, |milliwatts| f64::from(milliwatts) / 1e3),
        nvlinks: nvlinks(device).unwrap_or(0),
        gpm: device.gpm_support().unwrap_or(false),
    }
}

/// NVML says 12090 for 12.9.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn cuda_versions_read_as_people_say_them() {
        assert_eq!(super::cuda_version(12_090), "12.9");
        assert_eq!(super::cuda_version(13_000), "13.0");
    }
}
