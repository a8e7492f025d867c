//! Measures the bandwidth between the nodes of an attempt during preflight, in rounds. A round begins when all nodes have answered in the
//! round before.
//!
//! ```text
//! prepared, agreed ──▶ round 0: Measure to both nodes of each pair ──all Measured──▶ round 1 … ──▶ judged ──▶ start, or refusal
//!                         └── an answer is missing for too long ──▶ the node is given up (timeouts)
//! ```
//! The state records which nodes have answered, so an answer that is repeated, late, or from an earlier round changes nothing.

use crate::ident::NodeName;
use crate::run::bandwidth::{Culprit, Judgement, PairMeasurement, PairRate, judge, pairs, rounds};
use crate::run::spec::Spec;
use crate::run::state::attempt::Attempt;
use crate::run::state::fault::NodeFailure;
use crate::run::state::fault::{Exclusion, Fault, FaultKind};
use crate::run::state::preflight::BandwidthCheck;
use crate::run::state::protocol::{Measure, Measured, NodeCommand};
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome};
use crate::time::TimestampMs;

/// Time in addition to the transfer itself, in milliseconds: for a connection, a slow scheduler, a socket that drains.
const SETTLE_MS: u64 = 10_000;
/// How long after the node's own timeout its answer may arrive, in milliseconds: the connection may have been lost and established again.
const ANSWER_WITHIN_MS: i64 = 30_000;

impl BandwidthCheck {
    /// Stores an answer if it is expected.
    pub(in crate::run::state) fn answered(&mut self, node: u32, measured: &Measured) {
        let Some(at) = self.waiting.iter().position(|(waits, _)| *waits == node) else {
            return;
        };
        if measured.round != self.round {
            return;
        }
        let (to, from) = self.waiting.remove(at);
        self.figures.push(PairMeasurement {
            from,
            to,
            mib_s: measured.mib_s.filter(|mib_s| mib_s.is_finite() && *mib_s >= 0.0),
            problem: measured.problem.clone(),
        });
    }

    /// Returns true if answers of the round are overdue.
    pub(in crate::run::state) fn is_late(&self, spec: &Spec, now_ms: TimestampMs) -> bool {
        let own_ms = i64::try_from(within_ms(spec)).unwrap_or(i64::MAX);
        !self.waiting.is_empty() && now_ms - self.since_ms > own_ms.saturating_add(ANSWER_WITHIN_MS)
    }
}

impl Attempt {
    pub(in crate::run::state) fn measured(&mut self, node: &NodeName, measured: &Measured) {
        let rank = self.nodes.iter().position(|task| task.node == *node);
        if let (Some(check), Some(rank)) = (&mut self.findings.bandwidth, rank) {
            check.answered(u32::try_from(rank).unwrap_or(u32::MAX), measured);
        }
    }

    /// Removes the secrets, which are not needed any more.
    fn clear_secrets(&mut self) {
        for found in self.nodes.iter_mut().filter_map(|task| task.prepared.as_mut()) {
            found.door = Default::default();
        }
    }

    /// Returns the name of a node by its index in the attempt.
    pub(crate) fn name(&self, node: u32) -> &str {
        self.nodes
            .get(node as usize)
            .map_or("?", |task| task.node.as_str())
    }
}

impl Transition<'_> {
    /// Starts the next round of measurements when it is time. Returns true if an answer is still missing.
    pub(in crate::run::state) fn measure(&mut self) -> bool {
        let options = &self.run.spec.preflight_bandwidth;
        let nodes = u32::try_from(self.run.current().nodes.len()).unwrap_or(u32::MAX);
        if options.is_off() || rounds(nodes) == 0 {
            return false;
        }
        let round = match &self.run.current().findings.bandwidth {
            None => 0,
            Some(check) if !check.waiting.is_empty() => return true,
            Some(check) => check.round + 1,
        };
        if round >= rounds(nodes) {
            self.run.current_mut().clear_secrets();
            return false;
        }
        let check = self.run.current_mut().findings.bandwidth.get_or_insert_default();
        (check.round, check.rounds, check.since_ms) = (round, rounds(nodes), self.now_ms);
        let pairs = pairs(nodes, round);
        check.waiting = pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
        for (a, b) in pairs {
            self.send_measurement(round, a, b);
        }
        true
    }

    /// The node with the lower rank listens at the port that it leased; the other one connects with its secret.
    fn send_measurement(&mut self, round: u32, listens: u32, comes: u32) {
        let (spec, nodes) = (&self.run.spec, &self.run.current().nodes);
        let task = &nodes[listens as usize];
        let host = task.prepared.clone().unwrap_or_default();
        let measure = Measure {
            round,
            listens: true,
            address: if host.data_address.is_empty() {
                host.address
            } else {
                host.data_address
            },
            port: host.port,
            secret: host.door,
            one_way_ms: spec.preflight_bandwidth.one_way_ms(),
            within_ms: within_ms(spec),
            peer: String::new(),
        };
        for (node, peer) in [(listens, comes), (comes, listens)] {
            let nodes = &self.run.current().nodes;
            let name = nodes[node as usize].node.clone();
            let command = NodeCommand::Measure(Measure {
                listens: node == listens,
                peer: nodes[peer as usize].node.to_string(),
                ..measure.clone()
            });
            self.command(&name, command);
        }
    }
}

