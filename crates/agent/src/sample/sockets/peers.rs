//! The traffic of one run with each peer: an address of another node, over one interface of this node.
//!
//! ```text
//! busy         the busiest connection's share of the time with data that were not acknowledged
//! delivery     acknowledged bytes per second of that time. Connections of one link may be busy together or one after the other, so
//!              the rate is between two bounds: the current one is the upper, the best one the lower. A link is never called slow
//!              because connections began to overlap.
//! ```
//! A peer has series while it has traffic, and a minute longer, so that pauses between steps do not end them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use domain::ident::RunId;
use domain::series::Labels;
use domain::time::TimestampMs;

use super::connections::{Connection, Counters};
use crate::sample::Samples;
use crate::sample::series::{Family, series};

/// The maximum number of peers with series: those with the most traffic. The collectives of a node use few peers, even in large runs.
const PEERS_MAX: usize = 64;
/// The maximum number of peers whose best rates are kept. Later peers are not followed.
const KNOWN_MAX: usize = 1_024;
/// Less traffic than this is that of a store or a heartbeat.
const ACTIVE_BYTES_PER_SECOND: f64 = 16_384.0;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// With a shorter busy time, a rate is inaccurate: the kernel counts times in steps of up to 10 ms.
const BUSY_MIN_S: f64 = 0.1;
/// A best rate needs more than the bytes that fit into buffers on the way.
const BEST_BYTES_MIN: u64 = 1 << 20;
const MICROSECONDS_PER_SECOND: f64 = 1e6;

/// The peers of one run, and what their connections have carried.
#[derive(Debug)]
pub(crate) struct PeerTraffic {
    run: String,
    /// The counters of each connection at the last reading, by inode.
    counters: HashMap<u32, Counters>,
    read_at: Option<Instant>,
    peers: BTreeMap<Link, Peer>,
    /// The series of this node's own addresses.
    addresses: HashMap<IpAddr, Labels>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Link {
    interface: String,
    peer: IpAddr,
}

#[derive(Debug)]
struct Peer {
    family: Family,
    traffic: Traffic,
    /// Bytes in both directions since the peer was first seen.
    total_bytes: u64,
    best: Option<f64>,
    active_at: Option<Instant>,
    is_shown: bool,
}

/// The traffic with one peer between two readings.
#[derive(Debug, Clone, Default)]
struct Traffic {
    sum: Counters,
    /// The busy time of the busiest connection.
    busiest_us: u64,
    /// True if the process limited the busiest connection.
    application_limited: bool,
    unsent_bytes: u64,
    /// This node's address.
    local: Option<IpAddr>,
}

/// Bytes per second while busy: the bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Delivery {
    lowest: f64,
    highest: f64,
}

impl PeerTraffic {
    pub(crate) fn new(run: &RunId) -> Self {
        Self {
            run: run.to_string(),
            counters: HashMap::new(),
            read_at: None,
            peers: BTreeMap::new(),
            addresses: HashMap::new(),
        }
    }

    /// Takes the run's connections at one time. `interfaces` has the interface of each address of this node. From the second call on, it
    /// writes series.
    pub(crate) fn read(
        &mut self,
        connections: &[Connection],
        interfaces: &HashMap<IpAddr, String>,
        now: Instant,
        at_ms: TimestampMs,
        samples: &Samples,
    ) {
        let mut traffic = self.since_last(connections, interfaces);
        let before = self.read_at.replace(now);
        let seconds = before.map_or(0.0, |before| now.duration_since(before).as_secs_f64());
        if seconds <= 0.0 {
            return;
        }
        for link in traffic.keys() {
            if self.peers.len() < KNOWN_MAX && !self.peers.contains_key(link) {
                self.peers.insert(link.clone(), Peer::new(&self.run, link));
            }
        }
        for (link, peer) in &mut self.peers {
            peer.take(traffic.remove(link).unwrap_or_default(), now, seconds);
        }
        self.write(seconds, now, at_ms, samples);
    }

    /// Returns the growth of the counters by link. A connection that is new, or is not to another node, does not count.
    fn since_last(
        &mut self,
        connections: &[Connection],
        interfaces: &HashMap<IpAddr, String>,
    ) -> HashMap<Link, Traffic> {
        let mut found: HashMap<Link, Traffic> = HashMap::new();
        let mut counters = HashMap::with_capacity(connections.len());
        for connection in connections {
            let is_here = connection.peer.is_loopback() || interfaces.contains_key(&connection.peer);
            let Some(interface) = interfaces.get(&connection.local).filter(|_| !is_here) else {
                continue;
            };
            counters.insert(connection.inode, connection.counters);
            let before = self.counters.get(&connection.inode);
            if let Some(grown) = before.and_then(|before| connection.counters.since(before)) {
                let link = Link {
                    interface: interface.clone(),
                    peer: connection.peer,
                };
                found.entry(link).or_default().add(connection, &grown);
            }
        }
        self.counters = counters;
        found
    }

