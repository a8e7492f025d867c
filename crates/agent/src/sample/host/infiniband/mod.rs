//! Reads `/sys/class/infiniband`: all RDMA ports, of any vendor (mlx5, efa, bnxt_re, irdma, hfi1, …).
//!
//! ```text
//! every 60 s       which ports exist, and which of the known counters they have
//! every 10 s       state, rate, errors
//! every second     bytes, waiting, congestion, while the port is active
//!
//! InfiniBand, Omni-Path, EFA ─▶ together the link `ib`
//! Ethernet (RoCE)            ─▶ added to the bytes of their interface in the link `eth`: they bypass its own counters
//! ```
//! Reading must not do harm: some firmware returns an error for a counter and writes to the kernel log at each attempt, so a counter that
//! failed once is never read again.

mod counters;
mod port;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::port::{Layer, Port};
use super::network::Traffic;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;

/// The maximum number of ports with series. The largest nodes have 16. A card with hundreds of virtual functions must not fill the store.
const PORTS_MAX: usize = 32;

/// The ports seen so far.
#[derive(Default)]
pub(super) struct Ports {
    ports: BTreeMap<PathBuf, Port>,
    broken: counters::Broken,
    link: Family,
}

impl Ports {
    /// Reads once. Returns the traffic over Ethernet.
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
                port.find_counters();
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
        // The busiest port limits the node, even if others are idle.
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
