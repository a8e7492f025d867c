//! Commands for a quick look: `top` and `doctor`, with a running cluster and without one; and `plan`, which needs no collector.

use serde_json::Value;

use crate::cluster::{Cluster, python};

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(text)))
}

#[test]
fn top_shows_each_gpu_from_the_agent_and_from_the_collector() {
    let cluster = Cluster::start();
    let metrics = cluster.agent_metrics();
    for source in [&["--metrics", metrics.as_str()][..], &["--cluster"]] {
        let gpus = cluster.wait_for("both GPUs with their activity", || {
            let output = cluster.lockstep(&[&["top", "--once", "--json"], source].concat());
            let gpus = json(&output.stdout);
            let active = |gpu: &Value| gpu["sm_active_ratio"].as_f64().is_some();
            let all = gpus
                .as_array()
                .is_some_and(|gpus| gpus.len() == 2 && gpus.iter().all(active));
            all.then_some(gpus)
        });
        assert_eq!(
            (&gpus[1]["gpu"], &gpus[1]["up"]),
            (&Value::from(1), &Value::from(true)),
            "{gpus}"
        );
        assert!(gpus[1]["name"].as_str().unwrap().contains("H100"), "{gpus}");
        assert!(gpus[1]["memory_total_bytes"].as_f64().unwrap() > 8e10, "{gpus}");

        let output = cluster.lockstep(&[&["top", "--once", "--sort", "power"], source].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("2 GPUs, 1 node") && text.contains("SIMULATED"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!text.contains('\u{1b}'), "no terminal, no escapes: {text:?}");
    }
    let nobody = cluster.lockstep(&["top", "--once", "--metrics", "http://127.0.0.1:9/metrics"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    assert!(
        String::from_utf8_lossy(&nobody.stderr).contains("--cluster"),
        "{nobody:?}"
    );
}

#[test]
fn doctor_finds_what_works_and_names_what_does_not() {
    let cluster = Cluster::start();
    let python = python();
    let options = ["--python", python.to_str().unwrap(), "--json"];
    let simulated = ["doctor", "--simulate", "h100x2:healthy"];
    let healthy = cluster
        .command(&[&simulated[..], &options].concat())
        .env("LOCKSTEP_NVML_LIBRARY", crate::cluster::simulator())
        .output()
        .unwrap();
    let checks = json(&healthy.stdout);
    let state = |checks: &Value, name: &str| {
        let all = checks.as_array().unwrap();
        let check = all.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name}: {checks}"))["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for works in [
        "gpus",
        "driver",
        "gpus_answer",
        "gpm",
        "gpu_memory_errors",
        "gpu_recovery",
        "gpu_clocks",
        "nvlink",
        "gpu_pcie",
        "driver_calls",
        "python",
        "torch",
        "collector",
        "token",
        "clock",
    ] {
        assert_eq!(state(&checks, works), "works", "{works}: {checks}");
    }
    assert!(healthy.status.success(), "{healthy:?}");

    // A library that the user names must work, and a collector that the user names must answer.
    let broken = cluster
        .command(&[&["doctor", "--nvml-library", "/nonexistent.so"], &options[..]].concat())
        .env("LOCKSTEP_URL", "http://127.0.0.1:9")
        .output()
        .unwrap();
    let checks = json(&broken.stdout);
    assert_eq!(
        (state(&checks, "gpus"), state(&checks, "collector")),
        ("fails".into(), "fails".into()),
        "{checks}"
    );
    assert_eq!(broken.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&broken.stderr);
    assert!(stderr.contains("failed checks: gpus, collector"), "{stderr}");
}

/// Training without a GPU is watched in `examples`, which compares every step of each rank.
#[test]
fn without_a_gpu_host_and_network_are_watched_and_the_lack_is_explained() {
    let cluster = Cluster::start_without_gpus();
    let node = cluster.get("/api/nodes")[0].clone();
    let why = node["inventory"]["gpus_missing"].as_str().unwrap_or_default();
    assert!(why.contains("/nonexistent/libnvidia-ml.so.1"), "{node}");
    for metric in [
        "node_load1",
        "node_memory_available_bytes",
        "node_network_receive_bytes_total",
    ] {
        cluster.wait_for(metric, || (!cluster.query(metric).is_empty()).then_some(()));
    }
    assert!(cluster.query("{__name__=~\"gpu_.*\"}").is_empty());

    let output = cluster.lockstep(&[
        "doctor",
        "--json",
        "--nvml-library",
        "/nonexistent/libnvidia-ml.so.1",
    ]);
    let gpus = &json(&output.stdout)[0];
    assert!(
        gpus["found"].as_str().unwrap().contains("/nonexistent") && gpus["next"].is_string(),
        "{gpus}"
    );
}

#[test]
fn a_plan_of_memory_needs_no_collector_and_says_what_would_fit() {
    let plan = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(["plan", "memory"]).args(arguments).output().unwrap()
    };
    let asked = [
        "--model",
        "llama3-8b",
        "--sequence",
        "8192",
        "--micro-batch",
        "2",
        "--gpu-memory",
        "80GiB",
    ];
    let text = String::from_utf8(plan(&asked).stdout).unwrap();
    for words in [
        "8.030 billion parameters on 8 GPUs",
        "Does not fit 80.0 GiB",
        "PEAK BY STRATEGY",
        "fsdp, reshard_after_forward=false",
        "What would make it fit",
        "activation_checkpointing=",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }

    let fitting =
        json(&plan(&[&asked[..], &["--checkpointing", "block", "--format", "json"]].concat()).stdout);
    assert_eq!(fitting["fit"]["verdict"], "fits", "{fitting}");
    let at_peak: u64 = fitting["plan"]["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component["at_peak_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(Some(at_peak), fitting["plan"]["peak_bytes"].as_u64(), "{fitting}");

    for (arguments, words) in [
        (&[][..], "--model"),
        (
            &["--model", "gpt2", "--sequence", "9999"],
            "1024 learned positions",
        ),
        (&["--params", "-3"], "like 7e9"),
        (&["--model", "gpt2", "--checkpointing", "stage"], "every=N"),
        (
            &["--model", "gpt2", "--gpus", "99999999999"],
            "--gpus is 99999999999",
        ),
    ] {
        let refused = plan(arguments);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}
