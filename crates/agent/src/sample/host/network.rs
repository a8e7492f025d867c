//! Network interfaces: `/proc/net/dev` for their traffic, `/sys/class/net/*` for their properties. All physical ones together are the link
//! `eth`, including RDMA traffic that bypasses them (RoCE).
//!
//! ```text
//! physical   has a device, Ethernet                         own series, counts for `eth`
//! ipoib      has a device, InfiniBand                       own series; its bytes belong to the fabric
//! bond, vlan other names for physical ones                  own series
//! virtual    veth, bridge, tun: they change with containers left out if there is a physical one
//! ```

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Instant;

use super::number;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, series};

/// The maximum number of interfaces with series. A node with more runs containers; their interfaces change often and need no series.
const INTERFACES_MAX: usize = 64;
/// The kernel's number of Ethernet in `type`.
const TYPE_ETHERNET: f64 = 1.0;
/// The kernel's number of InfiniBand in `type`. See [`TYPE_ETHERNET`].
const TYPE_INFINIBAND: f64 = 32.0;
/// Bytes per second in one megabit per second, the unit of `speed`.
const MEGABIT_BYTES: f64 = 125_000.0;

/// Two byte counters, and when they were read.
pub(super) type Reading = (Instant, [f64; 2]);

/// Traffic that counts for a link: sent, then received.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traffic {
    pub(super) interface: Option<String>,
    pub(super) bytes: [f64; 2],
    /// The capacity in one direction, in bytes per second.
    pub(super) speed: f64,
    pub(super) rates: Option<[f64; 2]>,
}

impl Traffic {
    /// Returns the rate of the busier direction as a share of the link's capacity.
    pub(super) fn utilization(&self) -> Option<f64> {
        self.rates.map(|[sent, received]| sent.max(received) / self.speed)
    }
}

/// The kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Physical,
    Ipoib,
    Bond,
    Vlan,
    Virtual,
}

/// The interfaces seen so far.
#[derive(Default)]
pub(super) struct Networks {
    kinds: HashMap<String, Kind>,
    interfaces: HashMap<String, Interface>,
    link: Family,
}

struct Interface {
    family: Family,
    kind: Kind,
    speed: Option<f64>,
    last: Option<Reading>,
}

/// One line of `/proc/net/dev`: received, then sent.
struct Line<'a> {
    name: &'a str,
    bytes: [f64; 2],
    errors: [f64; 2],
    drops: [f64; 2],
}

impl Networks {
    /// Reads once. `rdma` is the traffic over Ethernet that bypasses the interfaces.
    pub(super) fn read(&mut self, root: &Path, samples: &Samples, tick: &Tick, rdma: &[Traffic]) {
        // `/proc/net` is the reader's own network namespace; process 1 is in the host's.
        let dev = super::text(root, "proc/1/net/dev").or_else(|| super::text(root, "proc/net/dev"));
        let dev = dev.unwrap_or_default();
        let lines: Vec<Line<'_>> = dev
            .lines()
            .filter_map(parse)
            .filter(|line| line.name != "lo")
            .collect();
        self.learn_kinds(root, &lines);
        let any_physical = self.kinds.values().any(|kind| *kind == Kind::Physical);
        let mut present = HashSet::new();
        let mut carried = Vec::new();
        for line in &lines {
            let kind = self.kinds.get(line.name).copied().unwrap_or(Kind::Virtual);
            let known = self.interfaces.contains_key(line.name);
            let shown = kind != Kind::Virtual || !any_physical;
            if !shown || (self.interfaces.len() >= INTERFACES_MAX && !known) {
                continue;
            }
            present.insert(line.name.to_owned());
            let interface = self.interfaces.entry(line.name.to_owned());
            let interface = interface.or_insert_with(|| Interface::new(line.name, kind));
            carried.extend(interface.read(root, line, samples, tick));
        }
        self.forget_absent(&present, samples, tick);
        self.put_link(&together(carried, rdma), samples, tick);
    }

    fn learn_kinds(&mut self, root: &Path, lines: &[Line<'_>]) {
        let names: HashSet<&str> = lines.iter().map(|line| line.name).collect();
        self.kinds.retain(|name, _| names.contains(name.as_str()));
        for name in names {
            if !self.kinds.contains_key(name) {
                self.kinds
                    .insert(name.to_owned(), Kind::of(&root.join("sys/class/net").join(name)));
            }
        }
    }

    fn forget_absent(&mut self, present: &HashSet<String>, samples: &Samples, tick: &Tick) {
        let gone: Vec<String> = self
            .interfaces
            .keys()
            .filter(|name| !present.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.interfaces.remove(&name);
            let of_network = |metric: Option<&str>| metric.is_some_and(|m| m.starts_with("node_network_"));
            samples.end_where(tick.at_ms, |series| {
                series.get("device") == Some(&name) && of_network(series.metric_name())
            });
        }
    }

    fn put_link(&mut self, carried: &[Traffic], samples: &Samples, tick: &Tick) {
        if carried.is_empty() {
            return;
        }
        let sum = |of: fn(&Traffic) -> f64| carried.iter().map(of).sum::<f64>();
        let eth = ("link", "eth");
        let out = &mut self.link.at(samples, tick.at_ms);
        out.put_by("link_transmit_bytes_total", eth, sum(|one| one.bytes[0]));
        out.put_by("link_receive_bytes_total", eth, sum(|one| one.bytes[1]));
        out.put_by("link_bandwidth_bytes_per_second", eth, sum(|one| one.speed));
        // The busiest interface limits the node, even if others are idle.
        let busiest = carried.iter().filter_map(Traffic::utilization).reduce(f64::max);
        if let Some(busiest) = busiest {
            out.put_by("link_utilization_ratio", eth, busiest);
        }
    }
}

impl Interface {
    fn new(name: &str, kind: Kind) -> Self {
        Self {
            family: Family::new(vec![("device", name.to_owned())]),
            kind,
            speed: None,
            last: None,
        }
    }

