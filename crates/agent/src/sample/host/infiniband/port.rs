//! One RDMA port: its properties, its state and its counters.

use std::path::{Path, PathBuf};
use std::time::Instant;

use domain::series::Labels;
use domain::time::TimestampMs;

use super::counters::{self, Broken, Counter, Meaning};
use crate::sample::Samples;
use crate::sample::host::network::{Reading, Traffic, rates};
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, series};

/// Bytes per second in one gigabit per second, the unit of `rate` (`400 Gb/sec (4X NDR)`).
const GIGABIT_BYTES: f64 = 125e6;

/// What carries a port's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Its own fabric: InfiniBand, Omni-Path, or a cloud provider's.
    Fabric,
    /// Ethernet.
    Ethernet,
}

/// An RDMA port.
pub(super) struct Port {
    path: PathBuf,
    device: String,
    number: String,
    pub(super) layer: Layer,
    /// The network interface of the same card.
    interface: Option<String>,
    info: Labels,
    family: Family,
    active: bool,
    /// The capacity in one direction, in bytes per second.
    speed: f64,
    counters: Vec<Counter>,
    /// The bytes sent and received at the last reading. They are kept while the port is down, because a decreasing sum looks like a
    /// restart.
    last: Option<Reading>,
    rates: Option<[f64; 2]>,
}

impl Port {
    /// Creates a port that has not been read.
    pub(super) fn new(path: &Path) -> Self {
        let name = |path: Option<&Path>| {
            path.and_then(Path::file_name)
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let device_folder = path.parent().and_then(Path::parent);
        let (device, number) = (name(device_folder), name(Some(path)));
        let layer = match word(path, "link_layer").as_deref() {
            Some("Ethernet") => Layer::Ethernet,
            _ => Layer::Fabric,
        };
        let interface = device_folder.and_then(|folder| first_entry(&folder.join("device/net")));
        let labels = [
            ("device", device.as_str()),
            ("port", number.as_str()),
            (
                "layer",
                if layer == Layer::Ethernet {
                    "ethernet"
                } else {
                    "fabric"
                },
            ),
            ("interface", interface.as_deref().unwrap_or_default()),
        ];
        Self {
            info: series("rdma_port_info", &labels),
            family: Family::new(vec![("device", device.clone()), ("port", number.clone())]),
            path: path.to_owned(),
            device,
            number,
            layer,
            interface,
            active: false,
            speed: 0.0,
            counters: Vec::new(),
            last: None,
            rates: None,
        }
    }

    /// Finds the counters of the port.
    pub(super) fn find_counters(&mut self) {
        if self.counters.is_empty() {
            self.counters = counters::of_port(&self.path);
        }
    }

    /// Reads what is due.
    pub(super) fn read(&mut self, broken: &mut Broken, samples: &Samples, tick: &Tick) {
        if tick.slow {
            self.read_state(samples, tick.at_ms);
        }
        let (mut bytes, mut any) = ([0.0, 0.0], false);
        let out = &mut self.family.at(samples, tick.at_ms);
        for counter in &mut self.counters {
            let due = if matches!(counter.meaning, Meaning::Error(_)) {
                tick.slow
            } else {
                self.active
            };
            let Some(value) = due.then(|| counter.read(broken)).flatten() else {
                continue;
            };
            match counter.meaning {
                Meaning::Sent(unit) => (bytes[0], any) = (bytes[0] + value * unit, true),
                Meaning::Received(unit) => (bytes[1], any) = (bytes[1] + value * unit, true),
                Meaning::Wait => out.put("rdma_port_transmit_wait_total", value),
                Meaning::Congestion(kind) => out.put_by("rdma_port_congestion_total", ("type", kind), value),
                Meaning::Error(kind) => out.put_by("rdma_port_errors_total", ("type", kind), value),
            }
        }
        self.rates = None;
        if any {
            out.put("rdma_port_transmit_bytes_total", bytes[0]);
            out.put("rdma_port_receive_bytes_total", bytes[1]);
            let now = Instant::now();
            self.rates = self
                .last
                .replace((now, bytes))
                .and_then(|before| rates(before, now, bytes));
        }
    }

    fn read_state(&mut self, samples: &Samples, at_ms: TimestampMs) {
        self.active = word(&self.path, "state").is_some_and(|state| state.contains("ACTIVE"));
        self.speed = word(&self.path, "rate")
            .and_then(|rate| speed(&rate))
            .unwrap_or(0.0);
        samples.push(&self.info, at_ms, 1.0);
        let out = &mut self.family.at(samples, at_ms);
        out.put("rdma_port_up", self.active);
        if self.speed > 0.0 {
            out.put("rdma_port_bandwidth_bytes_per_second", self.speed);
        }
    }

    /// Returns the traffic of the port. Returns `None` if its bytes or its capacity are not known.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        let (_, bytes) = self.last?;
        (self.speed > 0.0).then(|| Traffic {
            interface: self.interface.clone(),
            bytes,
            speed: self.speed,
            rates: self.rates,
        })
    }

    /// Ends the series of a port that is gone.
    pub(super) fn end(&self, samples: &Samples, at_ms: TimestampMs) {
        samples.end_where(at_ms, |series| {
            series
                .metric_name()
                .is_some_and(|name| name.starts_with("rdma_port_"))
                && series.get("device") == Some(self.device.as_str())
                && series.get("port") == Some(self.number.as_str())
        });
    }
}

fn word(port: &Path, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(port.join(file)).ok()?;
    Some(text.trim().to_owned())
}

fn first_entry(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .min()
}

fn speed(rate: &str) -> Option<f64> {
    let gigabits: f64 = rate.split_ascii_whitespace().next()?.parse().ok()?;
    (gigabits > 0.0).then_some(gigabits * GIGABIT_BYTES)
}