    /// Writes the active peers with the most traffic, and ends the series of the others.
    fn write(&mut self, seconds: f64, now: Instant, at_ms: TimestampMs, samples: &Samples) {
        let mut peers: Vec<(&Link, &mut Peer)> = self.peers.iter_mut().collect();
        peers.sort_by_key(|(_, peer)| (!peer.is_active(now), Reverse(peer.total_bytes)));
        let mut used: HashMap<IpAddr, String> = HashMap::new();
        for (place, (link, peer)) in peers.into_iter().enumerate() {
            if place < PEERS_MAX && peer.is_active(now) {
                peer.write(seconds, at_ms, samples);
                used.extend(peer.traffic.local.map(|local| (local, link.interface.clone())));
            } else if peer.is_shown {
                peer.is_shown = false;
                end(&self.run, link, at_ms, samples);
            }
        }
        self.write_addresses(&used, at_ms, samples);
    }

    /// Writes this node's addresses, by which the other nodes of the run name it.
    fn write_addresses(&mut self, used: &HashMap<IpAddr, String>, at_ms: TimestampMs, samples: &Samples) {
        for (address, interface) in used {
            let new = || {
                let address = address.to_string();
                let labels = [
                    ("run", self.run.as_str()),
                    ("interface", interface.as_str()),
                    ("address", address.as_str()),
                ];
                series("run_address_info", &labels)
            };
            self.addresses.entry(*address).or_insert_with(new);
        }
        let is_any_shown = self.peers.values().any(|peer| peer.is_shown);
        self.addresses.retain(|_, labels| {
            if is_any_shown {
                samples.push(labels, at_ms, 1.0);
            } else {
                samples.end(labels, at_ms);
            }
            is_any_shown
        });
    }
}

fn end(run: &str, link: &Link, at_ms: TimestampMs, samples: &Samples) {
    let peer = link.peer.to_string();
    samples.end_where(at_ms, |series| {
        series.get("peer") == Some(&peer)
            && series.get("interface") == Some(&link.interface)
            && series.get("run") == Some(run)
    });
}

impl Peer {
    fn new(run: &str, link: &Link) -> Self {
        let labels = vec![
            ("run", run.to_owned()),
            ("interface", link.interface.clone()),
            ("peer", link.peer.to_string()),
        ];
        Self {
            family: Family::new(labels),
            traffic: Traffic::default(),
            total_bytes: 0,
            best: None,
            active_at: None,
            is_shown: false,
        }
    }

    fn is_active(&self, now: Instant) -> bool {
        self.active_at.is_some_and(|at| now.duration_since(at) < KEPT_FOR)
    }

    fn take(&mut self, traffic: Traffic, now: Instant, seconds: f64) {
        let bytes = traffic.sum.acknowledged_bytes + traffic.sum.received_bytes;
        self.total_bytes += bytes;
        if bytes as f64 >= ACTIVE_BYTES_PER_SECOND * seconds {
            self.active_at = Some(now);
        }
        if let Some(delivery) = traffic.delivery(seconds)
            && traffic.sum.acknowledged_bytes >= BEST_BYTES_MIN
        {
            self.best = Some(
                self.best
                    .map_or(delivery.lowest, |best| best.max(delivery.lowest)),
            );
        }
        self.traffic = traffic;
    }

    fn write(&mut self, seconds: f64, at_ms: TimestampMs, samples: &Samples) {
        self.is_shown = true;
        let traffic = &self.traffic;
        let per_second = |count: u64| count as f64 / seconds;
        let out = &mut self.family.at(samples, at_ms);
        out.put(
            "run_peer_transmit_bytes_per_second",
            per_second(traffic.sum.acknowledged_bytes),
        );
        out.put(
            "run_peer_receive_bytes_per_second",
            per_second(traffic.sum.received_bytes),
        );
        out.put(
            "run_peer_retransmits_per_second",
            per_second(traffic.sum.retransmits),
        );
        out.put("run_peer_busy_ratio", (traffic.busiest_s() / seconds).min(1.0));
        out.put("run_peer_unsent_bytes", traffic.unsent_bytes as f64);
        out.put("run_peer_application_limited", traffic.application_limited);
        if let Some(delivery) = traffic.delivery(seconds) {
            out.put("run_peer_delivery_bytes_per_second", delivery.highest);
        }
        if let Some(best) = self.best {
            out.put("run_peer_delivery_bytes_per_second_best", best);
        }
    }
}

