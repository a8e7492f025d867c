//! `/sys/class/infiniband`: all RDMA ports of InfiniBand link layer together, as the link `ib`.
//!
//! Any driver's devices count, not only Mellanox's. Some firmware answers a counter with an error and floods the kernel's
//! log at each attempt, so a counter that failed once is never read again.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use domain::time::TimestampMs;

use super::network::busier_rate;
use super::number;
use crate::sample::Samples;
use crate::sample::series::Family;

/// Octets are counted in words of four.
const WORD_BYTES: f64 = 4.0;
/// `400 Gb/sec (4X NDR)`: bytes a second in a gigabit a second.
const GIGABIT_BYTES: f64 = 125e6;

/// The ports seen so far.
#[derive(Default)]
pub(super) struct Ports {
    last: HashMap<PathBuf, (Instant, [f64; 2])>,
    broken: HashSet<PathBuf>,
    link: Family,
}

impl Ports {
    pub(super) fn read(&mut self, root: &Path, samples: &Samples, at_ms: TimestampMs) {
        let (mut total, mut bandwidth, mut busiest, mut any) = ([0.0, 0.0], 0.0, None::<f64>, false);
        for port in ports(root) {
            let Some((counters, speed)) = self.counters(&port) else {
                continue;
            };
            any = true;
            total = [total[0] + counters[0], total[1] + counters[1]];
            bandwidth += speed;
            let now = Instant::now();
            if let Some(rate) = self
                .last
                .insert(port, (now, counters))
                .and_then(|before| busier_rate(before, now, counters))
            {
                busiest = Some(busiest.unwrap_or(0.0).max(rate / speed));
            }
        }
        if !any {
            return;
        }
        let ib = ("link", "ib");
        let out = &mut self.link.at(samples, at_ms);
        out.put_by("link_transmit_bytes_total", ib, total[0]);
        out.put_by("link_receive_bytes_total", ib, total[1]);
        out.put_by("link_bandwidth_bytes_per_second", ib, bandwidth);
        if let Some(busiest) = busiest {
            out.put_by("link_utilization_ratio", ib, busiest);
        }
    }

    /// Bytes sent and received, and the port's speed in bytes a second.
    fn counters(&mut self, port: &Path) -> Option<([f64; 2], f64)> {
        let speed = speed(&std::fs::read_to_string(port.join("rate")).ok()?)?;
        let sent = self.counter(port.join("counters/port_xmit_data"))?;
        let received = self.counter(port.join("counters/port_rcv_data"))?;
        Some(([sent * WORD_BYTES, received * WORD_BYTES], speed))
    }

    fn counter(&mut self, path: PathBuf) -> Option<f64> {
        if self.broken.contains(&path) {
            return None;
        }
        let value = number(&path);
        if value.is_none() {
            self.broken.insert(path);
        }
        value
    }
}

/// Ports whose link layer is InfiniBand and whose link is active; Ethernet ports (RoCE) are counted as interfaces.
fn ports(root: &Path) -> Vec<PathBuf> {
    let folders = |path: PathBuf| {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let says = |port: &Path, file: &str, word: &str| {
        std::fs::read_to_string(port.join(file)).is_ok_and(|text| text.contains(word))
    };
    folders(root.join("sys/class/infiniband"))
        .flat_map(|device| folders(device.join("ports")))
        .filter(|port| says(port, "link_layer", "InfiniBand") && says(port, "state", "ACTIVE"))
        .collect()
}

fn speed(rate: &str) -> Option<f64> {
    let gigabits: f64 = rate.split_ascii_whitespace().next()?.parse().ok()?;
    (gigabits > 0.0).then_some(gigabits * GIGABIT_BYTES)
}
