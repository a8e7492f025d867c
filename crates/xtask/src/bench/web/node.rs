//! A real agent on this machine with simulated GPUs, and a run that it starts.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::api;
use crate::layout::Layout;
use crate::measure::http::Address;
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{build, folder};
use crate::progress::say;
use crate::toolchain::venv;

/// The name of the node.
pub(super) const NAME: &str = "bench-node";
const JOIN_WITHIN: Duration = Duration::from_secs(60);
/// A rank gets one second to end, and the agent some more to report it.
const STOP_WITHIN: Duration = Duration::from_secs(30);
const FINAL: [&str; 3] = ["stopped", "succeeded", "failed"];

/// An agent that accepts runs. On drop, it is killed and its data is removed.
pub(super) struct Node {
    server: Server,
    folder: PathBuf,
}

/// A run on a node. On drop, it is stopped: ranks outlive an agent that is killed.
pub(super) struct ManagedRun {
    collector: Address,
    pub(super) id: String,
}

impl Node {
    /// Starts an agent with one simulated GPU and waits until the collector knows it. `step` names its folder and its log.
    pub(super) fn start(layout: &Layout, collector: &Server, step: &str) -> Result<Self> {
        let folder = layout.target().join("bench").join(step);
        folder::empty(&folder)?;
        let port = free_port()?;
        let plan = Plan {
            step: step.to_owned(),
            program: build::program(layout, "lockstep"),
            arguments: vec![
                "agent".to_owned(),
                "--simulate=h100x1:healthy".to_owned(),
                format!("--name={NAME}"),
                format!("--collector={}", collector.url()),
                format!("--metrics-listen=127.0.0.1:{port}"),
                format!("--data={}", folder.join("data").display()),
            ],
            variables: variables(layout, collector)?,
            folder: folder.clone(),
            address: Address { port, token: None },
            ready: "/metrics",
        };
        let mut node = Self {
            server: Server::start(layout, plan)?,
            folder,
        };
        node.wait_until_known(collector.address())?;
        Ok(node)
    }

    fn wait_until_known(&mut self, collector: &Address) -> Result<()> {
        let is_up = |node: &Value| node["name"] == NAME && node["state"] == "up";
        api::wait_until("the collector knows the agent", JOIN_WITHIN, || {
            self.server.check()?;
            let nodes = api::get(collector, "/api/nodes")?;
            Ok(nodes.as_array().is_some_and(|nodes| nodes.iter().any(is_up)))
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.kill();
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Returns the join token, and the interpreter for runs.
fn variables(layout: &Layout, collector: &Server) -> Result<Vec<(&'static str, OsString)>> {
    let python = venv::python(&venv::ensure(layout)?);
    Ok(vec![collector.join_secret()?, ("LOCKSTEP_PYTHON", python.into())])
}

impl ManagedRun {
    pub(super) fn submit(collector: &Address, spec: &Value) -> Result<Self> {
        Ok(Self {
            collector: collector.clone(),
            id: api::submit(collector, spec)?,
        })
    }

    /// Returns an error with the reason if the run has ended.
    pub(super) fn check(&self) -> Result<()> {
        let run = api::get(&self.collector, &self.path())?;
        if is_final(&run) {
            bail!(
                "the run {} is {}: {}",
                self.id,
                run["state"],
                run["outcome"]["message"]
            );
        }
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let path = format!("{}/stop", self.path());
        self.collector
            .post(&path, r#"{"grace_ms":1000}"#)?
            .success(&path)?;
        api::wait_until("the run has stopped", STOP_WITHIN, || {
            Ok(is_final(&api::get(&self.collector, &self.path())?))
        })
    }

    fn path(&self) -> String {
        format!("/api/runs/{}", self.id)
    }
}

impl Drop for ManagedRun {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            say(
                "bench",
                &format!("the run {} was not stopped: {error:#}", self.id),
            );
        }
    }
}

fn is_final(run: &Value) -> bool {
    FINAL.iter().any(|state| run["state"] == *state)
}
