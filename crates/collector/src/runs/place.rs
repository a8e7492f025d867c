//! Which nodes a run gets: those that are connected, take runs, and are rid of what they had before; of these the healthy before
//! those with a critical fault, then those with the fewest runs.
//!
//! A node that failed the run before comes last, and only when there are too few others: one that was away or lost its shim is good
//! again once it is heard and free. One that cannot run it, or whose hardware broke under it, is not given back by itself.

use std::collections::BTreeMap;

use domain::ident::NodeName;
use domain::run::state::{Exclusion, FaultKind};
use domain::time::TimestampMs;
use store::state::nodes::NodeRecord;

use super::agents::Agents;
use super::unknown::Unknown;

/// A node that was heard in the last ten minutes may come back; one that was not is no reason to wait.
const SEEN_WITHIN_MS: i64 = 600_000;

/// A node a run could go to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    node: NodeName,
    gpus: usize,
    simulated: bool,
    runs: usize,
    connected: bool,
    /// Rid of what is over.
    free: bool,
    /// An attempt it holds that is not known here, in words.
    unknown: Option<String>,
    /// A critical alert of its hardware fires.
    critical: bool,
    /// How it failed this run before.
    fault: Option<FaultKind>,
}

/// Why there are no nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooFew {
    /// For people.
    pub(super) reason: String,
    /// Waiting for busy or absent nodes is no use.
    pub(super) hopeless: bool,
}

/// What is known of all nodes.
pub(super) struct Nodes<'a> {
    pub(super) records: Vec<NodeRecord>,
    pub(super) agents: &'a Agents,
    /// Runs under way, by node.
    pub(super) runs: BTreeMap<String, Vec<String>>,
    pub(super) unknown: &'a Unknown,
    /// Nodes with a critical alert of their hardware.
    pub(super) critical: Vec<String>,
}

impl Nodes<'_> {
    /// Nodes that take runs and are there, or were a while ago.
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

/// Nodes that would take a run now, the best first.
pub(super) fn takers(candidates: Vec<Candidate>) -> Vec<NodeName> {
    let count = (1..)
        .take_while(|count| choose(candidates.clone(), *count).is_ok())
        .last();
    count.map_or_else(Vec::new, |count| choose(candidates, count).unwrap_or_default())
}

/// The first `count` of the best nodes, or what a person should know. A node with real GPUs takes one run at a time: two would share
/// memory that neither planned for. Simulated GPUs and CPUs are shared.
pub(super) fn choose(mut candidates: Vec<Candidate>, count: u32) -> Result<Vec<NodeName>, TooFew> {
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
    let hopeless = candidates.len() < count;
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
    let not_rid = connected - candidates.len();
    candidates.retain(|candidate| candidate.runs == 0 || candidate.gpus == 0 || candidate.simulated);
    if candidates.len() < count {
        let busy = connected - not_rid - candidates.len();
        let mut reason = format!(
            "waits for {count} nodes: {connected} are connected and take runs, {busy} of them have their GPUs in use"
        );
        if not_rid > 0 {
            reason = format!("{reason}, {not_rid} still have something of an attempt that is over");
        }
        if !held.is_empty() {
            reason = format!(
                "{reason}; {}, not known to this collector: stop it with `lockstep run stop`, or let it end",
                held.join(", ")
            );
        }
        if !out.is_empty() {
            reason = format!("{reason}; {} failed it before and is left out", out.join(", "));
        }
        return Err(TooFew { reason, hopeless });
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

    fn chosen(candidates: Vec<Candidate>, count: u32) -> Result<String, TooFew> {
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
        let too_few = chosen(all, 4).expect_err("too few");
        assert_eq!(
            too_few.reason,
            "waits for 4 nodes: 4 are connected and take runs, 1 of them have their GPUs in use"
        );
        assert!(!too_few.hopeless, "one of them may become free");
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
            let too_few = chosen(vec![sick.clone(), away(fault)], 2).expect_err("b is not given back");
            assert!(too_few.hopeless && too_few.reason.ends_with("; b failed it before and is left out"));
        }
    }

    #[test]
    fn a_node_that_holds_what_is_not_known_gets_nothing_and_the_reason_says_so() {
        let holds = Candidate {
            unknown: Some("attempt 2 of run r-1".to_owned()),
            ..candidate("b", 0, false, 0)
        };
        assert_eq!(chosen(vec![idle("a"), holds.clone()], 1).as_deref(), Ok("a"));
        let too_few = chosen(vec![idle("a"), holds], 2).expect_err("b is not free");
        assert!(!too_few.hopeless, "it may end");
        assert!(
            too_few
                .reason
                .contains("b holds attempt 2 of run r-1, not known to this collector"),
            "{}",
            too_few.reason
        );
    }

    #[test]
    fn a_node_with_something_left_on_it_is_waited_for() {
        let not_rid = Candidate {
            free: false,
            ..idle("b")
        };
        let too_few = chosen(vec![idle("a"), not_rid], 2).expect_err("b is not free");
        assert!(!too_few.hopeless);
        assert!(
            too_few.reason.ends_with(
                "0 of them have their GPUs in use, 1 still have something of an attempt that is over"
            ),
            "{}",
            too_few.reason
        );
    }
}
