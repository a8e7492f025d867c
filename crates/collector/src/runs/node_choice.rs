//! The choice of nodes for a run: nodes that are connected, accept runs, and hold no ended attempt. Healthy nodes come before those with a
//! critical fault, then nodes with the fewest runs first.
//!
//! A node that failed this run before comes last, and is used only if there are too few others: a node that was away or lost its shim is
//! usable again once it is connected and free. A node that cannot run it, or whose hardware failed, is not used again automatically.

use std::collections::BTreeMap;

use domain::ident::NodeName;
use domain::run::state::{Exclusion, FaultKind};
use domain::time::TimestampMs;
use store::state::nodes::NodeRecord;

use super::agents::Agents;
use super::unknown_attempts::UnknownAttempts;

/// A node that was connected in the last ten minutes may come back. A run does not wait for other disconnected nodes.
const SEEN_WITHIN_MS: i64 = 600_000;

/// A node that may be chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    node: NodeName,
    gpus: usize,
    simulated: bool,
    runs: usize,
    connected: bool,
    /// The node holds no ended attempt.
    free: bool,
    /// An unknown attempt that the node holds, as text.
    unknown: Option<String>,
    /// A critical alert about its hardware fires.
    critical: bool,
    /// How the node failed this run before.
    fault: Option<FaultKind>,
}

/// Why there are not enough nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotEnoughNodes {
    /// The reason, for people.
    pub(super) reason: String,
    /// True if waiting for busy or disconnected nodes cannot help.
    pub(super) permanent: bool,
}

/// The state of all nodes.
pub(super) struct Nodes<'a> {
    pub(super) records: Vec<NodeRecord>,
    pub(super) agents: &'a Agents,
    /// Active runs, by node.
    pub(super) runs: BTreeMap<String, Vec<String>>,
    pub(super) unknown: &'a UnknownAttempts,
    /// Nodes with a critical alert about their hardware.
    pub(super) critical: Vec<String>,
}

impl Nodes<'_> {
    /// Returns the nodes that accept runs and are connected, or were recently.
    pub(super) fn candidates(self, excluded: &[Exclusion], now_ms: TimestampMs) -> Vec<Candidate> {
        let seen_since_ms = now_ms - SEEN_WITHIN_MS;
        let records = self.records.into_iter();
        let usable = records.filter(|record| {
            let is_there = self.agents.is_connected(&record.name) || record.seen_ms > seen_since_ms;
            record.inventory.accepts_runs && is_there
        });
        let candidate = usable.map(|record| Candidate {
            gpus: record.inventory.gpus.len(),
            simulated: record.inventory.simulated.is_some(),
            runs: self.runs.get(record.name.as_str()).map_or(0, Vec::len),
            connected: self.agents.is_connected(&record.name),
            free: self.agents.is_free(&record.name),
            unknown: self.unknown.on_node(&record.name),
            critical: self.critical.iter().any(|node| node == record.name.as_str()),
            fault: excluded
                .iter()
                .find(|exclusion| exclusion.node == record.name)
                .map(|exclusion| exclusion.fault.kind),
            node: record.name,
        });
        candidate.collect()
    }
}

/// Returns the nodes that would get a run now, the best first.
pub(super) fn available_nodes(candidates: Vec<Candidate>) -> Vec<NodeName> {
    let count = (1..)
        .take_while(|count| choose(candidates.clone(), *count).is_ok())
        .last();
    count.map_or_else(Vec::new, |count| choose(candidates, count).unwrap_or_default())
}

