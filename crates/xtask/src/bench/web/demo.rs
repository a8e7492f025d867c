//! `lockstep demo` as a cluster with live runs: its ranks exist only as reports and samples, sent over the agents' protocol.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::api;
use crate::layout::Layout;
use crate::measure::http::Address;
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{build, folder};

/// The time for the nodes to join, one after the other.
const START_WITHIN: Duration = Duration::from_secs(120);
/// The time until the ranks of a submitted run train.
const TRAIN_WITHIN: Duration = Duration::from_secs(120);
/// The runs of the demo itself, some of which have faults.
pub(super) const RUNS_OF_DEMO: u32 = 4;
const GPUS: u32 = 8;
/// Nodes and ranks of a large run.
const NODES_OF_RUN: u32 = 128;
/// See [`NODES_OF_RUN`].
pub(super) const RANKS: u32 = NODES_OF_RUN * GPUS;
/// The large run on its own nodes, beside the demo's own runs on eight.
const NODES_WITH_RUN: u32 = NODES_OF_RUN + 8;

/// A running demo. On drop, it is killed and its data is removed.
pub(super) struct Demo {
    server: Server,
    /// With the admin token.
    pub(super) address: Address,
    folder: PathBuf,
}

impl Demo {
    /// Starts the demo and waits until its own runs train. `step` names its folder and its log.
    pub(super) fn start(layout: &Layout, step: &str, nodes: u32) -> Result<Self> {
        let folder = layout.target().join("bench").join(step);
        folder::empty(&folder)?;
        let port = free_port()?;
        let plan = Plan {
            step: step.to_owned(),
            program: build::program(layout, "lockstep"),
            arguments: vec![
                "demo".to_owned(),
                format!("--listen=127.0.0.1:{port}"),
                format!("--nodes={nodes}"),
            ],
            // The demo removes its temporary folder only if it ends by itself.
            variables: vec![("TMPDIR", OsString::from(&folder))],
            folder: folder.clone(),
            address: Address { port, token: None },
            ready: "/-/ready",
        };
        let mut demo = Self {
            server: Server::start(layout, plan)?,
            address: Address { port, token: None },
            folder,
        };
        demo.address.token = Some(demo.wait_for_token(&layout.logs().join(format!("{step}.log")))?);
        // The first run of each kind has its faults, and those are to be the runs of the demo.
        demo.wait_for_value("count(max by (run) (train_step))", RUNS_OF_DEMO)?;
        Ok(demo)
    }

    /// Starts a demo with a run of [`RANKS`] ranks that train. Returns the run's id too.
    pub(super) fn with_large_run(layout: &Layout, step: &str) -> Result<(Self, String)> {
        let mut demo = Self::start(layout, step, NODES_WITH_RUN)?;
        let id = demo.submit("large", NODES_OF_RUN)?;
        demo.wait_for_value(&format!("count(train_step{{run=\"{id}\"}})"), RANKS)?;
        Ok((demo, id))
    }

    /// Submits a run with eight ranks per node and without faults. Returns its id.
    pub(super) fn submit(&self, name: &str, nodes: u32) -> Result<String> {
        let spec = json!({
            "name": name,
            "recipe": "fsdp",
            "nodes": nodes,
            "nproc_per_node": GPUS,
            "backend": "nccl",
            "stall_timeout_s": 0,
        });
        api::submit(&self.address, &spec)
    }

    /// Waits until the result of a query is at least `at_least`.
    pub(super) fn wait_for_value(&mut self, query: &str, at_least: u32) -> Result<()> {
        let at_least = f64::from(at_least);
        api::wait_for_value(&mut self.server, &self.address, query, at_least, TRAIN_WITHIN)
    }

    /// Waits until the demo has printed its token, which it does after its nodes have joined.
    fn wait_for_token(&mut self, log: &Path) -> Result<String> {
        let mut token = None;
        api::wait_until("the demo prints its token", START_WITHIN, || {
            self.server.check()?;
            let printed = fs::read_to_string(log);
            let printed = printed.with_context(|| format!("cannot read {}", log.display()))?;
            token = printed_token(&printed).map(str::to_owned);
            Ok(token.is_some())
        })?;
        token.context("the demo printed no token")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.server.kill();
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Returns the token from a complete line of the demo's output.
fn printed_token(printed: &str) -> Option<&str> {
    let (_, after) = printed.split_once("Log in with ")?;
    let (token, _) = after.split_once('\n')?;
    Some(token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_rest_of_its_line() {
        let printed =
            "SIMULATED\n\n  Dashboard   http://127.0.0.1:1\n  Log in with ls_abc\n\nIn another terminal:\n";
        assert_eq!(printed_token(printed), Some("ls_abc"));
        assert_eq!(printed_token("  Log in with ls_a"), None, "half a line");
        assert_eq!(printed_token("collector: listening\n"), None);
    }
}
