//! Tests errors of GPUs from both witnesses with a whole agent: NVML (simulated), and a file as the kernel log.

use std::io::Write;
use std::path::Path;

use agent::AgentConfig;
use domain::event::Severity;

use crate::collector::Collector;
use crate::support::{Running, config_towards, folder, simulated, until};

/// Writes a line to the log under `root` with the current time, as the driver does.
fn log(root: &Path, sequence: u32, line: &str) {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(root.join("dev/kmsg"))
        .unwrap();
    writeln!(file, "4,{sequence},{},-;{line}", (seconds * 1e6) as u64).unwrap();
}

#[tokio::test]
async fn an_xid_of_the_kernel_s_log_finds_its_gpu_and_its_run() {
    let (folder, root) = (folder(), folder());
    std::fs::create_dir_all(root.path().join("dev")).unwrap();
    std::fs::write(root.path().join("dev/kmsg"), "").unwrap();
    let process = root.path().join("proc/4711");
    std::fs::create_dir_all(&process).unwrap();
    std::fs::write(
        process.join("stat"),
        format!("4711 (python) S {} 500 0", ["1"; 18].join(" ")),
    )
    .unwrap();
    std::fs::write(
        process.join("environ"),
        "PASSWORD=hush\0TORCHELASTIC_RUN_ID=nightly\0RANK=5\0",
    )
    .unwrap();

    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        root: root.path().into(),
        nvml: simulated(folder.path(), "h100x2:healthy"),
        ..config_towards(folder.path(), &collector.url())
    });
    until("the GPUs", || {
        collector
            .received()
            .inventories
            .iter()
            .any(|inventory| inventory.gpus.len() == 2)
    })
    .await;
    let inventory = collector.received().inventories[0].clone();
    let sources: Vec<_> = inventory
        .sources
        .iter()
        .map(|source| (source.name.as_str(), source.available))
        .collect();
    assert_eq!(sources[..2], [("kernel_log", true), ("infiniband", false)]);

    let address = inventory.gpus[1]
        .pci_bus_id
        .trim_start_matches("0000")
        .to_ascii_lowercase();
    let address = format!("0000{}", address.trim_end_matches(".0"));
    log(
        root.path(),
        1,
        &format!("NVRM: Xid (PCI:{address}): 31, pid=4711, name=python, MMU Fault"),
    );
    log(
        root.path(),
        2,
        &format!("NVRM: Xid (PCI:{address}): 95, pid=4711, name=python, Uncontained"),
    );
    until("both events", || {
        collector
            .received()
            .kinds()
            .iter()
            .filter(|kind| **kind == "xid")
            .count()
            == 2
    })
    .await;
    let events = collector.received().events.clone();
    let event = events
        .iter()
        .find(|event| event.message.contains("Xid 31"))
        .unwrap();
    assert_eq!(
        (event.gpu, event.severity, event.run.as_deref()),
        (Some(1), Severity::Warning, Some("nightly"))
    );
    assert!(
        events
            .iter()
            .any(|event| event.severity == Severity::Critical && event.message.contains("RESET_GPU"))
    );
    assert!(events.iter().all(|event| !event.message.contains("hush")));
    let counted = || {
        collector
            .received()
            .values("gpu_xid_errors_total{gpu=\"1\", xid=\"95\"}")
    };
    until("the count", || counted().last() == Some(&1.0)).await;
    assert_eq!(counted()[0], 0.0, "a counter born at one shows no increase");
    agent.stop().await;
}
