//! The Grafana dashboards: every panel's query gives the same series here and in a Prometheus that scrapes Lockstep.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::prometheus::Prometheus;

/// Panels without a series here: there is no Xid error, the machine has no RDMA, ranks on CPUs have neither a gradient scaler nor CUDA
/// memory nor NCCL, and no run saves checkpoints or stalls.
const EMPTY: [&str; 18] = [
    "cluster: GPU Xid errors",
    "node: GPU Xid errors",
    "node: RDMA port transmit rate",
    "node: RDMA port receive rate",
    "node: RDMA port errors",
    "run: Train skipped steps",
    "run: Train save time",
    "run: Train memory allocated",
    "run: Train memory reserved",
    "run: Train memory alloc retries",
    "run: NCCL collective time",
    "run: NCCL bus bandwidth",
    "run: NCCL arrival lateness time",
    "run: Run checkpoint age",
    "run: Run checkpoint interval time",
    "run: Run checkpoint free",
    "run: Run checkpoint",
    "run: Run stalled",
];

/// Returns the title and the query of every panel, with the values that Grafana inserts for its variables.
fn panels() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../grafana");
    let mut found = Vec::new();
    for name in ["cluster", "node", "run"] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        for panel in panels.filter(|panel| panel["type"] != "row") {
            let query = panel["targets"][0]["expr"].as_str().unwrap();
            let query = query
                .replace("$__rate_interval", "1m")
                .replace("$node", ".+")
                .replace("$run", ".+");
            assert!(!query.contains('$'), "{query}");
            found.push((format!("{name}: {}", panel["title"].as_str().unwrap()), query));
        }
    }
    found
}

/// Returns the label sets of a response; `None` if it is an error.
fn series(answer: &Value) -> Option<BTreeSet<String>> {
    let result = answer["data"]["result"].as_array()?;
    (answer["status"] == "success").then(|| result.iter().map(|one| one["metric"].to_string()).collect())
}

#[test]
fn every_panel_has_the_same_series_here_and_in_prometheus() {
    let cluster = Cluster::start();
    let run = cluster.submit_small(&["steps=1000000", "step_delay_ms=50"]);
    cluster.wait_for_step(&run, 20.0);
    let prometheus = Prometheus::scraping(&cluster);
    let mut empty = Vec::new();
    for (title, query) in panels() {
        let mut last = (Value::Null, Value::Null);
        let same = cluster.poll_for(|| {
            last = (
                cluster.query_answer(&[("query", &query)]),
                prometheus.answer(&query),
            );
            let (here, there) = (series(&last.0)?, series(&last.1)?);
            (here == there).then_some(here)
        });
        let same = same.unwrap_or_else(|| panic!("{title}: {query}: {} is not {}", last.0, last.1));
        if same.is_empty() {
            empty.push(title);
        }
    }
    assert_eq!(empty, EMPTY);
}
