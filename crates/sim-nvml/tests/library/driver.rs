//! The driver is unloaded while clients use it, comes back in another version, or does not match the library.

use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::scenario_file::File;
use crate::scenarios::eventually;
use crate::simulator::Simulator;

/// Initialises NVML and shuts it down. Returns the result of the initialisation.
fn init(simulator: &Simulator) -> Result<(), NvmlError> {
    simulator.try_nvml().map(drop)
}

#[test]
fn a_reloaded_driver_knows_nothing_of_earlier_handles() {
    let simulator = Simulator::new("h100x2:driver-reload,after=1500ms,for=1s,to=590.48.01");
    let before = simulator.nvml();
    let gpu = before.device_by_index(1).unwrap();
    let set = before.create_event_set().unwrap();
    assert_eq!(before.sys_driver_version().unwrap(), "580.95.05");
    assert!(gpu.name().is_ok());

    eventually("the driver goes", || {
        matches!(gpu.name(), Err(NvmlError::Uninitialized))
    });
    assert!(matches!(init(&simulator), Err(NvmlError::DriverNotLoaded)));
    assert!(matches!(set.wait(10), Err(NvmlError::Uninitialized)));
    eventually("the driver comes back", || init(&simulator).is_ok());
    assert!(
        matches!(gpu.name(), Err(NvmlError::Uninitialized)),
        "until somebody initialises NVML again"
    );

    let after = simulator.nvml();
    assert_eq!(after.sys_driver_version().unwrap(), "590.48.01");
    assert!(
        matches!(gpu.name(), Err(NvmlError::InvalidArg)),
        "a handle of the driver before"
    );
    let same = after.device_by_index(1).unwrap();
    assert!(same.name().is_ok() && same.uuid().is_ok());
    assert!(
        same.total_energy_consumption().unwrap() < 100_000_000,
        "energy since this driver was loaded"
    );
    // Dropping the wrapper of the earlier driver must not shut the later one down.
    drop(set);
    std::mem::forget(before);
}

#[test]
fn a_library_that_does_not_fit_reads_on_but_does_not_begin() {
    let simulator = Simulator::new("h100x1:driver-mismatch,after=1s,for=1s");
    let early: Nvml = simulator.nvml();
    let gpu = early.device_by_index(0).unwrap();
    thread::sleep(Duration::from_millis(1_100));
    assert!(
        gpu.name().is_ok() && init(&simulator).is_ok(),
        "who was there before reads on"
    );
    drop(early);
    assert!(matches!(init(&simulator), Err(NvmlError::LibRmVersionMismatch)));
    eventually("the machine was rebooted", || init(&simulator).is_ok());
}

#[test]
fn a_call_that_hangs_over_a_reload_is_not_answered() {
    let file = File::new(
        "hang-reload",
        "0s hang gpu=0 for=2s\n1s driver-reload for=500ms\n",
    );
    let simulator = Simulator::new(&file.spec("h100x2"));
    let nvml = simulator.nvml();
    let begun = Instant::now();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.name(), Err(NvmlError::Uninitialized)));
    assert!(
        begun.elapsed() > Duration::from_millis(1_500),
        "it hung: {:?}",
        begun.elapsed()
    );
    assert!(init(&simulator).is_ok());
}
