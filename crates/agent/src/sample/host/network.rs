//! `/proc/net/dev` and `/sys/class/net/*/speed`: each interface, and all physical ones together as the link `eth`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Instant;

use domain::time::TimestampMs;

use super::number;
use crate::sample::Samples;
use crate::sample::series::Family;

/// A node with more interfaces than this runs containers; theirs come and go and are not worth a series each.
const INTERFACES_MAX: usize = 64;

/// The interfaces seen so far.
#[derive(Default)]
pub(super) struct Networks {
    interfaces: HashMap<String, Interface>,
    link: Family,
}

struct Interface {
    family: Family,
    last: Option<(Instant, [f64; 2])>,
}

/// Physical interfaces together.
#[derive(Default)]
struct Sum {
    sent: f64,
    received: f64,
    bandwidth: f64,
    /// The busiest interface's rate against its own speed: a full one is not made up for by an idle one.
    busiest: Option<f64>,
    any: bool,
}

impl Networks {
    pub(super) fn read(&mut self, root: &Path, samples: &Samples, at_ms: TimestampMs) {
        // `/proc/net` is the reader's own network namespace; process 1 is in the host's.
        let dev = super::text(root, "proc/1/net/dev").or_else(|| super::text(root, "proc/net/dev"));
        let Some(dev) = dev else { return };
        let mut sum = Sum::default();
        let mut present = HashSet::new();
        for (name, received, sent) in dev.lines().filter_map(parse) {
            if name == "lo"
                || (self.interfaces.len() >= INTERFACES_MAX && !self.interfaces.contains_key(name))
            {
                continue;
            }
            present.insert(name.to_owned());
            self.read_interface(root, name, [received, sent], &mut sum, samples, at_ms);
        }
        self.forget_absent(&present, samples, at_ms);
        self.put_link(&sum, samples, at_ms);
    }

    fn read_interface(
        &mut self,
        root: &Path,
        name: &str,
        [received, sent]: [f64; 2],
        sum: &mut Sum,
        samples: &Samples,
        at_ms: TimestampMs,
    ) {
        let folder = root.join("sys/class/net").join(name);
        let interface = self
            .interfaces
            .entry(name.to_owned())
            .or_insert_with(|| Interface {
                family: Family::new(vec![("device", name.to_owned())]),
                last: None,
            });
        // Megabits a second; -1 or an error where there is no such thing, as on a link that is down.
        let speed = number(&folder.join("speed"))
            .filter(|speed| *speed > 0.0)
            .map(|speed| speed * 125_000.0);
        let out = &mut interface.family.at(samples, at_ms);
        out.put("node_network_receive_bytes_total", received);
        out.put("node_network_transmit_bytes_total", sent);
        if let Some(speed) = speed {
            out.put("node_network_speed_bytes_per_second", speed);
        }
        let now = Instant::now();
        let before = interface.last.replace((now, [received, sent]));
        let is_physical = folder.join("device").exists();
        if let (true, Some(speed)) = (is_physical, speed) {
            let rate = before.and_then(|before| busier_rate(before, now, [received, sent]));
            sum.add(received, sent, speed, rate);
        }
    }

    fn forget_absent(&mut self, present: &HashSet<String>, samples: &Samples, at_ms: TimestampMs) {
        let gone: Vec<String> = self
            .interfaces
            .keys()
            .filter(|name| !present.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.interfaces.remove(&name);
            let of_network = |metric: Option<&str>| metric.is_some_and(|m| m.starts_with("node_network_"));
            samples.end_where(at_ms, |series| {
                series.get("device") == Some(&name) && of_network(series.metric_name())
            });
        }
    }

    fn put_link(&mut self, sum: &Sum, samples: &Samples, at_ms: TimestampMs) {
        if !sum.any {
            return;
        }
        let eth = ("link", "eth");
        let out = &mut self.link.at(samples, at_ms);
        out.put_by("link_transmit_bytes_total", eth, sum.sent);
        out.put_by("link_receive_bytes_total", eth, sum.received);
        out.put_by("link_bandwidth_bytes_per_second", eth, sum.bandwidth);
        if let Some(busiest) = sum.busiest {
            out.put_by("link_utilization_ratio", eth, busiest);
        }
    }
}

impl Sum {
    fn add(&mut self, received: f64, sent: f64, speed: f64, rate: Option<f64>) {
        self.any = true;
        self.received += received;
        self.sent += sent;
        self.bandwidth += speed;
        if let Some(rate) = rate {
            self.busiest = Some(self.busiest.unwrap_or(0.0).max(rate / speed));
        }
    }
}

/// Bytes a second in the busier direction; `None` where a counter started again.
pub(super) fn busier_rate(
    (then, before): (Instant, [f64; 2]),
    now: Instant,
    counters: [f64; 2],
) -> Option<f64> {
    let seconds = now.duration_since(then).as_secs_f64();
    let grown = [counters[0] - before[0], counters[1] - before[1]];
    (seconds > 0.0 && grown.iter().all(|bytes| *bytes >= 0.0)).then(|| grown[0].max(grown[1]) / seconds)
}

/// `  eth0: 1234 …`: eight counters of receiving, then eight of sending; bytes come first.
fn parse(line: &str) -> Option<(&str, f64, f64)> {
    let (name, counters) = line.split_once(':')?;
    let counters: Vec<f64> = counters
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    Some((name.trim(), *counters.first()?, *counters.get(8)?))
}
