//! Generates `grafana/*.json`: one panel for each metric in the list. Title, unit, query and description come from the catalogue.

use domain::metric::{Kind, Metric, Unit, find};
use serde_json::{Value, json};

use super::schema::mistakes;

/// A dashboard.
struct Dashboard {
    /// File name in `grafana/`, without extension.
    file: &'static str,
    title: &'static str,
    about: About,
    /// Titles of rows, and the metrics of each row.
    rows: &'static [(&'static str, &'static [&'static str])],
}

/// Subject of a dashboard. It determines which series are one line of a chart.
#[derive(Clone, Copy, PartialEq)]
enum About {
    /// All nodes: one line per node and kind.
    Cluster,
    /// The selected nodes: every series.
    Node,
    /// The selected runs: every series.
    Run,
}

/// Labels that name a kind. Other labels distinguish objects of the same kind.
const KINDS: [&str; 5] = ["link", "reason", "state", "type", "xid"];
/// Width of a panel in Grafana's 24 columns, and height in rows.
const PANEL: (usize, usize) = (8, 8);

const DASHBOARDS: [Dashboard; 3] = [
    Dashboard {
        file: "cluster",
        title: "Lockstep / Cluster",
        about: About::Cluster,
        rows: &[
            (
                "Health",
                &[
                    "node_up",
                    "gpu_up",
                    "run_ranks",
                    "gpu_throttle",
                    "gpu_xid_errors_total",
                    "gpu_ecc_errors_total",
                ],
            ),
            (
                "Use",
                &[
                    "gpu_utilization_ratio",
                    "gpu_sm_active_ratio",
                    "gpu_tensor_active_ratio",
                    "gpu_memory_used_bytes",
                    "gpu_power_watts",
                    "gpu_temperature_celsius",
                ],
            ),
            (
                "Links and hosts",
                &[
                    "link_utilization_ratio",
                    "link_transmit_bytes_total",
                    "node_network_transmit_bytes_total",
                    "node_load1",
                    "node_memory_available_bytes",
                    "node_disk_written_bytes_total",
                ],
            ),
        ],
    },
    Dashboard {
        file: "node",
        title: "Lockstep / Node",
        about: About::Node,
        rows: &[
            (
                "GPU use",
                &[
                    "gpu_utilization_ratio",
                    "gpu_sm_active_ratio",
                    "gpu_sm_occupancy_ratio",
                    "gpu_tensor_active_ratio",
                    "gpu_dram_active_ratio",
                    "gpu_memory_used_bytes",
                ],
            ),
            (
                "Clocks, power and heat",
                &[
                    "gpu_sm_clock_hertz",
                    "gpu_power_watts",
                    "gpu_power_limit_watts",
                    "gpu_temperature_celsius",
                    "gpu_memory_temperature_celsius",
                    "gpu_throttle_seconds_total",
                ],
            ),
            (
                "Faults",
                &[
                    "gpu_up",
                    "gpu_xid_errors_total",
                    "gpu_ecc_errors_total",
                    "gpu_remapped_rows",
                    "gpu_pcie_replays_total",
                    "gpu_nvlink_errors_total",
                ],
            ),
            (
                "Links",
                &[
                    "link_utilization_ratio",
                    "link_transmit_bytes_total",
                    "link_receive_bytes_total",
                    "rdma_port_transmit_bytes_total",
                    "rdma_port_receive_bytes_total",
                    "rdma_port_errors_total",
                ],
            ),
            (
                "Host",
                &[
                    "node_cpu_seconds_total",
                    "node_load1",
                    "node_memory_available_bytes",
                    "node_filesystem_available_bytes",
                    "node_disk_io_seconds_total",
                    "node_network_transmit_bytes_total",
                    "node_network_receive_bytes_total",
                    "node_network_errors_total",
                    "node_swap_used_bytes",
                ],
            ),
            (
                "Agent",
                &[
                    "lockstep_agent_cpu_seconds_total",
                    "lockstep_agent_memory_bytes",
                    "lockstep_agent_spool_bytes",
                    "lockstep_agent_clock_offset_seconds",
                    "lockstep_agent_nvml_call_p99_seconds",
                    "lockstep_agent_series",
                ],
            ),
        ],
    },
    Dashboard {
        file: "run",
        title: "Lockstep / Run",
        about: About::Run,
        rows: &[
            (
                "Learning",
                &[
                    "train_loss",
                    "train_grad_norm",
                    "train_step",
                    "train_nonfinite_steps_total",
                    "train_skipped_steps_total",
                    "train_samples_per_second",
                ],
            ),
            (
                "A step's time",
                &[
                    "train_step_seconds",
                    "train_data_seconds",
                    "train_forward_seconds",
                    "train_backward_seconds",
                    "train_sync_seconds",
                    "train_optimizer_seconds",
                    "train_compute_ratio",
                    "train_last_step_age_seconds",
                    "train_save_seconds",
                ],
            ),
            (
                "Memory",
                &[
                    "train_memory_allocated_bytes",
                    "train_memory_reserved_bytes",
                    "train_memory_alloc_retries_total",
                ],
            ),
            (
                "Collectives",
                &[
                    "nccl_collective_seconds",
                    "nccl_bus_bandwidth_bytes_per_second",
                    "nccl_arrival_lateness_seconds",
                ],
            ),
            (
                "Checkpoints and ends",
                &[
                    "run_checkpoint_age_seconds",
                    "run_checkpoint_interval_seconds",
                    "run_checkpoint_free_bytes",
                    "run_checkpoint_bytes",
                    "run_ranks",
                    "run_stalled",
                ],
            ),
        ],
    },
];

