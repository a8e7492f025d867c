//! Checks the health of GPUs and their links from one reading of the agent.

use domain::series::Labels;

use super::check::Check;

/// One sample of the agent.
type Reading = (Labels, f64);

/// The driver answers within milliseconds. A call that takes longer than this delays every other client of the driver.
const CALL_SECONDS_MAX: f64 = 0.5;
/// Reasons for lowered clocks that a healthy, well-cooled GPU does not have. The software power cap is normal under load.
const BAD_REASONS: [&str; 4] = [
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake",
    "sw_thermal_slowdown",
];
/// Values of `nvmlDeviceGpuRecoveryAction_t`, from 1.
const RECOVERY_ACTIONS: [&str; 5] = [
    "reset the GPU",
    "reboot the node",
    "drain P2P",
    "drain and reset",
    "restart IMEX",
];

/// Makes six checks. Each names the GPUs that are not healthy.
pub(super) fn checks(readings: &[Reading]) -> Vec<Check> {
    vec![
        memory(readings),
        recovery(readings),
        clocks(readings),
        nvlinks(readings),
        pcie(readings),
        driver_calls(readings),
    ]
}

/// Checks that all GPUs of the inventory answer.
pub(super) fn answering(readings: &[Reading], gpus: usize) -> Check {
    let answer = named(readings, "gpu_up").filter(|(_, up)| *up == 1.0).count();
    let found = format!("{answer} of {gpus} answer");
    if answer < gpus {
        let next =
            "check the events of the node, and `dmesg` for Xid errors; a reset or a reboot may be needed";
        return Check::fails("gpus_answer", found, next);
    }
    Check::works("gpus_answer", found)
}

fn named<'a>(readings: &'a [Reading], name: &'a str) -> impl Iterator<Item = (&'a Labels, f64)> {
    let of_name = readings
        .iter()
        .filter(move |(labels, _)| labels.metric_name() == Some(name));
    of_name.map(|(labels, value)| (labels, *value))
}

fn gpu(labels: &Labels) -> &str {
    labels.get("gpu").unwrap_or_default()
}

/// Returns true if the label `name` has one of `values`.
fn is_one_of(labels: &Labels, name: &str, values: &[&str]) -> bool {
    labels.get(name).is_some_and(|value| values.contains(&value))
}

/// The GPUs whose metric `one` is below their metric `other`, with both values.
fn below(readings: &[Reading], one: &str, other: &str) -> Vec<String> {
    named(readings, one)
        .filter_map(|(labels, value)| {
            let gpu = gpu(labels);
            let (_, most) = named(readings, other).find(|(labels, _)| labels.get("gpu") == Some(gpu))?;
            (value < most).then(|| format!("GPU {gpu}: {value} of {most}"))
        })
        .collect()
}

fn memory(readings: &[Reading]) -> Check {
    const NAME: &str = "gpu_memory_errors";
    if named(readings, "gpu_ecc_errors_total").next().is_none() {
        return Check::absent(NAME, "these GPUs have no ECC, or it is disabled", "");
    }
    let pending = rows_to_remap(readings, "pending");
    let failed = rows_to_remap(readings, "failed");
    let errors = named(readings, "gpu_ecc_errors_total")
        .filter(|(labels, value)| *value > 0.0 && is_one_of(labels, "type", &["uncorrected"]))
        .map(|(labels, value)| {
            let gpu = gpu(labels);
            format!("GPU {gpu}: uncorrected errors since the driver was loaded: {value}")
        });
    let bad: Vec<String> = pending.chain(failed).chain(errors).collect();
    let next = "reset the GPU when it is free (nvidia-smi --gpu-reset -i N); replace it if the errors come back or a remapping has failed";
    judged(
        NAME,
        &bad,
        "no uncorrected memory errors, and no rows to remap",
        next,
    )
}

fn rows_to_remap<'a>(readings: &'a [Reading], kind: &'a str) -> impl Iterator<Item = String> {
    named(readings, "gpu_remapped_rows")
        .filter(move |(labels, value)| *value > 0.0 && is_one_of(labels, "type", &[kind]))
        .map(move |(labels, value)| format!("GPU {}: row remapping, {kind}: {value}", gpu(labels)))
}

