//! Scenarios from the client's side: events, lost GPUs, slow and hanging calls.

use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use crate::simulator::Simulator;

/// Repeats until the condition is true; scenarios begin a moment after the start.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn xid_79_is_reported_and_the_gpu_lost() {
    let simulator = Simulator::new("h100x4:xid,gpu=2,after=2s");
    let nvml = simulator.nvml();
    let mut set = nvml.create_event_set().unwrap();
    for index in 0..4 {
        let gpu = nvml.device_by_index(index).unwrap();
        set = gpu
            .register_events(gpu.supported_event_types().unwrap(), set)
            .unwrap();
    }
    let event = set.wait(5_000).unwrap();
    assert_eq!(event.event_type, EventTypes::CRITICAL_XID_ERROR);
    assert_eq!(event.event_data, Some(XidError::Value(79)));
    assert!(matches!(event.device.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(
        nvml.device_by_index(2).unwrap().memory_info(),
        Err(NvmlError::GpuLost)
    ));
    assert!(nvml.device_by_index(1).unwrap().memory_info().is_ok());

    let begun = Instant::now();
    assert!(matches!(set.wait(150), Err(NvmlError::Timeout)));
    assert!(
        (150..3_000).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn events_before_registration_are_not_reported() {
    let simulator = Simulator::new("h100x1:xid,code=31,after=0s");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let set = gpu
        .register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap())
        .unwrap();
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));
    assert!(gpu.memory_info().is_ok(), "Xid 31 is the application's own fault");
}

#[test]
fn throttling_shows_in_clocks_reasons_and_temperature() {
    let simulator = Simulator::new("h100x2:throttle,gpu=1,after=0s");
    let nvml = simulator.nvml();
    let (well, hot) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    let reasons = hot.current_throttle_reasons().unwrap();
    assert!(
        reasons.contains(ThrottleReasons::HW_THERMAL_SLOWDOWN),
        "{reasons:?}"
    );
    assert!(hot.clock_info(Clock::SM).unwrap() < 1_200 && well.clock_info(Clock::SM).unwrap() > 1_900);
    eventually("GPU 1 gets hot", || {
        hot.temperature(TemperatureSensor::Gpu).unwrap() > 80
    });
    assert!(well.temperature(TemperatureSensor::Gpu).unwrap() < 75);
}

#[test]
fn ecc_errors_count_up_and_remap_a_row() {
    let simulator = Simulator::new("a100x1:ecc,after=0s,for=2s");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let errors = |kind| gpu.total_ecc_errors(kind, EccCounter::Volatile).unwrap();
    eventually("corrected errors", || errors(MemoryError::Corrected) > 3);
    eventually("an uncorrectable error", || errors(MemoryError::Uncorrected) == 1);
    assert_eq!(crate::contract::remapped_rows(&gpu), [0, 1, 1, 0]);
}

#[test]
fn link_goes_down() {
    let simulator = Simulator::new("h100x2:link-down,link=7,after=0s");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(!gpu.link_wrapper_for(7).is_active().unwrap() && gpu.link_wrapper_for(6).is_active().unwrap());
    assert!(
        nvml.device_by_index(1)
            .unwrap()
            .link_wrapper_for(7)
            .is_active()
            .unwrap()
    );
}

#[test]
fn memory_pressure_leaves_two_percent() {
    let simulator = Simulator::new("h100x2:memory-pressure,after=0s");
    let nvml = simulator.nvml();
    let memory = nvml.device_by_index(1).unwrap().memory_info().unwrap();
    assert!(
        (0.015..0.025).contains(&(memory.free as f64 / memory.total as f64)),
        "{memory:?}"
    );
}

#[test]
fn slow_calls_take_their_time() {
    let simulator = Simulator::new("h100x2:slow-call,delay=400ms,after=0s,gpu=0");
    let nvml = simulator.nvml();
    let took = |index| {
        let gpu = nvml.device_by_index(index).unwrap();
        let begun = Instant::now();
        gpu.utilization_rates().unwrap();
        begun.elapsed()
    };
    assert!(took(0) >= Duration::from_millis(400));
    assert!(took(1) < Duration::from_millis(300), "GPU 1 is not slow");
}

#[test]
fn lost_gpu_comes_back() {
    let simulator = Simulator::new("h100x2:lost,after=0s,for=2s");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.name(), Err(NvmlError::GpuLost)));
    eventually("GPU 0 is back", || gpu.name().is_ok());
}

#[test]
fn hanging_call_blocks_its_gpu_only_and_ends() {
    let simulator = Simulator::new("h100x2:hang,after=0s,for=3s");
    let nvml = simulator.nvml();
    thread::scope(|scope| {
        let hung = scope.spawn(|| nvml.device_by_index(0).unwrap().name().map(|_| Instant::now()));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            nvml.device_by_index(1).unwrap().name().unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!hung.is_finished(), "GPU 1 answered while GPU 0 hung");
        hung.join().unwrap().unwrap();
    });
}