#[test]
fn dashboards_are_made_from_the_catalogue() {
    for dashboard in &DASHBOARDS {
        let text = serde_json::to_string_pretty(&dashboard.model()).unwrap();
        super::keep(&format!("grafana/{}.json", dashboard.file), &(text + "\n"));
    }
}

#[test]
fn dashboards_follow_the_schema() {
    let schema: Value = serde_json::from_str(&super::read("grafana/dashboard.schema.json")).unwrap();
    for dashboard in &DASHBOARDS {
        let found = mistakes(&schema, &dashboard.model());
        assert!(found.is_empty(), "{}: {found:#?}", dashboard.file);
    }
}

impl Dashboard {
    fn model(&self) -> Value {
        json!({
            "id": null,
            "uid": format!("lockstep-{}", self.file),
            "title": self.title,
            "description": "Written by `cargo xtask generate` from Lockstep's metric catalogue.",
            "tags": ["lockstep"],
            "timezone": "browser",
            "schemaVersion": 39,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": { "from": "now-1h", "to": "now" },
            "templating": { "list": self.variables() },
            "panels": self.panels(),
        })
    }

    fn variables(&self) -> Vec<Value> {
        let source = json!({ "name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus" });
        let of = |label: &str, title: &str, metric: &str| {
            json!({
                "name": label,
                "type": "query",
                "label": title,
                "datasource": datasource(),
                "query": format!("label_values({metric}, {label})"),
                "includeAll": true,
                "multi": true,
                "allValue": ".+",
                "refresh": 2,
                "sort": 1,
            })
        };
        match self.about {
            About::Cluster => vec![source],
            About::Node => vec![source, of("node", "Node", "node_up")],
            About::Run => vec![source, of("run", "Run", "train_step")],
        }
    }