    /// Reads the interface. Returns its traffic if it counts for the link `eth`.
    fn read(&mut self, root: &Path, line: &Line<'_>, samples: &Samples, tick: &Tick) -> Option<Traffic> {
        let out = &mut self.family.at(samples, tick.at_ms);
        out.put("node_network_receive_bytes_total", line.bytes[0]);
        out.put("node_network_transmit_bytes_total", line.bytes[1]);
        if tick.slow {
            let folder = root.join("sys/class/net").join(line.name);
            let of = |kind| ("type", kind);
            out.put_by("node_network_errors_total", of("receive_error"), line.errors[0]);
            out.put_by("node_network_errors_total", of("transmit_error"), line.errors[1]);
            out.put_by("node_network_errors_total", of("receive_drop"), line.drops[0]);
            out.put_by("node_network_errors_total", of("transmit_drop"), line.drops[1]);
            // Reading fails if the interface is administratively down.
            let up = number(&folder.join("carrier")).is_some_and(|carrier| carrier > 0.0);
            out.put("node_network_up", up);
            // -1 or an error if there is no speed, as on a link that is down.
            let speed = number(&folder.join("speed")).filter(|speed| *speed > 0.0);
            self.speed = speed.map(|speed| speed * MEGABIT_BYTES);
            if let Some(speed) = self.speed {
                out.put("node_network_speed_bytes_per_second", speed);
            }
            let info = [("device", line.name), ("kind", self.kind.word())];
            samples.push(&series("node_network_info", &info), tick.at_ms, 1.0);
        }
        let (now, bytes) = (Instant::now(), [line.bytes[1], line.bytes[0]]);
        let before = self.last.replace((now, bytes));
        let speed = self.speed.filter(|_| self.kind == Kind::Physical)?;
        Some(Traffic {
            interface: Some(line.name.to_owned()),
            bytes,
            speed,
            rates: before.and_then(|before| rates(before, now, bytes)),
        })
    }
}

impl Kind {
    fn of(folder: &Path) -> Self {
        let is_vlan =
            || std::fs::read_to_string(folder.join("uevent")).is_ok_and(|text| text.contains("DEVTYPE=vlan"));
        if folder.join("device").exists() {
            match number(&folder.join("type")).unwrap_or(TYPE_ETHERNET) {
                TYPE_INFINIBAND => Self::Ipoib,
                _ => Self::Physical,
            }
        } else if folder.join("bonding").exists() {
            Self::Bond
        } else if is_vlan() {
            Self::Vlan
        } else {
            Self::Virtual
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Ipoib => "ipoib",
            Self::Bond => "bond",
            Self::Vlan => "vlan",
            Self::Virtual => "virtual",
        }
    }
}

/// Adds RDMA traffic to the interfaces it bypasses. A port without an interface counts on its own.
fn together(mut interfaces: Vec<Traffic>, rdma: &[Traffic]) -> Vec<Traffic> {
    for port in rdma {
        let same = |one: &&mut Traffic| port.interface.is_some() && one.interface == port.interface;
        match interfaces.iter_mut().find(same) {
            Some(interface) => interface.add(port),
            None => interfaces.push(port.clone()),
        }
    }
    interfaces
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        let sum = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        self.bytes = sum(self.bytes, other.bytes);
        self.rates = match (self.rates, other.rates) {
            (Some(own), Some(rates)) => Some(sum(own, rates)),
            (own, rates) => own.or(rates),
        };
    }
}

/// Returns the bytes per second in each direction, or `None` if a counter was reset.
pub(super) fn rates((then, before): Reading, now: Instant, counters: [f64; 2]) -> Option<[f64; 2]> {
    let seconds = now.duration_since(then).as_secs_f64();
    let grown = [counters[0] - before[0], counters[1] - before[1]];
    (seconds > 0.0 && grown.iter().all(|bytes| *bytes >= 0.0)).then(|| grown.map(|bytes| bytes / seconds))
}

/// Parses `  eth0: 1234 …`: eight counters of receiving, then eight of sending: bytes, packets, errors, drops, ….
fn parse(line: &str) -> Option<Line<'_>> {
    let (name, counters) = line.split_once(':')?;
    let counters: Vec<f64> = counters
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let pair = |at: usize| Some([*counters.get(at)?, *counters.get(at + 8)?]);
    Some(Line {
        name: name.trim(),
        bytes: pair(0)?,
        errors: pair(2)?,
        drops: pair(3)?,
    })
}