/// The verdict on the measurements of an attempt.
#[derive(Debug, Default)]
pub(in crate::run::state) struct Verdict {
    pub(in crate::run::state) warnings: Vec<String>,
    /// Why the attempt is refused, and which node the next attempt must run without.
    pub(in crate::run::state) refusal: Option<NodeFailure>,
}

/// Judges the measurements when all rounds are over.
pub(in crate::run::state) fn verdict(spec: &Spec, attempt: &Attempt) -> Verdict {
    let Some(check) = &attempt.findings.bandwidth else {
        return Verdict::default();
    };
    let judged = judge(&check.figures, &spec.preflight_bandwidth);
    let usual = judged.usual_mib_s.unwrap_or(0.0);
    let of_nodes = judged
        .culprits
        .iter()
        .map(|culprit| culprit_text(attempt, culprit, usual));
    let of_pairs = judged.slow.iter().map(|pair| pair_text(attempt, pair, usual));
    let unmeasured = check
        .figures
        .iter()
        .filter(|figure| figure.mib_s.is_none())
        .map(|figure| {
            format!(
                "the bandwidth from node {} to node {} was not measured: {}",
                attempt.name(figure.from),
                attempt.name(figure.to),
                figure.problem
            )
        });
    let slow: Vec<String> = of_nodes.chain(of_pairs).collect();
    let refusal = (spec.preflight_bandwidth.refuse && !slow.is_empty())
        .then(|| refusal(attempt, &judged, &slow))
        .flatten();
    Verdict {
        warnings: slow.into_iter().chain(unmeasured).collect(),
        refusal,
    }
}

/// If one node is the culprit, another node may replace it. A slow pair alone has no culprit, and would be slow again.
fn refusal(attempt: &Attempt, judged: &Judgement, slow: &[String]) -> Option<NodeFailure> {
    let message = format!(
        "{}; the run is refused because preflight_bandwidth.refuse is set",
        slow.join("; ")
    );
    let Some(culprit) = judged.culprits.first() else {
        let first = &attempt.nodes.first()?.node;
        let outcome = Outcome {
            node: None,
            ..Outcome::at_node(Cause::Mismatch, first, message)
        };
        return Some(NodeFailure {
            outcome,
            exclusion: None,
        });
    };
    let node = attempt.nodes.get(culprit.node as usize)?.node.clone();
    let fault = Fault {
        kind: FaultKind::Unfit,
        reason: slow.first()?.clone(),
    };
    Some(NodeFailure {
        outcome: Outcome::at_node(Cause::PrepareFailed, &node, message),
        exclusion: Some(Exclusion { node, fault }),
    })
}

fn culprit_text(attempt: &Attempt, culprit: &Culprit, usual: f64) -> String {
    let what = match culprit.ways {
        (true, false) => "sends slowly to all others",
        (false, true) => "receives slowly from all others",
        _ => "is slow with all others",
    };
    let prepared = attempt
        .nodes
        .get(culprit.node as usize)
        .and_then(|task| task.prepared.as_ref());
    let interface = prepared
        .and_then(|found| found.nics.first())
        .map_or_else(String::new, |nic| format!(" {}", nic.name));
    format!(
        "node {} {what}: at most {:.0} MiB/s, while nodes here reach {usual:.0}; check its interface{interface}, its cable and its \
         switch port",
        attempt.name(culprit.node),
        culprit.best_mib_s
    )
}

fn pair_text(attempt: &Attempt, pair: &PairRate, usual: f64) -> String {
    let PairRate { from, to, mib_s } = *pair;
    let problem = attempt.findings.bandwidth.iter().flat_map(|check| &check.figures);
    let problem = problem
        .filter(|figure| (figure.from, figure.to) == (from, to) && !figure.problem.is_empty())
        .map(|figure| format!(" ({})", figure.problem))
        .next();
    format!(
        "the bandwidth from node {} to node {} is {mib_s:.0} MiB/s, while nodes here reach {usual:.0}{}",
        attempt.name(from),
        attempt.name(to),
        problem.unwrap_or_default()
    )
}

/// Returns the time after which a node answers, whatever the other node does.
fn within_ms(spec: &Spec) -> u64 {
    2 * spec.preflight_bandwidth.one_way_ms() + SETTLE_MS
}
