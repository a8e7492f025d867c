//! Checks of the GPUs, their driver and NVML, made with the agent's readers; and of the simulator.

use std::path::Path;

use agent::NodeSnapshot;
use domain::topology::Inventory;

use super::check::Check;
use super::gpu_health;
use crate::command::local_reading::read_machine;
use crate::command::metrics_page;

/// Paths that exist only on a machine with an NVIDIA driver.
const DRIVER_FILES: [&str; 3] = ["dev/nvidiactl", "proc/driver/nvidia/version", "sys/module/nvidia"];
const SIMULATOR: &str = "libsim_nvml.so";

/// Reads once with the agent's readers.
pub(super) async fn checks(root: &Path, library: Option<&Path>, simulate: Option<&str>) -> Vec<Check> {
    let asked_for = simulate.is_some() || library.is_some();
    match read_machine(root, library, simulate).await {
        Ok(reading) => judge(root, &reading, asked_for),
        Err(error) => vec![Check::fails(
            "gpus",
            format!("{:#}", anyhow::Error::new(error)),
            "fix the cause in the message",
        )],
    }
}

/// Checks that the simulator is installed. It is for demonstrations and tests.
pub(super) fn simulator() -> Check {
    let beside = std::env::current_exe()
        .unwrap_or_default()
        .with_file_name(SIMULATOR);
    if beside.is_file() {
        return Check::works(
            "simulator",
            format!("{} (lockstep up --simulate h100x8)", beside.display()),
        );
    }
    let next = format!(
        "needed only for --simulate: put {SIMULATOR} beside the executable (cargo build --package sim-nvml)"
    );
    Check::absent("simulator", "not beside the executable", next)
}

fn judge(root: &Path, reading: &NodeSnapshot, asked_for: bool) -> Vec<Check> {
    let inventory = &*reading.inventory;
    if let Some(why) = &inventory.gpus_missing {
        let has_driver = DRIVER_FILES.iter().any(|file| root.join(file).exists());
        return vec![missing(why, asked_for || has_driver)];
    }
    let readings = metrics_page::samples(&reading.metrics);
    let mut checks = vec![
        present(inventory),
        driver(inventory),
        gpu_health::answering(&readings, inventory.gpus.len()),
        counters(inventory),
    ];
    checks.extend(gpu_health::checks(&readings));
    checks
}

fn missing(why: &str, expected: bool) -> Check {
    if expected {
        return Check::fails(
            "gpus",
            why,
            "make `nvidia-smi` work first: load the driver, make /dev/nvidia* readable, and use the NVIDIA runtime in a container",
        );
    }
    let next =
        "nothing to do if this machine has no NVIDIA GPU: host, network and training are monitored anyway";
    Check::absent("gpus", why, next)
}

fn present(inventory: &Inventory) -> Check {
    let first = inventory.gpus.first().map_or("", |gpu| gpu.name.as_str());
    let number = inventory.gpus.len();
    match &inventory.simulated {
        Some(spec) => Check::works("gpus", format!("{number} × {first}, SIMULATED ({spec})")),
        None if number == 0 => Check::fails(
            "gpus",
            "the driver works but reports no GPU",
            "check `lspci -d 10de:` and, in a container, which devices it was given",
        ),
        None => Check::works("gpus", format!("{number} × {first}")),
    }
}

fn driver(inventory: &Inventory) -> Check {
    let (driver, cuda) = (&inventory.driver_version, &inventory.cuda_version);
    Check::works("driver", format!("NVIDIA {driver}, CUDA up to {cuda}"))
}

/// Checks for GPM. SM, tensor and memory activity come only from GPM.
fn counters(inventory: &Inventory) -> Check {
    let with = inventory.gpus.iter().filter(|gpu| gpu.gpm).count();
    if with == inventory.gpus.len() && with > 0 {
        return Check::works("gpm", "SM, tensor core and memory activity can be read");
    }
    Check::absent(
        "gpm",
        format!("{with} of {} GPUs have activity counters", inventory.gpus.len()),
        "GPUs from Hopper on have them; for others, coarse utilization is used. On Hopper: stop other users of the counters (Nsight, DCGM profiling), or allow access to them",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use std::sync::Arc;

    use domain::topology::Gpu;

    use super::*;
    use crate::command::doctor::check::{State, named};

    fn judged(root: &Path, inventory: Inventory, metrics: &str) -> Vec<Check> {
        let snapshot = NodeSnapshot {
            inventory: Arc::new(inventory),
            metrics: metrics.to_owned(),
        };
        judge(root, &snapshot, false)
    }

    #[test]
    fn no_gpu_is_a_note_and_a_driver_without_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let missing = Inventory {
            gpus_missing: Some("no library".into()),
            ..Inventory::default()
        };
        assert_eq!(
            named(&judged(root.path(), missing.clone(), "")),
            [("gpus", State::Absent)]
        );
        std::fs::create_dir_all(root.path().join("sys/module/nvidia")).unwrap();
        assert_eq!(named(&judged(root.path(), missing, "")), [("gpus", State::Fails)]);
    }

    #[test]
    fn a_gpu_that_does_not_answer_fails_and_one_without_counters_does_not() {
        let gpu = |gpm| Gpu {
            gpm,
            ..Gpu::default()
        };
        let inventory = Inventory {
            gpus: vec![gpu(true), gpu(false)],
            ..Inventory::default()
        };
        let up = "gpu_up{gpu=\"0\"} 1\ngpu_up{gpu=\"1\"} 0\n";
        let expected = [
            ("gpus", State::Works),
            ("driver", State::Works),
            ("gpus_answer", State::Fails),
            ("gpm", State::Absent),
        ];
        let checks = judged(Path::new("/nonexistent"), inventory, up);
        assert_eq!((&named(&checks)[..4], checks.len()), (&expected[..], 10));
    }
}
