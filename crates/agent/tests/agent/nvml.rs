//! Simulated GPUs, read in the same way as real ones.

use std::collections::HashMap;

use agent::{AgentConfig, NvmlSource};
use domain::ident::RackName;

use crate::collector::Collector;
use crate::exposition::read_once;
use crate::support::{Running, config, config_towards, folder, simulated, until};

/// Returns the value of a metric of GPU 0 with only the labels `gpu` and `node`.
fn of_gpu(samples: &HashMap<String, f64>, metric: &str) -> f64 {
    let series = format!("{metric}{{gpu=\"0\",node=\"n1\"}}");
    *samples.get(&series).unwrap_or_else(|| panic!("no {series}"))
}

fn of_link(samples: &HashMap<String, f64>, metric: &str, link: &str) -> f64 {
    let series = format!("{metric}{{gpu=\"0\",link=\"{link}\",node=\"n1\"}}");
    *samples.get(&series).unwrap_or_else(|| panic!("no {series}"))
}

#[tokio::test]
async fn every_gpu_metric_of_an_h100_is_read() {
    let samples = read_once("h100x8:healthy").await;
    let metrics: Vec<&str> = samples
        .keys()
        .map(|series| series.split_once('{').unwrap().0)
        .collect();
    let expected = domain::metric::catalogue::CATALOGUE
        .iter()
        .filter(|metric| metric.name.starts_with("gpu_"));
    // No Xid happened, no link failed, the simulator's processes belong to no run, and rows are remapped instead of pages being retired.
    // Rules of the collector record the run of a GPU and its clock while busy.
    let not_now = [
        "gpu_xid_errors_total",
        "gpu_xid_judged_total",
        "gpu_assignment_info",
        "gpu_run_info",
        "gpu_busy_clock_ratio",
        "gpu_nvlink_up",
        "gpu_nvlink_link_errors_total",
        "gpu_retired_pages",
    ];
    let not_here = |name: &str| {
        not_now.contains(&name) || name.starts_with("gpu_mig_") || name.starts_with("gpu_burst_")
    };
    for metric in expected.filter(|metric| !not_here(metric.name)) {
        let gpus = metrics.iter().filter(|name| **name == metric.name).count();
        assert!(gpus >= 8, "{} is read of {gpus} GPUs", metric.name);
    }
}

#[tokio::test]
async fn units_are_base_units() {
    let samples = read_once("h100x2:healthy").await;
    let between = |metric: &str, low: f64, high: f64| {
        let value = of_gpu(&samples, metric);
        assert!((low..=high).contains(&value), "{metric} is {value}");
    };
    between("gpu_up", 1.0, 1.0);
    between("gpu_memory_total_bytes", 80e9, 90e9);
    between("gpu_memory_used_bytes", 1e9, 85e9);
    between("gpu_utilization_ratio", 0.0, 1.0);
    between("gpu_sm_active_ratio", 0.01, 1.0);
    between("gpu_tensor_active_ratio", 0.01, 1.0);
    between("gpu_power_watts", 60.0, 750.0);
    between("gpu_power_limit_watts", 700.0, 700.0);
    between("gpu_sm_clock_max_hertz", 1.98e9, 1.98e9);
    between("gpu_temperature_celsius", 20.0, 90.0);
    between("gpu_nvlinks", 18.0, 18.0);
    between("gpu_nvlinks_active", 18.0, 18.0);
    between("gpu_pcie_generation_max", 5.0, 5.0);
    between("gpu_energy_joules_total", 0.0, 1e12);
    let nvlink = of_link(&samples, "link_bandwidth_bytes_per_second", "nvlink");
    assert!((477e9..479e9).contains(&nvlink), "NVLink carries {nvlink}");
    for link in ["nvlink", "pcie"] {
        let used = of_link(&samples, "link_utilization_ratio", link);
        assert!((0.0..=1.2).contains(&used), "{link} is {used} full");
        assert!(of_link(&samples, "link_transmit_bytes_total", link) >= 0.0);
    }
}