impl Traffic {
    fn add(&mut self, connection: &Connection, grown: &Counters) {
        self.sum.acknowledged_bytes += grown.acknowledged_bytes;
        self.sum.received_bytes += grown.received_bytes;
        self.sum.retransmits += grown.retransmits;
        self.sum.busy_us += grown.busy_us;
        if grown.busy_us >= self.busiest_us {
            self.busiest_us = grown.busy_us;
            self.application_limited = connection.application_limited;
        }
        self.unsent_bytes += u64::from(connection.unsent_bytes);
        self.local = Some(connection.local);
    }

    fn busiest_s(&self) -> f64 {
        self.busiest_us as f64 / MICROSECONDS_PER_SECOND
    }

    /// Returns the rate while busy, or `None` if the link was busy for too short a time.
    fn delivery(&self, seconds: f64) -> Option<Delivery> {
        let busiest_s = self.busiest_s();
        if busiest_s < BUSY_MIN_S {
            return None;
        }
        let one_after_other_s = self.sum.busy_us as f64 / MICROSECONDS_PER_SECOND;
        let bytes = self.sum.acknowledged_bytes as f64;
        Some(Delivery {
            lowest: bytes / one_after_other_s.min(seconds).max(busiest_s),
            highest: bytes / busiest_s,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::super::connections::tests::connection;
    use super::*;

    const MEGABYTE: u64 = 1_000_000;

    /// Readings of one run, one per second unless said otherwise.
    struct Readings {
        traffic: PeerTraffic,
        samples: Samples,
        begun: Instant,
        at_ms: TimestampMs,
        interfaces: HashMap<IpAddr, String>,
    }

    impl Readings {
        fn new() -> Self {
            let address = |text: &str, interface: &str| {
                let address: IpAddr = text.parse().unwrap();
                (address, interface.to_owned())
            };
            Self {
                traffic: PeerTraffic::new(&RunId::new("r").unwrap()),
                samples: Samples::new(),
                begun: Instant::now(),
                at_ms: 0,
                interfaces: HashMap::from([address("10.0.0.1", "eth0"), address("10.1.0.1", "eth1")]),
            }
        }

        fn read(&mut self, seconds: i64, connections: &[Connection]) {
            self.at_ms += seconds * 1_000;
            let now = self.begun + Duration::from_millis(self.at_ms.unsigned_abs());
            let (traffic, interfaces) = (&mut self.traffic, &self.interfaces);
            traffic.read(connections, interfaces, now, self.at_ms, &self.samples);
        }

        /// Returns the value of the only series with this name.
        fn value(&self, metric: &str) -> Option<f64> {
            let of_metric = self.samples.latest().into_iter();
            let mut of_metric = of_metric.filter(|sample| sample.series.metric_name() == Some(metric));
            let only = of_metric.next().map(|sample| sample.value);
            assert!(of_metric.next().is_none(), "{metric}");
            only
        }

        fn names(&self, metric: &str) -> Vec<String> {
            let mut names: Vec<String> = self
                .samples
                .latest()
                .iter()
                .filter(|sample| sample.series.metric_name() == Some(metric))
                .map(|sample| sample.series.to_string())
                .collect();
            names.sort();
            names
        }
    }

    /// A connection from eth0 to 10.0.0.2 that has delivered this much and was busy for this long.
    fn sent(inode: u32, bytes: u64, busy_ms: u64) -> Connection {
        Connection {
            counters: Counters {
                acknowledged_bytes: bytes,
                busy_us: busy_ms * 1_000,
                ..Counters::default()
            },
            ..connection(inode, "10.0.0.1", "10.0.0.2")
        }
    }

    #[test]
    fn a_link_that_becomes_slow_is_busy_and_keeps_its_best_rate() {
        let mut readings = Readings::new();
        readings.read(10, &[sent(7, 0, 0)]);
        assert!(readings.samples.latest().is_empty(), "nothing to compare with");
        readings.read(10, &[sent(7, 110 * MEGABYTE, 1_000)]);
        assert_eq!(readings.value("run_peer_transmit_bytes_per_second"), Some(11e6));
        assert_eq!(readings.value("run_peer_busy_ratio"), Some(0.1));
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second"), Some(110e6));
        let slow = Connection {
            unsent_bytes: 400_000,
            ..sent(7, 112 * MEGABYTE, 2_000)
        };
        readings.read(1, &[slow]);
        assert_eq!(readings.value("run_peer_busy_ratio"), Some(1.0));
        assert_eq!(readings.value("run_peer_unsent_bytes"), Some(400_000.0));
        assert_eq!(readings.value("run_peer_application_limited"), Some(0.0));
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second"), Some(2e6));
        assert_eq!(
            readings.names("run_peer_delivery_bytes_per_second_best"),
            [r#"run_peer_delivery_bytes_per_second_best{interface="eth0", peer="10.0.0.2", run="r"}"#]
        );
        assert_eq!(
            readings.value("run_peer_delivery_bytes_per_second_best"),
            Some(110e6)
        );
        assert_eq!(
            readings.names("run_address_info"),
            [r#"run_address_info{address="10.0.0.1", interface="eth0", run="r"}"#]
        );
    }

    #[test]
    fn connections_that_begin_to_overlap_are_no_slower_link() {
        let mut readings = Readings::new();
        readings.read(1, &[sent(7, 0, 0), sent(8, 0, 0)]);
        // One after the other, each with the whole link: 100 MB/s.
        readings.read(1, &[sent(7, 40 * MEGABYTE, 400), sent(8, 40 * MEGABYTE, 400)]);
        let best = readings.value("run_peer_delivery_bytes_per_second_best");
        assert_eq!(best, Some(100e6));
        // Together, each with half of it.
        readings.read(1, &[sent(7, 80 * MEGABYTE, 1_200), sent(8, 80 * MEGABYTE, 1_200)]);
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second"), Some(100e6));
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second_best"), best);
    }

    #[test]
    fn a_sender_that_waits_for_its_process_or_is_hardly_busy_says_so() {
        let mut readings = Readings::new();
        let late = |bytes, busy_ms| Connection {
            application_limited: true,
            ..sent(7, bytes, busy_ms)
        };
        readings.read(1, &[late(0, 0)]);
        readings.read(1, &[late(MEGABYTE, 20)]);
        assert_eq!(readings.value("run_peer_application_limited"), Some(1.0));
        assert_eq!(readings.value("run_peer_busy_ratio"), Some(0.02));
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second"), None);
        assert_eq!(readings.value("run_peer_delivery_bytes_per_second_best"), None);
    }

    #[test]
    fn ranks_of_this_node_stores_and_reused_inodes_have_no_series() {
        let mut readings = Readings::new();
        let local = |bytes| Connection {
            inode: 1,
            peer: "10.1.0.1".parse().unwrap(),
            ..sent(1, bytes, 500)
        };
        let store = |bytes| Connection {
            peer: "10.0.0.3".parse().unwrap(),
            ..sent(2, bytes, 500)
        };
        readings.read(1, &[local(0), store(0), sent(3, 9 * MEGABYTE, 900)]);
        readings.read(1, &[local(9 * MEGABYTE), store(900), sent(3, 5 * MEGABYTE, 500)]);
        assert!(readings.samples.latest().is_empty(), "{:?}", readings.samples);
    }

    #[test]
    fn a_pause_ends_no_series_and_a_minute_without_traffic_does() {
        let mut readings = Readings::new();
        readings.read(10, &[sent(7, 0, 0)]);
        let idle = sent(7, 110 * MEGABYTE, 1_000);
        readings.read(10, std::slice::from_ref(&idle));
        for _ in 0..5 {
            readings.read(10, std::slice::from_ref(&idle));
        }
        assert_eq!(readings.value("run_peer_busy_ratio"), Some(0.0));
        assert!(readings.value("run_address_info").is_some());
        readings.read(10, std::slice::from_ref(&idle));
        assert!(readings.samples.latest().is_empty());
        readings.read(10, &[sent(7, 120 * MEGABYTE, 1_500)]);
        assert_eq!(
            readings.value("run_peer_delivery_bytes_per_second_best"),
            Some(110e6),
            "the best of the attempt is still known"
        );
    }

    #[test]
    fn only_the_peers_with_the_most_traffic_have_series() {
        let mut readings = Readings::new();
        let all = |scale: u64| -> Vec<Connection> {
            let to = |n: u8| Connection {
                peer: IpAddr::from([10, 0, 1, n]),
                ..sent(n.into(), u64::from(n) * scale, 10)
            };
            (1..=100).map(to).collect()
        };
        readings.read(1, &all(0));
        readings.read(1, &all(MEGABYTE));
        let names = readings.names("run_peer_busy_ratio");
        assert_eq!(names.len(), PEERS_MAX);
        assert!(
            names.iter().all(|name| !name.contains(r#""10.0.1.36""#)),
            "{names:?}"
        );
        assert!(
            names.iter().any(|name| name.contains(r#""10.0.1.37""#)),
            "{names:?}"
        );
    }
}
