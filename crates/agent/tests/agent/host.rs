//! A fixture host for which every value is known.

use std::collections::HashMap;
use std::path::Path;

use agent::AgentConfig;

use crate::exposition::parse;
use crate::support::{config, folder};

/// The files of a small machine: 2 processors, 8 GiB, one disk with a partition, one network card, one InfiniBand port.
const FILES: &[(&str, &str)] = &[
    (
        "proc/stat",
        "cpu  1000 20 300 40000 50 6 7 8 0 0\ncpu0 500 10 150 20000 25 3 3 4 0 0\ncpu1 500 10 150 20000 25 3 4 4 0 0\nintr 1\nbtime 1700000000\n",
    ),
    ("proc/loadavg", "1.25 0.80 0.40 2/300 4711\n"),
    (
        "proc/meminfo",
        "MemTotal:        8388608 kB\nMemFree:          100000 kB\nMemAvailable:    4194304 kB\nSwapTotal:       1048576 kB\nSwapFree:        1000000 kB\n",
    ),
    (
        "proc/diskstats",
        " 259 0 nvme0n1 100 0 2000 30 200 0 4000 60 0 1500 90 0 0 0 0\n 259 1 nvme0n1p1 1 0 2 3 4 0 5 6 0 7 8\n 7 0 loop0 1 0 2 3 4 0 5 6 0 7 8\n",
    ),
    ("sys/block/nvme0n1/size", "1\n"),
    ("sys/block/loop0/size", "1\n"),
    (
        "proc/net/dev",
        "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 123456 1 0 0 0 0 0 0 654321 1 0 0 0 0 0 0\nveth1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n",
    ),
    ("sys/class/net/eth0/speed", "25000\n"),
    ("sys/class/net/eth0/device/vendor", "0x15b3\n"),
    ("sys/class/net/veth1/speed", "10000\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    (
        "sys/class/infiniband/mlx5_0/ports/1/rate",
        "400 Gb/sec (4X NDR)\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
        "1000\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
        "250\n",
    ),
    ("sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n"),
    ("sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n"),
    (
        "proc/mounts",
        "/dev/nvme0n1p1 / ext4 rw 0 0\n/dev/nvme0n1p1 /again ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/sdz1 /my\\040disk xfs rw 0 0\n/dev/gone /gone ext4 rw 0 0\n",
    ),
    ("my disk/file", ""),
    (
        "proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU\nprocessor\t: 1\n",
    ),
];

async fn read(root: &Path) -> HashMap<String, f64> {
    let data = folder();
    parse(
        &agent::once(AgentConfig {
            root: root.into(),
            ..config(data.path())
        })
        .await
        .unwrap(),
    )
}

fn build(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = folder();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

#[tokio::test]
async fn the_host_reads_as_its_files_say() {
    let root = build(FILES);
    let samples = read(root.path()).await;
    let expected = [
        ("node_cpu_seconds_total{mode=\"user\",node=\"n1\"}", 10.0),
        ("node_cpu_seconds_total{mode=\"idle\",node=\"n1\"}", 400.0),
        ("node_cpu_seconds_total{mode=\"steal\",node=\"n1\"}", 0.08),
        ("node_cpus{node=\"n1\"}", 2.0),
        ("node_load1{node=\"n1\"}", 1.25),
        ("node_boot_time_seconds{node=\"n1\"}", 1_700_000_000.0),
        ("node_memory_total_bytes{node=\"n1\"}", 8_589_934_592.0),
        ("node_memory_available_bytes{node=\"n1\"}", 4_294_967_296.0),
        ("node_swap_used_bytes{node=\"n1\"}", 48_576.0 * 1_024.0),
        (
            "node_disk_read_bytes_total{device=\"nvme0n1\",node=\"n1\"}",
            2_000.0 * 512.0,
        ),
        (
            "node_disk_written_bytes_total{device=\"nvme0n1\",node=\"n1\"}",
            4_000.0 * 512.0,
        ),
        ("node_disk_io_seconds_total{device=\"nvme0n1\",node=\"n1\"}", 1.5),
        (
            "node_network_receive_bytes_total{device=\"eth0\",node=\"n1\"}",
            123_456.0,
        ),
        (
            "node_network_transmit_bytes_total{device=\"eth0\",node=\"n1\"}",
            654_321.0,
        ),
        (
            "node_network_speed_bytes_per_second{device=\"eth0\",node=\"n1\"}",
            3.125e9,
        ),
        ("link_transmit_bytes_total{link=\"eth\",node=\"n1\"}", 654_321.0),
        (
            "link_bandwidth_bytes_per_second{link=\"eth\",node=\"n1\"}",
            3.125e9,
        ),
        ("link_utilization_ratio{link=\"eth\",node=\"n1\"}", 0.0),
        ("link_transmit_bytes_total{link=\"ib\",node=\"n1\"}", 4_000.0),
        ("link_receive_bytes_total{link=\"ib\",node=\"n1\"}", 1_000.0),
        ("link_bandwidth_bytes_per_second{link=\"ib\",node=\"n1\"}", 50e9),
    ];
    for (series, value) in expected {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
    let disks = samples
        .keys()
        .filter(|series| series.starts_with("node_disk_read_bytes_total"))
        .count();
    assert_eq!(disks, 1, "neither partitions nor loop devices are disks");
    let sizes: Vec<_> = samples
        .keys()
        .filter(|series| series.starts_with("node_filesystem_size_bytes"))
        .collect();
    assert_eq!(
        sizes.len(),
        2,
        "each device once, and only what can be asked: {sizes:?}"
    );
    assert!(
        sizes
            .iter()
            .any(|series| series.contains("mountpoint=\"/my disk\"")),
        "{sizes:?}"
    );
}

#[tokio::test]
async fn a_host_without_files_has_no_host_metrics_and_the_agent_still_has_its_own() {
    let samples = read(folder().path()).await;
    assert!(!samples.keys().any(|series| series.starts_with("node_")));
    assert!(
        samples
            .keys()
            .any(|series| series.starts_with("lockstep_agent_memory_bytes"))
    );
}

#[tokio::test]
async fn malformed_files_cost_only_their_own_metrics() {
    let broken = [
        ("proc/stat", "cpu\ncpu0\nbtime x\n"),
        ("proc/loadavg", ""),
        ("proc/meminfo", "MemTotal: lots\n"),
        ("proc/diskstats", "1 2\nx y z\n"),
        ("proc/net/dev", "eth0 no colon\n  eth1: 1 2 3\n"),
        ("proc/mounts", "a\n/dev/x / ext4\n"),
        ("sys/class/infiniband/mlx5_0/ports/1/rate", "fast\n"),
    ];
    let samples = read(build(&broken).path()).await;
    assert!(
        samples
            .keys()
            .any(|series| series.starts_with("node_filesystem_size_bytes"))
    );
    assert!(!samples.keys().any(|series| series.starts_with("node_memory")));
}