#[tokio::test]
async fn a_gpu_without_gpm_nvlink_and_ecc_is_read_as_far_as_it_goes() {
    let samples = read_once("rtx4090x1:healthy").await;
    assert_eq!(of_gpu(&samples, "gpu_up"), 1.0);
    assert!(of_gpu(&samples, "gpu_utilization_ratio") >= 0.0);
    assert!(of_link(&samples, "link_utilization_ratio", "pcie") >= 0.0);
    for metric in [
        "gpu_sm_active_ratio",
        "gpu_nvlinks",
        "gpu_ecc_errors_total",
        "gpu_memory_temperature_celsius",
    ] {
        assert!(
            !samples.keys().any(|series| series.starts_with(metric)),
            "{metric}"
        );
    }
}

#[tokio::test]
async fn without_a_library_the_agent_runs_and_says_why() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    until("host samples", || {
        !collector.received().values("node_load1").is_empty()
    })
    .await;
    let inventory = collector.received().inventories[0].clone();
    let why = inventory.gpus_missing.unwrap();
    assert!(why.contains("/nonexistent/libnvidia-ml.so.1"), "{why}");
    assert!(inventory.gpus.is_empty() && inventory.simulated.is_none() && inventory.cpus > 0);
    assert_eq!(inventory.rack, None);
    agent.stop().await;
}

#[tokio::test]
async fn the_inventory_names_the_gpus_and_the_simulation() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x4:healthy");
    let agent = Running::start(AgentConfig {
        nvml,
        rack: Some(RackName::new("R01").unwrap()),
        ..config_towards(folder.path(), &collector.url())
    });
    until("a hello", || !collector.received().inventories.is_empty()).await;
    let inventory = collector.received().inventories[0].clone();
    assert_eq!(inventory.rack.as_deref(), Some("R01"));
    assert_eq!(inventory.simulated.as_deref(), Some("h100x4:healthy"));
    assert_eq!((inventory.gpus.len(), inventory.gpus_missing), (4, None));
    let gpu = &inventory.gpus[3];
    assert_eq!(
        (gpu.index, gpu.nvlinks, gpu.gpm, gpu.power_limit_watts),
        (3, 18, true, 700.0)
    );
    assert!(gpu.uuid.starts_with("GPU-") && gpu.name.contains("H100") && gpu.pci_bus_id.contains(':'));
    assert!(inventory.driver_version.starts_with("580.") && inventory.cuda_version.contains('.'));
    agent.stop().await;
}

#[tokio::test]
async fn a_simulated_library_is_never_passed_off_as_real() {
    let folder = folder();
    let collector = Collector::start().await;
    let NvmlSource::Simulated {
        library: Some(path), ..
    } = simulated(folder.path(), "")
    else {
        unreachable!()
    };
    let nvml = NvmlSource::Path(path);
    let agent = Running::start(AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    });
    until("a hello", || !collector.received().inventories.is_empty()).await;
    assert!(collector.received().inventories[0].simulated.is_some());
    agent.stop().await;
}

#[tokio::test]
async fn a_simulation_that_cannot_be_had_is_refused_at_the_start() {
    let folder = folder();
    let refused = |nvml| {
        agent::once(AgentConfig {
            nvml,
            ..config(folder.path())
        })
    };
    let error = refused(simulated(folder.path(), "v100x8"))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("v100") && error.contains("h100"), "{error}");
    let spec = "h100x1".to_owned();
    let other = NvmlSource::Simulated {
        library: Some("/lib/x86_64-linux-gnu/libc.so.6".into()),
        spec: spec.clone(),
    };
    let error = refused(other).await.unwrap_err().to_string();
    assert!(error.contains("not the simulator"), "{error}");
    let missing = NvmlSource::Simulated {
        library: Some(folder.path().join("no.so")),
        spec,
    };
    assert!(
        refused(missing)
            .await
            .unwrap_err()
            .to_string()
            .contains("cannot be loaded")
    );
}

