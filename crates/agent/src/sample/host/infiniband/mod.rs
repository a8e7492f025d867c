//! `/sys/class/infiniband`: all RDMA ports, whoever made the card (mlx5, efa, bnxt_re, irdma, hfi1, …).
//!
//! ```text
//! each minute      which ports there are, and which of the counters we know they have
//! every 10 s       state, rate, errors
//! each second      bytes, waiting, congestion, while the port is active
//!
//! InfiniBand, Omni-Path, EFA ─▶ together the link `ib`
//! Ethernet (RoCE)            ─▶ added to their interface's bytes, in the link `eth`: they bypass its own counters
//! ```
//! Reading must not do harm: some firmware answers a counter with an error and floods the kernel's log at each attempt, so one
//! that failed once is never read again.

mod counters;
mod port;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::port::{Layer, Port};
use super::network::Traffic;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;

/// Ports that get series; the largest nodes have 16. A card with virtual functions by the hundred must not fill the store.
const PORTS_MAX: usize = 32;

/// The ports seen so far.
#[derive(Default)]
pub(super) struct Ports {
    ports: BTreeMap<PathBuf, Port>,
    broken: counters::Broken,
    link: Family,
}

impl Ports {
    /// Reads once; gives what goes over Ethernet.
    pub(super) fn read(&mut self, root: &Path, samples: &Samples, tick: &Tick) -> Vec<Traffic> {
        if tick.topology {
            self.discover(root, samples, tick);
        }
        for port in self.ports.values_mut() {
            port.read(&mut self.broken, samples, tick);
        }
        self.put_link(samples, tick);
        let on_ethernet = self.ports.values().filter(|port| port.layer == Layer::Ethernet);
        on_ethernet.filter_map(Port::traffic).collect()
    }

    fn discover(&mut self, root: &Path, samples: &Samples, tick: &Tick) {
        let present = ports(root);
        self.ports.retain(|path, port| {
            let stays = present.contains(path);
            if !stays {
                port.end(samples, tick.at_ms);
            }
            stays
        });
        for path in present {
            if self.ports.len() < PORTS_MAX || self.ports.contains_key(&path) {
                let port = self.ports.entry(path).or_insert_with_key(|path| Port::new(path));
                port.look();
            }
        }
    }

    fn put_link(&mut self, samples: &Samples, tick: &Tick) {
        let fabric = self.ports.values().filter(|port| port.layer == Layer::Fabric);
        let traffic: Vec<Traffic> = fabric.filter_map(Port::traffic).collect();
        if traffic.is_empty() {
            return;
        }
        let sum = |of: fn(&Traffic) -> f64| traffic.iter().map(of).sum::<f64>();
        let ib = ("link", "ib");
        let out = &mut self.link.at(samples, tick.at_ms);
        out.put_by("link_transmit_bytes_total", ib, sum(|port| port.bytes[0]));
        out.put_by("link_receive_bytes_total", ib, sum(|port| port.bytes[1]));
        out.put_by("link_bandwidth_bytes_per_second", ib, sum(|port| port.speed));
        // A full port is not made up for by an idle one.
        let busiest = traffic.iter().filter_map(Traffic::utilization).reduce(f64::max);
        if let Some(busiest) = busiest {
            out.put_by("link_utilization_ratio", ib, busiest);
        }
    }
}

fn ports(root: &Path) -> Vec<PathBuf> {
    let folders = |path: PathBuf| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let devices = folders(root.join("sys/class/infiniband"));
    let mut ports: Vec<PathBuf> = devices.flat_map(|device| folders(device.join("ports"))).collect();
    ports.sort();
    ports
}