/// Returns the best `count` nodes, or the reason why there are too few. A node with real GPUs gets one run at a time: two runs would share
/// GPU memory without a plan for it. Simulated GPUs and CPUs are shared.
pub(super) fn choose(mut candidates: Vec<Candidate>, count: u32) -> Result<Vec<NodeName>, NotEnoughNodes> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let barred = |candidate: &Candidate| {
        matches!(
            candidate.fault,
            Some(FaultKind::Unfit | FaultKind::Hardware | FaultKind::Person)
        )
    };
    let out: Vec<String> = candidates
        .iter()
        .filter(|candidate| barred(candidate))
        .map(|candidate| candidate.node.to_string())
        .collect();
    candidates.retain(|candidate| !barred(candidate));
    let permanent = candidates.len() < count;
    candidates.retain(|candidate| candidate.connected);
    let held: Vec<String> = candidates
        .iter()
        .filter_map(|candidate| {
            Some(format!(
                "{} holds {}",
                candidate.node,
                candidate.unknown.as_ref()?
            ))
        })
        .collect();
    candidates.retain(|candidate| candidate.unknown.is_none());
    let connected = candidates.len();
    candidates.retain(|candidate| candidate.free);
    let with_leftovers = connected - candidates.len();
    candidates.retain(|candidate| candidate.runs == 0 || candidate.gpus == 0 || candidate.simulated);
    if candidates.len() < count {
        let busy = connected - with_leftovers - candidates.len();
        let mut reason = format!(
            "waits for {count} nodes: {connected} are connected and accept runs, {busy} of them have their GPUs in use"
        );
        if with_leftovers > 0 {
            reason = format!("{reason}, {with_leftovers} still hold an ended attempt");
        }
        if !held.is_empty() {
            reason = format!(
                "{reason}; {}, which is unknown to this collector: stop it with `lockstep run stop`, or let it end",
                held.join(", ")
            );
        }
        if !out.is_empty() {
            reason = format!(
                "{reason}; {} failed this run before and is left out",
                out.join(", ")
            );
        }
        return Err(NotEnoughNodes { reason, permanent });
    }
    candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
    Ok(candidates
        .into_iter()
        .take(count)
        .map(|candidate| candidate.node)
        .collect())
}

impl Candidate {
    fn rank(&self) -> (bool, bool, usize, &NodeName) {
        (self.fault.is_some(), self.critical, self.runs, &self.node)
    }
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
            connected: true,
            free: true,
            unknown: None,
            critical: false,
            fault: None,
        }
    }

    fn idle(node: &str) -> Candidate {
        candidate(node, 8, false, 0)
    }

    fn chosen(candidates: Vec<Candidate>, count: u32) -> Result<String, NotEnoughNodes> {
        let nodes = choose(candidates, count)?;
        Ok(nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn runs_go_to_the_emptiest_nodes_and_never_share_real_gpus() {
        let all = vec![
            candidate("a", 8, false, 1),
            candidate("b", 0, false, 2),
            candidate("c", 8, true, 1),
            candidate("d", 8, false, 0),
        ];
        assert_eq!(chosen(all.clone(), 3).as_deref(), Ok("d c b"));
        let error = chosen(all, 4).expect_err("too few");
        assert_eq!(
            error.reason,
            "waits for 4 nodes: 4 are connected and accept runs, 1 of them have their GPUs in use"
        );
        assert!(!error.permanent, "one of them may become free");
    }

    #[test]
    fn healthy_nodes_come_first_and_one_that_failed_the_run_last() {
        let sick = Candidate {
            critical: true,
            ..idle("a")
        };
        let away = |fault| Candidate {
            fault: Some(fault),
            ..idle("b")
        };
        let all = vec![sick.clone(), away(FaultKind::Away), idle("c")];
        assert_eq!(chosen(all.clone(), 2).as_deref(), Ok("c a"));
        assert_eq!(chosen(all, 3).as_deref(), Ok("c a b"), "there are no others");
        for fault in [FaultKind::Unfit, FaultKind::Hardware, FaultKind::Person] {
            let error = chosen(vec![sick.clone(), away(fault)], 2).expect_err("b is not given back");
            assert!(
                error.permanent
                    && error
                        .reason
                        .ends_with("; b failed this run before and is left out")
            );
        }
    }

    #[test]
    fn a_node_with_an_unknown_attempt_gets_no_run_and_the_reason_names_it() {
        let holds = Candidate {
            unknown: Some("attempt 2 of run r-1".to_owned()),
            ..candidate("b", 0, false, 0)
        };
        assert_eq!(chosen(vec![idle("a"), holds.clone()], 1).as_deref(), Ok("a"));
        let error = chosen(vec![idle("a"), holds], 2).expect_err("b is not free");
        assert!(!error.permanent, "it may end");
        assert!(
            error
                .reason
                .contains("b holds attempt 2 of run r-1, which is unknown to this collector"),
            "{}",
            error.reason
        );
    }

    #[test]
    fn a_node_with_something_left_on_it_is_waited_for() {
        let with_leftovers = Candidate {
            free: false,
            ..idle("b")
        };
        let error = chosen(vec![idle("a"), with_leftovers], 2).expect_err("b is not free");
        assert!(!error.permanent);
        assert!(
            error
                .reason
                .ends_with("0 of them have their GPUs in use, 1 still hold an ended attempt"),
            "{}",
            error.reason
        );
    }
}