#[tokio::test]
async fn a_hanging_driver_is_reported_and_survived() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x2:hang,gpu=1,after=3s,for=9s");
    let agent = Running::start(AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    });
    let values = |series: &str| collector.received().values(series);
    until("the hang", || values("gpu_up{gpu=\"1\"}").contains(&0.0)).await;
    until("an event", || {
        collector.received().kinds().contains(&"nvml_unresponsive")
    })
    .await;
    let delay_ms = {
        let received = collector.received();
        let event = received
            .events
            .iter()
            .find(|event| event.kind == "nvml_unresponsive")
            .unwrap();
        let power = &received.series["gpu_power_watts{gpu=\"1\"}"];
        let mut before = power.range(..event.at_ms);
        let last = before.rfind(|(_, value)| value.is_finite());
        event.at_ms - last.unwrap().0
    };
    // The call that hangs starts at most one second after the last one that returned.
    assert!(delay_ms <= 5_000, "reported {delay_ms} ms after the last reading");
    assert!(values("lockstep_agent_nvml_up").contains(&0.0));
    // The other readers of the node continue.
    let seen = values("node_load1").len();
    until("host samples", || values("node_load1").len() > seen).await;
    // The series of the other GPU have ended, and do not keep their last value.
    let neighbour = values("gpu_power_watts{gpu=\"0\"}");
    assert!(
        neighbour.last().copied().is_some_and(domain::series::is_stale),
        "{neighbour:?}"
    );
    until("recovery", || {
        collector.received().kinds().contains(&"nvml_responsive")
    })
    .await;
    until("readings", || values("gpu_up{gpu=\"1\"}").last() == Some(&1.0)).await;
    until("NVML up", || {
        values("lockstep_agent_nvml_up").last() == Some(&1.0)
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn a_lost_gpu_is_down_and_returns_while_the_others_continue() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x2:lost,gpu=1,after=3s,for=8s");
    let agent = Running::start(AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    });
    let values = |series: &str| collector.received().values(series);
    until("the loss", || values("gpu_up{gpu=\"1\"}").contains(&0.0)).await;
    until("its series end", || {
        values("gpu_power_watts{gpu=\"1\"}")
            .iter()
            .any(|v| domain::series::is_stale(*v))
    })
    .await;
    let seen = values("gpu_power_watts{gpu=\"0\"}").len();
    until("the neighbour", || {
        values("gpu_power_watts{gpu=\"0\"}").len() > seen
    })
    .await;
    until("its return", || values("gpu_up{gpu=\"1\"}").last() == Some(&1.0)).await;
    until("readings", || {
        values("gpu_power_watts{gpu=\"1\"}")
            .last()
            .is_some_and(|v| v.is_finite())
    })
    .await;
    until("both events", || {
        let received = collector.received();
        received.kinds().contains(&"gpu_lost") && received.kinds().contains(&"gpu_recovered")
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn an_xid_is_counted_and_reported() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x2:xid,gpu=1,code=31,after=3s");
    let agent = Running::start(AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    });
    let counts = || {
        collector
            .received()
            .values("gpu_xid_errors_total{gpu=\"1\", xid=\"31\"}")
    };
    until("the count", || counts().last() == Some(&1.0)).await;
    assert_eq!(counts()[0], 0.0, "a counter born at one shows no increase");
    until("the event", || collector.received().kinds().contains(&"xid")).await;
    let event = collector
        .received()
        .events
        .iter()
        .find(|event| event.kind == "xid")
        .cloned()
        .unwrap();
    assert_eq!(event.gpu, Some(1));
    assert!(event.message.contains("Xid 31"), "{}", event.message);
    agent.stop().await;
}
