//! Everything that a client reads from a healthy machine, for each model.

use std::thread;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Brand, Clock, ClockId, EccCounter, MemoryError, MemoryLocation, PcieUtilCounter, PerformanceState,
    Sampling, TemperatureSensor, TemperatureThreshold, TopologyLevel,
};
use nvml_wrapper::enum_wrappers::nv_link::Capability;
use nvml_wrapper::enums::device::{DeviceArchitecture, UsedGpuMemory};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::nvmlConfComputeSystemState_t;

use crate::simulator::Simulator;

const MIB: u64 = 1 << 20;

#[test]
fn healthy_h100_reads_as_one() {
    let simulator = Simulator::new("h100x8");
    let nvml = simulator.nvml();
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
    for index in 0..8 {
        let gpu = nvml.device_by_index(index).unwrap();
        check_identity(&nvml, &gpu, index);
        check_gauges(&gpu);
        check_health(&gpu);
        check_links(&gpu);
    }
}

fn check_identity(nvml: &nvml_wrapper::Nvml, gpu: &Device<'_>, index: u32) {
    assert_eq!(gpu.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(
        (gpu.index().unwrap(), gpu.minor_number().unwrap()),
        (index, index)
    );
    assert_eq!(gpu.architecture().unwrap(), DeviceArchitecture::Hopper);
    assert_eq!(gpu.brand().unwrap(), Brand::Nvidia);
    let capability = gpu.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));
    assert_eq!(gpu.vbios_version().unwrap(), "96.00.89.00.01");
    assert_eq!(gpu.serial().unwrap().len(), 13);
    let uuid = gpu.uuid().unwrap();
    assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
    let pci = gpu.pci_info().unwrap();
    assert_eq!(pci.pci_device_id, 0x2330_10DE);
    assert_eq!(
        nvml.device_by_pci_bus_id(pci.bus_id).unwrap().index().unwrap(),
        index
    );
    assert_eq!(gpu.gsp_firmware_version().unwrap(), "580.95.05");
    assert_eq!(gpu.mig_mode().unwrap().current, 0);
    assert!(!gpu.mig_is_mig_device_handle().unwrap());
}