fn recovery(readings: &[Reading]) -> Check {
    const NAME: &str = "gpu_recovery";
    if named(readings, "gpu_recovery_action").next().is_none() {
        return Check::absent(
            NAME,
            "the driver does not report recovery actions",
            "drivers from CUDA 12.8 on report them",
        );
    }
    let bad: Vec<String> = named(readings, "gpu_recovery_action")
        .filter(|(_, action)| *action > 0.0)
        .map(|(labels, action)| {
            let words = RECOVERY_ACTIONS.get(action as usize - 1).unwrap_or(&"unknown");
            format!("GPU {}: {words}", gpu(labels))
        })
        .collect();
    judged(
        NAME,
        &bad,
        "no recovery action is needed",
        "the driver requests this action: drain the node, then carry it out",
    )
}

fn clocks(readings: &[Reading]) -> Check {
    let bad: Vec<String> = named(readings, "gpu_throttle")
        .filter(|(labels, is_so)| *is_so > 0.0 && is_one_of(labels, "reason", &BAD_REASONS))
        .map(|(labels, _)| {
            let reason = labels.get("reason").unwrap_or_default();
            format!("GPU {}: {reason}", gpu(labels))
        })
        .collect();
    judged(
        "gpu_clocks",
        &bad,
        "clocks are not lowered by heat or by the power supply",
        "check fans, air flow and power supply of the node; compare its GPUs with `lockstep top`",
    )
}

fn nvlinks(readings: &[Reading]) -> Check {
    const NAME: &str = "nvlink";
    let links: f64 = named(readings, "gpu_nvlinks").map(|(_, links)| links).sum();
    if links == 0.0 {
        return Check::absent(NAME, "these GPUs have no NVLink", "");
    }
    if named(readings, "gpu_nvlinks_active").all(|(_, active)| active == 0.0) {
        let next = "nothing to do if these are PCIe boards without an NVLink bridge; otherwise run `nvidia-smi nvlink -s`";
        return Check::absent(NAME, format!("none of {links} links is up"), next);
    }
    let bad = below(readings, "gpu_nvlinks_active", "gpu_nvlinks");
    let next = "run `nvidia-smi nvlink -s` to find the link; check `dmesg` for Xid 74, reset the GPU, or replace the bridge or the board";
    judged(NAME, &bad, &format!("{links} links, all up"), next)
}

fn pcie(readings: &[Reading]) -> Check {
    const NAME: &str = "gpu_pcie";
    if named(readings, "gpu_pcie_width").next().is_none() {
        return Check::absent(
            NAME,
            "the width of the PCIe link cannot be read, as in some virtual machines",
            "",
        );
    }
    let bad = below(readings, "gpu_pcie_width", "gpu_pcie_width_max");
    // The PCIe generation is not checked: it falls at idle by design.
    judged(
        NAME,
        &bad,
        "all lanes in use",
        "reseat the GPU or its riser, and check the slot's settings in the BIOS",
    )
}

fn driver_calls(readings: &[Reading]) -> Check {
    const NAME: &str = "driver_calls";
    let Some((_, seconds)) = named(readings, "lockstep_agent_nvml_call_p99_seconds").next() else {
        return Check::absent(NAME, "not measured", "");
    };
    let found = format!("99 % of calls take at most {:.1} ms", 1e3 * seconds);
    if seconds <= CALL_SECONDS_MAX {
        return Check::works(NAME, found);
    }
    let next = "enable persistence mode (nvidia-smi -pm 1, or nvidia-persistenced); a GPU with an error can also be slow: check `dmesg`";
    Check::fails(NAME, found, next)
}

