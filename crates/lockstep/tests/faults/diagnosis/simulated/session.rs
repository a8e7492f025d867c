//! A collector, and a simulated cluster that has joined it. Both end when this is dropped.

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sim_cluster::{Cluster, FaultBegun, Scenario};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fleet::{self, wait};
use crate::product::api::Api;
use crate::product::environment::program;
use crate::product::process::spawn_collector;

/// The maximum number of faults whose beginning was not read yet: those of a few seconds.
const FAULTS_MAX: usize = 1_024;
/// How long 128 nodes may take to join on two busy cores.
const JOINED_WITHIN: Duration = Duration::from_secs(120);

/// A collector with simulated nodes.
pub(super) struct Session {
    pub(super) api: Api,
    collector: Child,
    faults: mpsc::Receiver<FaultBegun>,
    _nodes: JoinSet<Result<()>>,
    runtime: Runtime,
    // Last, because the collector uses it.
    folder: TempDir,
}

impl Session {
    /// Starts the ordinary collector and joins the nodes. Runs with the names of the scenarios play them.
    pub(super) fn start(nodes: u32, has_gpus: bool, scenarios: Vec<Scenario>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let command = fleet::collector(&program(), folder.path(), "127.0.0.1:0");
        let (collector, url) = spawn_collector(command);
        let api = Api::new(url, &folder.path().join("collector"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (begun, faults) = mpsc::channel(FAULTS_MAX);
        let mut session = Self {
            api,
            collector,
            faults,
            _nodes: JoinSet::new(),
            runtime,
            folder,
        };
        let join = session.api.post("/api/tokens/join", &json!({}));
        let join = join["token"].as_str().context("the collector gives no token")?;
        let cluster = Cluster {
            url: session.api.url.clone(),
            join: join.to_owned(),
            nodes,
            has_gpus,
            prefix: "sim",
            simulated: "lab".to_owned(),
            scenarios,
            faults: Some(begun),
        };
        session._nodes = session.runtime.block_on(sim_cluster::start(&cluster))?;
        wait("every simulated node to be connected", JOINED_WITHIN, || {
            let all = session.api.get("/api/nodes");
            let up = all.as_array().into_iter().flatten();
            up.filter(|node| node["state"] == "up").count() >= nodes as usize
        })?;
        Ok(session)
    }

    /// Submits a run that plays the scenario with its name. Returns its id.
    pub(super) fn submit(&self, scenario: &Scenario, (nodes, ranks_per_node): (u32, u32)) -> Result<String> {
        let backend = match scenario.waits {
            sim_cluster::WaitPath::Gloo => "gloo",
            _ => "nccl",
        };
        let submitted = self.api.post(
            "/api/runs",
            &json!({
                "name": scenario.name,
                "recipe": scenario.workload.recipe,
                "backend": backend,
                "nodes": nodes,
                "nproc_per_node": ranks_per_node,
            }),
        );
        let id = submitted["id"].as_str();
        let id = id.with_context(|| format!("{} was not submitted: {submitted}", scenario.name))?;
        Ok(id.to_owned())
    }

    /// Returns the faults that have begun since the last call.
    pub(super) fn begun(&mut self) -> Vec<FaultBegun> {
        std::iter::from_fn(|| self.faults.try_recv().ok()).collect()
    }

    /// Returns the alerts that fire now.
    pub(super) fn alerts(&self) -> Value {
        self.api.get("/api/diagnoses")
    }

    /// Returns the data folder of the collector.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.path().join("collector")
    }

    /// Returns the nodes of the newest attempt of a run.
    pub(super) fn nodes_of(&self, run: &str) -> Vec<String> {
        let view = self.api.get(&format!("/api/runs/{run}"));
        let newest = view["attempts"].as_array().and_then(|attempts| attempts.last());
        let nodes = newest.and_then(|attempt| attempt["nodes"].as_array());
        let names = nodes.into_iter().flatten();
        names
            .filter_map(|node| node["node"].as_str().map(str::to_owned))
            .collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _gone_already = self.collector.kill();
        let _gone_already = self.collector.wait();
    }
}