fn check_gauges(gpu: &Device<'_>) {
    let memory = gpu.memory_info().unwrap();
    assert_eq!(memory.total, 81_559 * MIB);
    assert!(
        (0.78..0.82).contains(&(memory.used as f64 / memory.total as f64)),
        "{memory:?}"
    );
    assert_eq!(gpu.bar1_memory_info().unwrap().total, 131_072 * MIB);
    let utilization = gpu.utilization_rates().unwrap();
    assert!(
        (90..=100).contains(&utilization.gpu) && (40..=70).contains(&utilization.memory),
        "{utilization:?}"
    );

    let power = gpu.power_usage().unwrap();
    assert!((450_000..=700_000).contains(&power), "{power} mW");
    assert_eq!(gpu.power_management_limit().unwrap(), 700_000);
    assert_eq!(gpu.power_management_limit_default().unwrap(), 700_000);
    assert_eq!(gpu.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(
        gpu.power_management_limit_constraints().unwrap().min_limit,
        200_000
    );
    assert!(
        gpu.total_energy_consumption().unwrap() > 1_000_000_000,
        "an hour of work"
    );

    let temperature = gpu.temperature(TemperatureSensor::Gpu).unwrap();
    assert!((50..75).contains(&temperature), "{temperature} °C");
    assert_eq!(
        gpu.temperature_threshold(TemperatureThreshold::Slowdown).unwrap(),
        89
    );
    assert_eq!(
        gpu.temperature_threshold(TemperatureThreshold::Shutdown).unwrap(),
        95
    );
    assert!((1_900..=1_980).contains(&gpu.clock_info(Clock::SM).unwrap()));
    assert_eq!(gpu.clock(Clock::Memory, ClockId::Current).unwrap(), 2_619);
    assert_eq!(gpu.max_clock_info(Clock::Graphics).unwrap(), 1_980);
    assert_eq!(gpu.current_throttle_reasons().unwrap(), ThrottleReasons::empty());
    assert_eq!(gpu.performance_state().unwrap(), PerformanceState::Zero);
}

fn check_health(gpu: &Device<'_>) {
    assert!(gpu.is_ecc_enabled().unwrap().currently_enabled);
    for kind in [MemoryError::Corrected, MemoryError::Uncorrected] {
        assert_eq!(gpu.total_ecc_errors(kind, EccCounter::Volatile).unwrap(), 0);
        assert_eq!(
            gpu.memory_error_counter(kind, EccCounter::Aggregate, MemoryLocation::Device)
                .unwrap(),
            0
        );
    }
    let processes = gpu.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    // Above every process id of Linux.
    assert!(processes[0].pid > 1 << 22);
    let UsedGpuMemory::Used(used) = processes[0].used_gpu_memory else {
        panic!("{processes:?}")
    };
    assert!(used > 60_000 * MIB);
    assert_eq!(
        gpu.nvml().sys_process_name(processes[0].pid, 64).unwrap(),
        "/usr/bin/python3"
    );
    assert!(gpu.running_graphics_processes().unwrap().is_empty());
    let busy = gpu.process_utilization_stats(None).unwrap();
    assert_eq!((busy.len(), busy[0].pid), (1, processes[0].pid));
}

fn check_links(gpu: &Device<'_>) {
    assert_eq!(
        (
            gpu.current_pcie_link_gen().unwrap(),
            gpu.max_pcie_link_gen().unwrap()
        ),
        (5, 5)
    );
    assert_eq!(
        (
            gpu.current_pcie_link_width().unwrap(),
            gpu.max_pcie_link_width().unwrap()
        ),
        (16, 16)
    );
    assert_eq!(gpu.pcie_link_speed().unwrap(), 32_000);
    assert_eq!(gpu.max_pcie_link_speed().unwrap().as_integer(), Some(32_000));
    assert_eq!(gpu.pcie_replay_counter().unwrap(), 0);
    for link in 0..18 {
        let link = gpu.link_wrapper_for(link);
        assert!(link.is_active().unwrap());
        assert_eq!(link.version().unwrap(), 4);
        assert_eq!(link.remote_pci_info().unwrap().pci_device_id, 0x22A3_10DE);
    }
    assert!(matches!(
        gpu.link_wrapper_for(18).is_active(),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn pcie_throughput_is_measured_in_both_directions() {
    let simulator = Simulator::new("h100x2");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    for (counter, max) in [
        (PcieUtilCounter::Send, 600_000),
        (PcieUtilCounter::Receive, 3_000_000),
    ] {
        // A measurement can fall into the pause between two steps; the next one does not.
        let measured = || gpu.pcie_throughput(counter).unwrap();
        let kilobytes = measured().max(measured()).max(measured());
        assert!((max / 8..max).contains(&kilobytes), "{kilobytes} KB/s");
    }
}

#[test]
fn fields_come_with_their_scopes_and_both_numberings() {
    for (driver, thermal_ns) in [("580.95.05", 269), ("570.172.08", 251)] {
        let simulator = Simulator::new(&format!("h100x8,driver={driver}"));
        let nvml = simulator.nvml();
        let gpu = nvml.device_by_index(2).unwrap();
        let ids = [91, 83, 186, 82, 164, 94, 144, 230].map(FieldId);
        let values = gpu.field_values_for(&ids).unwrap();
        for (id, value) in ids.iter().zip(values) {
            let sample = value.unwrap();
            assert!(sample.value.is_ok(), "{driver} {id:?}: {:?}", sample.value);
            assert!(
                sample.timestamp > 1_700_000_000_000_000,
                "microseconds since 1970"
            );
        }
        // A direct call, because the wrapper translates numbers itself.
        let asked = crate::contract::fields(
            &gpu,
            &[
                (thermal_ns, 0),
                (138, u32::MAX),
                (138, 5),
                (138, 18),
                (270 + 70, 0),
            ],
        );
        let statuses: Vec<u32> = asked.iter().map(|field| field.nvmlReturn).collect();
        assert_eq!(statuses, [0, 0, 0, 2, 3], "{driver}");
    }
}

#[test]
fn gpm_averages_an_interval() {
    let simulator = Simulator::new("h200x4");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let before = gpu.gpm_sample().unwrap();
    thread::sleep(Duration::from_millis(1_300));
    let after = gpu.gpm_sample().unwrap();
    let ids = [
        GpmMetricId::SmUtil,
        GpmMetricId::AnyTensorUtil,
        GpmMetricId::DramBwUtil,
        GpmMetricId::PcieRxPerSec,
        GpmMetricId::NvlinkTotalTxPerSec,
    ];
    let metrics = gpm_metrics_get(&nvml, &before, &after, &ids).unwrap();
    let ranges = [
        (70.0, 100.0),
        (40.0, 65.0),
        (40.0, 70.0),
        (500.0, 3_000.0),
        (200_000.0, 456_000.0),
    ];
    for ((metric, (low, high)), id) in metrics.into_iter().zip(ranges).zip(ids) {
        let metric = metric.unwrap();
        assert!((low..=high).contains(&metric.value), "{id:?}: {}", metric.value);
        assert!(!metric.metric_info.short_name.is_empty());
    }
}

#[test]
fn sample_ring_gives_new_samples_once() {
    let simulator = Simulator::new("h100x1");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let first = gpu.samples(Sampling::GpuUtilization, None).unwrap();
    assert!(first.len() > 60, "{}", first.len());
    let newest = first.iter().map(|sample| sample.timestamp).max().unwrap();
    thread::sleep(Duration::from_millis(500));
    let second = gpu.samples(Sampling::GpuUtilization, newest).unwrap();
    assert!(!second.is_empty());
    assert!(second.iter().all(|sample| sample.timestamp > newest));
}

#[test]
fn topology_has_two_sockets() {
    let simulator = Simulator::new("h100x8");
    let nvml = simulator.nvml();
    let gpu = |index| nvml.device_by_index(index).unwrap();
    assert_eq!(
        nvml.topology_common_ancestor(&gpu(0), &gpu(3)).unwrap(),
        TopologyLevel::Node
    );
    assert_eq!(
        nvml.topology_common_ancestor(&gpu(0), &gpu(4)).unwrap(),
        TopologyLevel::System
    );
    let near = gpu(0).topology_nearest_gpus(TopologyLevel::Node).unwrap();
    assert_eq!(
        near.iter().map(|gpu| gpu.index().unwrap()).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(gpu(7).cpu_affinity(2).unwrap(), [0xFF << 56, (1 << 48) - 1]);
}

#[test]
fn every_model_answers_for_what_it_has() {
    // (spec, name, MiB, GPM, ECC, NVLinks)
    let models = [
        ("h200x8", "NVIDIA H200", 143_771, true, true, 18),
        ("b200x8", "NVIDIA B200", 183_359, true, true, 18),
        ("a100x8", "NVIDIA A100-SXM4-80GB", 81_920, false, true, 12),
        ("rtx4090x2", "NVIDIA GeForce RTX 4090", 24_564, false, false, 0),
    ];
    for (spec, name, mib, gpm, ecc, links) in models {
        let simulator = Simulator::new(spec);
        let nvml = simulator.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.name().unwrap(), name);
        assert_eq!(gpu.memory_info().unwrap().total, mib * MIB, "{spec}");
        assert_eq!(gpu.gpm_support().unwrap(), gpm, "{spec}");
        assert_eq!(gpu.gpm_sample().is_ok(), gpm, "{spec}");
        assert_eq!(gpu.is_ecc_enabled().unwrap().currently_enabled, ecc, "{spec}");
        assert_eq!(
            gpu.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)
                .is_ok(),
            ecc,
            "{spec}"
        );
        let up = (0..36)
            .take_while(|link| gpu.link_wrapper_for(*link).is_active().unwrap_or(false))
            .count();
        assert_eq!(up, links, "{spec}");
    }
}

#[test]
fn confidential_computing_is_off_where_it_exists() {
    for (spec, expected) in [("h100x1", 0), ("b200x1", 0), ("a100x1", 3), ("rtx4090x1", 3)] {
        let simulator = Simulator::new(spec);
        let nvml = simulator.nvml();
        let get = nvml.lib().nvmlSystemGetConfComputeState.as_ref().unwrap();
        let mut state = nvmlConfComputeSystemState_t {
            environment: 7,
            ccFeature: 7,
            devToolsMode: 7,
        };
        // SAFETY: one place to write to.
        let status = unsafe { get(&mut state) };
        assert_eq!(status, expected, "{spec}");
        let is_off = (state.environment, state.ccFeature, state.devToolsMode) == (0, 0, 0);
        assert_eq!(is_off, expected == 0, "{spec}: {state:?}");
    }
}

#[test]
fn blackwell_claims_links_it_does_not_have() {
    // (spec, links with a state, links with capabilities)
    for (spec, stateful, capable) in [
        ("b200x1", 18, 36),
        ("h100x1", 18, 18),
        ("a100x1", 12, 12),
        ("rtx4090x1", 0, 0),
    ] {
        let simulator = Simulator::new(spec);
        let nvml = simulator.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let count = |answers: &dyn Fn(u32) -> bool| (0..64).take_while(|link| answers(*link)).count();
        assert_eq!(
            count(&|link| gpu.link_wrapper_for(link).is_active().is_ok()),
            stateful,
            "{spec}"
        );
        let has_p2p = |link| gpu.link_wrapper_for(link).has_capability(Capability::P2p);
        assert_eq!(count(&|link| has_p2p(link).is_ok()), capable, "{spec}");
    }
}
