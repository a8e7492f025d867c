//! Scenario files, from the path in a specification to what a client reads. The shipped examples are included.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::error::NvmlError;

use crate::scenarios::eventually;
use crate::simulator::Simulator;

/// A scenario file that is removed with the test.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(name: &str, text: &str) -> File {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.scenario", process::id()));
        fs::write(&path, text).unwrap();
        File(path)
    }

    pub(crate) fn spec(&self, machine: &str) -> String {
        format!("{machine}:file={}", self.0.display())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_s_incidents_happen_in_turn() {
    let file = File::new(
        "in-turn",
        "0s throttle gpu=1 reason=power for=1s # at once\n1s throttle gpu=1 reason=power-brake\n1500ms lost gpu=0 for=500ms\n",
    );
    let simulator = Simulator::new(&file.spec("h100x2"));
    let nvml = simulator.nvml();
    let (one, other) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert_eq!(
        other.current_throttle_reasons().unwrap(),
        ThrottleReasons::SW_POWER_CAP
    );
    eventually("the second incident", || {
        other.current_throttle_reasons().unwrap()
            == ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN | ThrottleReasons::HW_SLOWDOWN
    });
    eventually("GPU 0 is lost", || matches!(one.name(), Err(NvmlError::GpuLost)));
    eventually("GPU 0 is back", || one.name().is_ok());
}

#[test]
fn a_file_that_means_nothing_is_refused_with_its_line() {
    let simulator = Simulator::load();
    let file = File::new("bad", "# fine\n5s lost gpu=1\n\n9s lost gpu=9\n");
    assert_eq!(simulator.configure(&file.spec("h100x2")), 2);
    let error = simulator.error();
    assert!(
        error.contains(".scenario, line 4: gpu=\"9\" is not valid: expected a number from 0 to 1"),
        "{error}"
    );
    assert_eq!(simulator.configure("h100x2:file=/nowhere/at.all"), 2);
    assert!(
        simulator.error().contains("\"/nowhere/at.all\": No such file"),
        "{}",
        simulator.error()
    );
    let large = File::new("large", &"#".repeat((1 << 20) + 1));
    assert_eq!(simulator.configure(&large.spec("h100x2")), 2);
    assert!(
        simulator.error().contains("at most 1048576"),
        "{}",
        simulator.error()
    );
}

/// Each example names its machine in the command that it tells users to type.
#[test]
fn shipped_examples_are_understood() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let spec = text
            .split_whitespace()
            .find_map(|word| word.split_once(":file=examples/scenarios/"));
        let (machine, name) = spec.unwrap_or_else(|| panic!("{path:?} names no command"));
        assert_eq!(path.file_name().unwrap().to_str(), Some(name));
        let simulator = Simulator::new(&format!("{machine}:file={}", path.display()));
        assert!(simulator.nvml().device_count().unwrap() >= 4);
        seen += 1;
    }
    assert_eq!(seen, 3);
}
