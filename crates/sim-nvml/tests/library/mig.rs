//! Partitioned GPUs: instances as separate devices, with their properties and the calls that NVML refuses for them.

use std::time::Duration;
use std::{mem, ptr, thread};

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, MemoryLocation, Sampling, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDeviceAttributes_t, nvmlGpmMetricsGet_t};

use crate::simulator::Simulator;

const MIB: u64 = 1 << 20;

fn ids(gpu: &Device<'_>) -> Result<(u32, u32), u32> {
    let lib = gpu.nvml().lib();
    let (mut instance, mut compute) = (99, 99);
    // SAFETY: two places to write to.
    let status = unsafe {
        lib.nvmlDeviceGetGpuInstanceId.as_ref().unwrap()(gpu.handle(), &mut instance).max(lib
            .nvmlDeviceGetComputeInstanceId
            .as_ref()
            .unwrap()(
            gpu.handle(),
            &mut compute,
        ))
    };
    if status == 0 {
        Ok((instance, compute))
    } else {
        Err(status)
    }
}

fn attributes(gpu: &Device<'_>) -> Result<nvmlDeviceAttributes_t, u32> {
    // SAFETY: a plain C struct of the version asked for.
    unsafe {
        let mut attributes: nvmlDeviceAttributes_t = mem::zeroed();
        let get = gpu.nvml().lib().nvmlDeviceGetAttributes_v2.as_ref().unwrap();
        match get(gpu.handle(), &mut attributes) {
            0 => Ok(attributes),
            status => Err(status),
        }
    }
}

fn instances<'nvml>(parent: &Device<'nvml>) -> Vec<Device<'nvml>> {
    let count = parent.mig_device_count().unwrap();
    (0..count)
        .map_while(|index| parent.mig_device_by_index(index).ok())
        .collect()
}

#[test]
fn instances_are_devices_of_their_own() {
    let simulator = Simulator::new("h100x2:mig,after=0s,gpu=1,instances=3g.40gb+2g.20gb+1g.10gb");
    let nvml = simulator.nvml();
    let (whole, parent) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert_eq!(nvml.device_count().unwrap(), 2, "instances do not count");
    assert_eq!(
        (
            whole.mig_mode().unwrap().current,
            parent.mig_mode().unwrap().current
        ),
        (0, 1)
    );
    assert!(matches!(whole.mig_device_by_index(0), Err(NvmlError::NotFound)));
    assert!(matches!(
        parent.mig_device_by_index(7),
        Err(NvmlError::InvalidArg)
    ));

    // (profile, MiB, id, SMs, compute slices)
    let expected = [
        ("3g.40gb", 40_448, 1, 60, 3),
        ("2g.20gb", 20_096, 5, 32, 2),
        ("1g.10gb", 9_984, 13, 16, 1),
    ];
    let found = instances(&parent);
    assert_eq!(found.len(), 3);
    for (index, (instance, (profile, mib, id, multiprocessors, slices))) in
        found.iter().zip(expected).enumerate()
    {
        assert!(instance.mig_is_mig_device_handle().unwrap() && !parent.mig_is_mig_device_handle().unwrap());
        assert_eq!(
            instance.name().unwrap(),
            format!("NVIDIA H100 80GB HBM3 MIG {profile}")
        );
        assert_eq!(
            (instance.index().unwrap() as usize, ids(instance)),
            (index, Ok((id, 0)))
        );
        let uuid = instance.uuid().unwrap();
        assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{uuid}");
        assert_eq!(
            nvml.device_by_uuid(uuid).unwrap().name().unwrap(),
            instance.name().unwrap()
        );
        assert_eq!(
            instance.mig_parent_device().unwrap().uuid().unwrap(),
            parent.uuid().unwrap()
        );
        assert_eq!(
            instance.pci_info().unwrap().bus_id,
            parent.pci_info().unwrap().bus_id
        );

        let memory = instance.memory_info().unwrap();
        assert_eq!((memory.total, memory.reserved), (mib * MIB, 0));
        assert!(memory.used > memory.total / 3 && memory.used + memory.free == memory.total);
        let attributes = attributes(instance).unwrap();
        assert_eq!(
            (attributes.multiprocessorCount, attributes.memorySizeMB),
            (multiprocessors, mib)
        );
        assert_eq!(
            (
                attributes.gpuInstanceSliceCount,
                attributes.computeInstanceSliceCount
            ),
            (slices, slices)
        );
        assert!(attributes.sharedCopyEngineCount > 0);
    }
    assert_eq!(
        (ids(&parent), ids(&whole), attributes(&parent).err()),
        (Err(3), Err(3), Some(3))
    );
    check_processes(&parent, &found);
}

