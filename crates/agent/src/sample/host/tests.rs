//! Tests each kind of network card with a fixture tree: `testdata/nic/*.tree`.
//!
//! ```text
//! # a comment
//! sys/class/net/eth0/speed = 25000      a file and its text        proc/net/dev + …      one more line
//! > node_network_up{device="eth0"} 1    an expected series; `node_network_*` of bytes, errors and speed may be left out
//! ```
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::PathBuf;

use super::*;

/// Series of every card. A fixture names only those that are special.
const COMMON: [&str; 4] = [
    "node_network_receive_bytes_total",
    "node_network_transmit_bytes_total",
    "node_network_errors_total",
    "node_network_speed_bytes_per_second",
];

fn build(tree: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for line in tree.lines() {
        let (file, text, append) = match (line.split_once(" = "), line.split_once(" + ")) {
            (Some((file, text)), _) if !line.starts_with(['#', '>']) => (file, text, false),
            (_, Some((file, text))) if !line.starts_with(['#', '>']) => (file, text, true),
            _ => continue,
        };
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let before = if append {
            std::fs::read_to_string(&path).unwrap()
        } else {
            String::new()
        };
        std::fs::write(path, format!("{before}{text}\n")).unwrap();
    }
    root
}

fn tick(n: u64) -> Tick {
    Tick::nth(n, n as i64 * 1_000)
}

/// Returns the series of networks and links, formatted as text.
fn series(samples: &Samples) -> Vec<String> {
    let prefixes = ["node_network_", "rdma_port_", "link_"];
    let mut all: Vec<String> = samples
        .latest()
        .iter()
        .filter(|sample| {
            prefixes
                .iter()
                .any(|prefix| sample.series.metric_name().unwrap().starts_with(prefix))
        })
        .map(|sample| {
            format!(
                "{} {}",
                sample.series.to_string().replace(", ", ","),
                sample.value
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn each_kind_of_adapter_is_read_from_its_tree() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/nic");
    let mut kinds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let tree = std::fs::read_to_string(&path).unwrap();
        let root = build(&tree);
        let samples = Samples::new();
        let mut reader = HostReader::new(root.path(), samples.clone());
        reader.read(&tick(0));
        reader.read(&tick(1));
        let expected: Vec<&str> = tree.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        let named = |series: &String| expected.contains(&series.as_str());
        let common = |series: &String| COMMON.iter().any(|name| series.starts_with(name));
        let read: Vec<String> = series(&samples)
            .into_iter()
            .filter(|series| named(series) || !common(series))
            .collect();
        assert_eq!(read, expected, "{path:?}");
        kinds += 1;
    }
    assert_eq!(kinds, 9);
}

const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";
const IB: &str = include_str!("../../../testdata/nic/mlx5-infiniband.tree");

#[test]
fn a_counter_that_answered_with_an_error_is_never_read_again() {
    let root = build(IB);
    let counter = root.path().join(PORT).join("counters/symbol_error");
    std::fs::remove_file(&counter).unwrap();
    // This file is the speed of an interface without one. Reading it gives EINVAL, as restricted firmware does.
    std::os::unix::fs::symlink("/sys/class/net/lo/speed", &counter).unwrap();
    let samples = Samples::new();
    let mut reader = HostReader::new(root.path(), samples.clone());
    let read = |samples: &Samples| {
        series(samples)
            .iter()
            .any(|series| series.contains("type=\"symbol\""))
    };
    reader.read(&tick(0));
    std::fs::remove_file(&counter).unwrap();
    std::fs::write(&counter, "3\n").unwrap();
    (1..=120).for_each(|n| reader.read(&tick(n)));
    assert!(!read(&samples), "it was read again");
    assert!(
        series(&samples)
            .iter()
            .any(|series| series.contains("type=\"link_downed\"")),
        "only that one is lost"
    );
}

#[test]
fn an_adapter_that_returns_is_read_again() {
    let root = build(IB);
    let samples = Samples::new();
    let mut reader = HostReader::new(root.path(), samples.clone());
    reader.read(&tick(0));
    let device = root.path().join("sys/class/infiniband/mlx5_0");
    let aside = root.path().join("aside");
    std::fs::rename(&device, &aside).unwrap();
    reader.read(&tick(60));
    assert!(
        !series(&samples)
            .iter()
            .any(|series| series.starts_with("rdma_port_")),
        "{:?}",
        series(&samples)
    );
    std::fs::rename(&aside, &device).unwrap();
    reader.read(&tick(120));
    assert!(series(&samples).contains(&"rdma_port_up{device=\"mlx5_0\",port=\"1\"} 1".to_owned()));
}

#[test]
fn a_port_that_goes_down_is_reported_and_the_sum_does_not_fall() {
    let root = build(IB);
    let samples = Samples::new();
    let mut reader = HostReader::new(root.path(), samples.clone());
    reader.read(&tick(0));
    std::fs::write(root.path().join(PORT).join("state"), "1: DOWN\n").unwrap();
    reader.read(&tick(10));
    let now = series(&samples);
    assert!(
        now.contains(&"rdma_port_up{device=\"mlx5_0\",port=\"1\"} 0".to_owned()),
        "{now:?}"
    );
    assert!(
        now.contains(&"link_transmit_bytes_total{link=\"ib\"} 4000".to_owned()),
        "{now:?}"
    );
}

#[test]
fn a_link_is_as_full_as_its_busiest_direction() {
    let root = build(include_str!("../../../testdata/nic/mlx5-roce.tree"));
    let samples = Samples::new();
    let mut reader = HostReader::new(root.path(), samples.clone());
    let began = std::time::Instant::now();
    reader.read(&tick(0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    // 1 GB over RDMA (in words of four bytes), and 0.25 GB that is not RDMA.
    let counters = root.path().join("sys/class/infiniband/rocep1s0/ports/1/counters");
    std::fs::write(counters.join("port_xmit_data"), "250001000\n").unwrap();
    std::fs::write(
        root.path().join("proc/net/dev"),
        "enp1s0: 70 1 0 0 0 0 0 0 250000080 1 0 0 0 0 0 0\n",
    )
    .unwrap();
    reader.read(&tick(1));
    let most = 1.25e9 / 0.05 / 12.5e9;
    let least = 1.25e9 / began.elapsed().as_secs_f64() / 12.5e9;
    let used = samples
        .latest()
        .iter()
        .find(|sample| sample.series.metric_name() == Some("link_utilization_ratio"))
        .unwrap()
        .value;
    assert!(
        (least..=most).contains(&used),
        "{used} is not between {least} and {most}"
    );
}
