//! Which nodes a run gets: those that are connected, take runs, and have the fewest runs already.

use std::collections::BTreeMap;

use domain::ident::NodeName;

use super::Agents;
use crate::app::Shared;

/// A node a run could go to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    node: NodeName,
    gpus: usize,
    simulated: bool,
    runs: usize,
}

/// Connected nodes that take runs.
pub(super) fn candidates(
    app: &Shared,
    agents: &Agents,
    runs: &BTreeMap<String, Vec<String>>,
) -> Vec<Candidate> {
    let records = app.live.records().into_iter();
    let usable = records.filter(|record| record.inventory.accepts_runs && agents.is_connected(&record.name));
    let candidate = usable.map(|record| Candidate {
        gpus: record.inventory.gpus.len(),
        simulated: record.inventory.simulated.is_some(),
        runs: runs.get(record.name.as_str()).map_or(0, Vec::len),
        node: record.name,
    });
    candidate.collect()
}

/// The first `count` of the emptiest nodes, or what a person should know. A node with real GPUs takes one run at a time:
/// two would share memory that neither planned for. Simulated GPUs and CPUs are shared.
pub(super) fn choose(mut candidates: Vec<Candidate>, count: u32) -> Result<Vec<NodeName>, String> {
    let connected = candidates.len();
    candidates.retain(|candidate| candidate.runs == 0 || candidate.gpus == 0 || candidate.simulated);
    candidates.sort_by(|a, b| (a.runs, &a.node).cmp(&(b.runs, &b.node)));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if candidates.len() < count {
        let busy = connected - candidates.len();
        return Err(format!(
            "waits for {count} nodes: {connected} are connected and take runs, {busy} of them have their GPUs in use"
        ));
    }
    Ok(candidates
        .into_iter()
        .take(count)
        .map(|candidate| candidate.node)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: &str, gpus: usize, simulated: bool, runs: usize) -> Candidate {
        Candidate {
            node: NodeName::new(node).expect("a name"),
            gpus,
            simulated,
            runs,
        }
    }

    #[test]
    fn runs_go_to_the_emptiest_nodes_and_never_share_real_gpus() {
        let all = vec![
            candidate("a", 8, false, 1),
            candidate("b", 0, false, 2),
            candidate("c", 8, true, 1),
            candidate("d", 8, false, 0),
        ];
        let chosen = choose(all.clone(), 3).expect("enough");
        assert_eq!(
            chosen.iter().map(NodeName::as_str).collect::<Vec<_>>(),
            ["d", "c", "b"]
        );
        let reason = choose(all, 4).expect_err("too few");
        assert_eq!(
            reason,
            "waits for 4 nodes: 4 are connected and take runs, 1 of them have their GPUs in use"
        );
    }
}