    fn panels(&self) -> Vec<Value> {
        let (width, height) = PANEL;
        let (mut panels, mut y) = (Vec::new(), 0);
        for (title, metrics) in self.rows {
            let place = json!({ "x": 0, "y": y, "w": 24, "h": 1 });
            panels.push(json!({ "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false, "gridPos": place, "panels": [] }));
            for (n, name) in metrics.iter().enumerate() {
                let (x, y) = (n % (24 / width) * width, y + 1 + n / (24 / width) * height);
                let place = json!({ "x": x, "y": y, "w": width, "h": height });
                let metric = find(name).unwrap_or_else(|| panic!("{name} is not in the catalogue"));
                panels.push(self.panel(panels.len() + 1, &place, metric));
            }
            y += 1 + metrics.len().div_ceil(24 / width) * height;
        }
        panels
    }

    fn panel(&self, id: usize, place: &Value, metric: &Metric) -> Value {
        let by = self.lines(metric);
        let legend: Vec<String> = by.iter().map(|label| format!("{{{{{label}}}}}")).collect();
        json!({
            "id": id,
            "type": "timeseries",
            "title": title(metric),
            "description": metric.help,
            "datasource": datasource(),
            "gridPos": place,
            "fieldConfig": { "defaults": { "unit": unit(metric), "min": lowest(metric) }, "overrides": [] },
            "targets": [{
                "refId": "A",
                "datasource": datasource(),
                "expr": self.query(metric, &by),
                "legendFormat": legend.join(" "),
            }],
        })
    }

    /// Returns the labels that distinguish the lines of a chart.
    fn lines(&self, metric: &Metric) -> Vec<&'static str> {
        let is_kept = |label: &&&str| self.about != About::Cluster || KINDS.contains(label);
        let own = metric.labels.iter().filter(is_kept);
        std::iter::once("node").chain(own.copied()).collect()
    }

    fn query(&self, metric: &Metric, by: &[&str]) -> String {
        let chosen = match self.about {
            About::Cluster => "",
            About::Node => "{node=~\"$node\"}",
            About::Run => "{run=~\"$run\"}",
        };
        let series = format!("{}{chosen}", metric.name);
        let value = match (metric.kind, metric.unit) {
            (Kind::Gauge, _) => series,
            (Kind::Counter, Unit::Count) => format!("increase({series}[$__rate_interval])"),
            (Kind::Counter, _) => format!("rate({series}[$__rate_interval])"),
        };
        // Prometheus may have a series twice: from the collector and from the agent.
        let all = match (self.about, metric.unit) {
            (About::Node | About::Run, _) | (_, Unit::Celsius | Unit::Code) => "max",
            (_, Unit::Ratio) => "avg",
            _ => "sum",
        };
        format!("{all} by ({}) ({value})", by.join(", "))
    }
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// Returns the title of a panel: the metric's name without its unit, such as `GPU SM active` for `gpu_sm_active_ratio`.
fn title(metric: &Metric) -> String {
    let bare = metric.name.trim_end_matches("_total");
    let unit = metric.unit.suffix().filter(|_| metric.unit != Unit::PerSecond);
    let bare = unit.and_then(|unit| bare.strip_suffix(unit)).unwrap_or(bare);
    let mut words: Vec<&str> = bare
        .split('_')
        .map(word)
        .filter(|word| !word.is_empty())
        .collect();
    match (metric.kind, metric.unit) {
        (Kind::Gauge, Unit::Seconds) if !matches!(words.last(), Some(&("age" | "offset"))) => {
            words.push("time")
        }
        (Kind::Counter, Unit::Seconds) => words.push("time per second"),
        (Kind::Counter, Unit::Bytes) => words.push("rate"),
        _ => {}
    }
    let text = words.join(" ");
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

fn word(word: &str) -> &str {
    match word {
        "gpu" => "GPU",
        "lockstep" => "",
        "sm" => "SM",
        "cpu" => "CPU",
        "dram" => "DRAM",
        "ecc" => "ECC",
        "nccl" => "NCCL",
        "nvlink" => "NVLink",
        "nvml" => "NVML",
        "pcie" => "PCIe",
        "rdma" => "RDMA",
        "io" => "I/O",
        "xid" => "Xid",
        "load1" => "load of 1 min",
        "p99" => "99th percentile",
        other => other,
    }
}

/// Returns Grafana's name of the unit. For a counter it is the unit of its rate.
fn unit(metric: &Metric) -> &'static str {
    let is_rate = metric.kind == Kind::Counter;
    match metric.unit {
        Unit::Bytes if is_rate => "binBps",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "binBps",
        Unit::Seconds if is_rate => "percentunit",
        Unit::Seconds => "s",
        Unit::Ratio => "percentunit",
        Unit::Joules if is_rate => "watt",
        Unit::Joules => "joule",
        Unit::Watts => "watt",
        Unit::Hertz => "hertz",
        Unit::Celsius => "celsius",
        Unit::PerSecond | Unit::Count | Unit::Code | Unit::Flag | Unit::Info => "short",
        Unit::Number => "none",
    }
}

/// Returns the lower bound of the axis. `None`: the lowest value.
fn lowest(metric: &Metric) -> Option<u8> {
    (!matches!(
        metric.unit,
        Unit::Number | Unit::Celsius | Unit::Hertz | Unit::Seconds
    ))
    .then_some(0)
}