fn judged(name: &'static str, bad: &[String], good: &str, next: &str) -> Check {
    if bad.is_empty() {
        Check::works(name, good)
    } else {
        Check::fails(name, bad.join("; "), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::check::{State, named};
    use crate::command::metrics_page::samples;

    const HEALTHY: &str = "# HELP gpu_throttle Words.
gpu_ecc_errors_total{gpu=\"0\",node=\"n\",type=\"corrected\"} 7
gpu_ecc_errors_total{gpu=\"0\",node=\"n\",type=\"uncorrected\"} 0
gpu_remapped_rows{gpu=\"0\",node=\"n\",type=\"corrected\"} 2
gpu_remapped_rows{gpu=\"0\",node=\"n\",type=\"pending\"} 0
gpu_recovery_action{gpu=\"0\",node=\"n\"} 0
gpu_throttle{gpu=\"0\",node=\"n\",reason=\"hw_slowdown\"} 0
gpu_throttle{gpu=\"0\",node=\"n\",reason=\"sw_power_cap\"} 1
gpu_nvlinks{gpu=\"0\",node=\"n\"} 18
gpu_nvlinks_active{gpu=\"0\",node=\"n\"} 18
gpu_pcie_width{gpu=\"0\",node=\"n\"} 16
gpu_pcie_width_max{gpu=\"0\",node=\"n\"} 16
gpu_pcie_generation{gpu=\"0\",node=\"n\"} 1
gpu_pcie_generation_max{gpu=\"0\",node=\"n\"} 5
lockstep_agent_nvml_call_p99_seconds{node=\"n\"} 0.0009
";

    /// Replaces `line` of a healthy GPU with `instead`, and compares the checks that are then not `Works`.
    fn check(line: &str, instead: &str, expected: &[(&str, State)], words: &str) {
        assert!(HEALTHY.contains(line), "{line}");
        let metrics = HEALTHY.replace(line, instead);
        let mut found = checks(&samples(&metrics));
        found.retain(|check| check.state != State::Works);
        assert_eq!(super::super::check::named(&found), expected, "{instead}");
        let texts: String = found.iter().map(|check| check.found.as_str()).collect();
        assert!(texts.contains(words), "{texts}");
    }

    #[test]
    fn a_healthy_gpu_passes_all() {
        let found = checks(&samples(HEALTHY));
        assert_eq!(found.len(), 6);
        assert!(
            named(&found).iter().all(|(_, state)| *state == State::Works),
            "{found:?}"
        );
    }

    #[test]
    fn each_fault_fails_its_own_check_and_names_the_gpu() {
        let fails = State::Fails;
        check(
            "type=\"uncorrected\"} 0",
            "type=\"uncorrected\"} 1",
            &[("gpu_memory_errors", fails)],
            "GPU 0: uncorrected errors",
        );
        check(
            "type=\"pending\"} 0",
            "type=\"pending\"} 1",
            &[("gpu_memory_errors", fails)],
            "GPU 0: row remapping, pending: 1",
        );
        check(
            "action{gpu=\"0\",node=\"n\"} 0",
            "action{gpu=\"0\",node=\"n\"} 2",
            &[("gpu_recovery", fails)],
            "GPU 0: reboot the node",
        );
        check(
            "action{gpu=\"0\",node=\"n\"} 0",
            "action{gpu=\"0\",node=\"n\"} 9",
            &[("gpu_recovery", fails)],
            "GPU 0: unknown",
        );
        check(
            "reason=\"hw_slowdown\"} 0",
            "reason=\"hw_slowdown\"} 1",
            &[("gpu_clocks", fails)],
            "GPU 0: hw_slowdown",
        );
        check(
            "active{gpu=\"0\",node=\"n\"} 18",
            "active{gpu=\"0\",node=\"n\"} 17",
            &[("nvlink", fails)],
            "GPU 0: 17 of 18",
        );
        check(
            "width{gpu=\"0\",node=\"n\"} 16",
            "width{gpu=\"0\",node=\"n\"} 8",
            &[("gpu_pcie", fails)],
            "GPU 0: 8 of 16",
        );
        check(
            "seconds{node=\"n\"} 0.0009",
            "seconds{node=\"n\"} 2",
            &[("driver_calls", fails)],
            "2000.0 ms",
        );
    }

    #[test]
    fn what_a_gpu_does_not_have_is_a_note() {
        let absent: Vec<State> = checks(&[]).iter().map(|check| check.state).collect();
        let (note, works) = (State::Absent, State::Works);
        assert_eq!(absent, [note, note, works, note, note, note]);
        for none_up in [
            HEALTHY.replace(" 18\n", " 0\n"),
            HEALTHY.replace(
                "active{gpu=\"0\",node=\"n\"} 18",
                "active{gpu=\"0\",node=\"n\"} 0",
            ),
        ] {
            assert_eq!(
                checks(&samples(&none_up))[3].state,
                note,
                "a PCIe board without a bridge"
            );
        }
    }
}
