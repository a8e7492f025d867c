//! Describes the GPUs for the hello.

use domain::topology::{Gpu, Inventory, MigInstance};
use nvml_wrapper::{Device, Nvml};

use super::nvlink::nvlinks;
use super::raw;

/// The current state of a GPU.
pub(super) struct GpuState<'a> {
    pub(super) index: u32,
    /// The device, if the GPU answers.
    pub(super) device: Option<&'a Device<'a>>,
    pub(super) unanswered: Vec<String>,
    pub(super) instances: Vec<MigInstance>,
}

/// Fills in NVML's data about the system. GPUs that do not answer now keep their entry.
pub(super) fn describe<'a>(
    inventory: &mut Inventory,
    nvml: &Nvml,
    simulated: Option<&String>,
    states: impl Iterator<Item = GpuState<'a>>,
) {
    inventory.simulated = simulated.cloned();
    inventory.driver_version = nvml.sys_driver_version().unwrap_or_default();
    inventory.cuda_version = nvml
        .sys_cuda_driver_version()
        .map(cuda_version)
        .unwrap_or_default();
    let known = std::mem::take(&mut inventory.gpus);
    inventory.gpus = states.map(|state| described(state, &known)).collect();
    inventory.gpus_missing = inventory
        .gpus
        .is_empty()
        .then(|| "the NVIDIA driver is loaded, but it finds no GPU".to_owned());
}

fn described(state: GpuState<'_>, known: &[Gpu]) -> Gpu {
    let index = state.index;
    let before = known
        .iter()
        .find(|gpu| gpu.index == index && !gpu.uuid.is_empty());
    let gpu = match (before, state.device) {
        // The identity of a known GPU does not change. Querying it again has no use, and the GPU may be failing.
        (Some(gpu), _) => gpu.clone(),
        (None, Some(device)) => gpu(index, device),
        (None, None) => Gpu {
            index,
            ..Gpu::default()
        },
    };
    match state.device {
        Some(_) => Gpu {
            unanswered: state.unanswered,
            mig_instances: state.instances,
            ..gpu
        },
        None => gpu,
    }
}

fn gpu(index: u32, device: &Device<'_>) -> Gpu {
    Gpu {
        index,
        uuid: device.uuid().unwrap_or_default(),
        name: device.name().unwrap_or_default(),
        pci_bus_id: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        memory_total_bytes: raw::memory(device).map_or(0, |memory| memory.total),
        power_limit_watts: device
            .enforced_power_limit()
            .map_or(0.0, |milliwatts| f64::from(milliwatts) / 1e3),
        nvlinks: nvlinks(device).unwrap_or(0),
        gpm: device.gpm_support().unwrap_or(false),
        virtualization: raw::virtualization(device).map_or("", virtualization).to_owned(),
        confidential: raw::confidential_computing(device).unwrap_or(false),
        unanswered: Vec::new(),
        mig_instances: Vec::new(),
    }
}

/// Returns the name of a `nvmlGpuVirtualizationMode_t`, or an empty text if the GPU is not virtualised.
fn virtualization(mode: u32) -> &'static str {
    match mode {
        1 => "passthrough",
        2 => "vgpu",
        3 => "host_vgpu",
        4 => "host_vsga",
        _ => "",
    }
}

/// Converts NVML's number to a version: 12090 is 12.9.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_versions_read_as_people_say_them() {
        assert_eq!(cuda_version(12_090), "12.9");
        assert_eq!(cuda_version(13_000), "13.0");
    }

    #[test]
    fn a_gpu_that_does_not_answer_keeps_what_is_known_of_it() {
        let known = Gpu {
            index: 1,
            uuid: "GPU-1".into(),
            unanswered: vec!["fabric".into()],
            ..Gpu::default()
        };
        let state = |index| GpuState {
            index,
            device: None,
            unanswered: Vec::new(),
            instances: Vec::new(),
        };
        assert_eq!(described(state(1), std::slice::from_ref(&known)), known);
        let unknown = described(state(0), &[known]);
        assert_eq!((unknown.index, unknown.uuid.as_str()), (0, ""));
    }
}
