//! The generator beside a collector: nodes that send until the measurement has ended.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::api;
use crate::layout::Layout;
use crate::measure::generator::{Fleet, RunningGenerator};
use crate::measure::server::Server;
use crate::progress::say;

/// Longer than any measurement. The generator is killed before.
const SENDS_FOR: Duration = Duration::from_secs(3_600);
/// The time for all nodes to join.
const JOIN_WITHIN: Duration = Duration::from_secs(300);
/// The values that the grid of the overview shows by default.
const SHOWN: &str = "count(gpu_sm_active_ratio or gpu_utilization_ratio)";

/// Starts nodes that send one batch per second each, and waits until the collector has values of all their GPUs.
pub(super) fn start(layout: &Layout, collector: &mut Server, fleet: Fleet) -> Result<RunningGenerator> {
    say(
        collector.step(),
        &format!("{} nodes with {} series join", fleet.nodes, fleet.series()),
    );
    let args = [
        format!("--ticks={}", SENDS_FOR.as_secs()),
        "--mode=live".to_owned(),
    ];
    let mut sending = RunningGenerator::start(layout, collector, fleet, "agents", &args)?;
    let address = collector.address().clone();
    let gpus = (fleet.nodes * fleet.gpus) as f64;
    api::wait_until(&format!("{SHOWN} = {gpus}"), JOIN_WITHIN, || {
        sending.check()?;
        collector.check()?;
        Ok(api::value(&address, SHOWN)?.is_some_and(|value| value >= gpus))
    })?;
    Ok(sending)
}

/// Returns an error unless the nodes describe all their GPUs: the grid has a cell only for a GPU of a node's inventory.
pub(super) fn ensure_described(collector: &Server, fleet: Fleet) -> Result<()> {
    let all = api::get(collector.address(), "/api/gpus")?;
    let described = all.as_array().map_or(0, Vec::len) as u64;
    let expected = fleet.nodes * fleet.gpus;
    ensure!(
        described == expected,
        "the simulated nodes describe {described} GPUs in their inventories instead of {expected}, so the grid does not show them"
    );
    Ok(())
}