/// The parent lists all processes with their instances; each instance lists its own.
fn check_processes(parent: &Device<'_>, instances: &[Device<'_>]) {
    let all = parent.running_compute_processes().unwrap();
    let run_in: Vec<_> = all
        .iter()
        .map(|one| (one.gpu_instance_id, one.compute_instance_id))
        .collect();
    assert_eq!(
        run_in,
        [(Some(1), Some(0)), (Some(5), Some(0)), (Some(13), Some(0))]
    );
    for (instance, expected) in instances.iter().zip(&all) {
        assert_eq!(
            instance.running_compute_processes().unwrap(),
            std::slice::from_ref(expected)
        );
        let used = UsedGpuMemory::Used(instance.memory_info().unwrap().used);
        assert_eq!(expected.used_gpu_memory, used);
        assert_eq!(
            parent.nvml().sys_process_name(expected.pid, 64).unwrap(),
            "/usr/bin/python3"
        );
    }
    assert_eq!(instances[0].running_graphics_processes_count().unwrap(), 0);
}

#[test]
fn nvml_has_no_utilization_and_no_board_s_readings_for_instances() {
    let simulator = Simulator::new("a100x1:mig,after=0s");
    let nvml = simulator.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    let found = instances(&parent);
    assert_eq!(found.len(), 7, "as many of the smallest as fit");
    let not_supported = |result: Result<(), NvmlError>| matches!(result, Err(NvmlError::NotSupported));
    for gpu in [&parent, &found[6]] {
        assert!(not_supported(gpu.utilization_rates().map(drop)));
        assert!(not_supported(gpu.encoder_utilization().map(drop)));
        assert!(not_supported(
            gpu.samples(Sampling::GpuUtilization, None).map(drop)
        ));
        assert!(not_supported(gpu.process_utilization_stats(None).map(drop)));
        let volatile = |kind, location| gpu.memory_error_counter(kind, EccCounter::Volatile, location);
        assert!(not_supported(
            volatile(MemoryError::Corrected, MemoryLocation::Device).map(drop)
        ));
    }
    assert!(parent.power_usage().is_ok() && parent.temperature(TemperatureSensor::Gpu).is_ok());
    assert!(not_supported(found[0].power_usage().map(drop)));
    assert!(not_supported(
        found[0].temperature(TemperatureSensor::Gpu).map(drop)
    ));
    assert!(not_supported(found[0].mig_mode().map(drop)));
    // NVML supports this call only for instances.
    let sram = |gpu: &Device<'_>| {
        gpu.memory_error_counter(
            MemoryError::Uncorrected,
            EccCounter::Volatile,
            MemoryLocation::SRAM,
        )
    };
    assert!(not_supported(sram(&parent).map(drop)));
    assert_eq!(sram(&found[0]).unwrap(), 0);
}

#[test]
fn gpm_measures_an_instance() {
    let simulator = Simulator::new("h100x1:mig,after=0s,instances=3g.40gb+3g.40gb");
    let nvml = simulator.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    let instance = parent.mig_device_by_index(1).unwrap();
    let (id, _) = ids(&instance).unwrap();
    let lib = nvml.lib();
    // SAFETY: samples are freed once, the request outlives its call.
    unsafe {
        let (mut first, mut second) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(lib.nvmlGpmSampleAlloc.as_ref().unwrap()(&mut first), 0);
        assert_eq!(lib.nvmlGpmSampleAlloc.as_ref().unwrap()(&mut second), 0);
        let by_id = lib.nvmlGpmMigSampleGet.as_ref().unwrap();
        let by_handle = lib.nvmlGpmSampleGet.as_ref().unwrap();
        assert_eq!(
            (
                by_id(parent.handle(), 9, first),
                by_id(instance.handle(), id, first)
            ),
            (2, 3)
        );
        assert_eq!(by_id(parent.handle(), id, first), 0);
        thread::sleep(Duration::from_millis(1_300));
        assert_eq!(by_handle(parent.handle(), second), 0);
        let mut request: nvmlGpmMetricsGet_t = mem::zeroed();
        (request.version, request.numMetrics) = (1, 2);
        (request.sample1, request.sample2) = (first, second);
        (request.metrics[0].metricId, request.metrics[1].metricId) = (2, 60);
        let metrics = lib.nvmlGpmMetricsGet.as_ref().unwrap();
        assert_eq!(metrics(&mut request), 2, "of an instance and of its GPU");
        assert_eq!(by_handle(instance.handle(), second), 0);
        assert_eq!(metrics(&mut request), 0);
        assert!(
            request.metrics[0].nvmlReturn == 0 && request.metrics[0].value > 45.0,
            "{:?}",
            request.metrics[0]
        );
        assert_eq!(request.metrics[1].nvmlReturn, 3, "NVLink belongs to no instance");
        let free = lib.nvmlGpmSampleFree.as_ref().unwrap();
        assert_eq!((free(first), free(second)), (0, 0));
    }
}

#[test]
fn an_instance_goes_with_its_partition() {
    let simulator = Simulator::new("h100x1:mig,after=0s,for=2s,instances=7g.80gb");
    let nvml: Nvml = simulator.nvml();
    let parent = nvml.device_by_index(0).unwrap();
    let instance = parent.mig_device_by_index(0).unwrap();
    let uuid = instance.uuid().unwrap();
    assert_eq!(ids(&instance), Ok((0, 0)));
    crate::scenarios::eventually("the GPU is put together again", || {
        parent.mig_mode().unwrap().current == 0
    });
    assert!(matches!(instance.name(), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid(uuid), Err(NvmlError::NotFound)));
    assert!(parent.utilization_rates().is_ok());
}
