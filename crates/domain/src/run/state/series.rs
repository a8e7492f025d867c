//! The series of a run that rules read: its state, its stalled ranks, and how it ended.
//!
//! ```text
//! run_state{run,state} 1                            the current state
//! run_failed_attempts_total{run}                    number of failed attempts
//! run_attempt_failures_total{run,cause,node}        the same by cause, and by the node where the failure began
//! run_stalled{run,cause,node,rank} 1                a rank that makes no progress and keeps the others waiting
//! run_stalled{run,cause} 1                          no rank makes a step, and the culprit is unknown
//! run_ended_info{run,cause,node,rank} 1             how it ended; without node and rank if none is known
//! ```
//! A rank is named if the kernel reports its process as stopped or hanging, or if it alone is behind. Ranks that are equally far wait for
//! each other, and these series do not say which one is the culprit. Neither do they if the ranks may wait for one that has exited, or for
//! one whose node is away.

use std::collections::BTreeMap;

use crate::ident::RunId;
use crate::run::state::attempt::Attempt;
use crate::run::state::machine::Machine;
use crate::run::state::node_task::{NodePhase, NodeTask};
use crate::run::state::timeouts::{Reporters, StalledRank, suspects};
use crate::run::state::{Outcome, StallCause};
use crate::series::{Labels, METRIC_NAME};
use crate::time::TimestampMs;

/// The series of stalled ranks before the agents of their nodes disconnected.
#[derive(Debug, Clone, PartialEq)]
pub struct StallsBefore {
    /// The series `run_stalled`.
    pub series: Vec<(Labels, f64)>,
    /// When the first of these agents disconnected.
    pub away_since_ms: TimestampMs,
}

impl Machine {
    /// Returns the current series of the run. Series returned earlier that are missing now have ended.
    #[must_use]
    pub fn series(&self) -> Vec<(Labels, f64)> {
        let state = of_run("run_state", &self.id).with("state", self.state.as_str());
        #[expect(clippy::cast_precision_loss, reason = "a run has few attempts")]
        let failed = self
            .attempts
            .iter()
            .filter(|attempt| attempt.has_failed())
            .count() as f64;
        let mut series = vec![
            (state, 1.0),
            (of_run("run_failed_attempts_total", &self.id), failed),
        ];
        series.extend(failures(&self.id, &self.attempts));
        if self.state.is_final() {
            series.extend(
                self.outcome
                    .as_ref()
                    .map(|outcome| (ended(&self.id, outcome), 1.0)),
            );
        } else {
            series.extend(stalled(&self.id, self.current(), Reporters::Connected));
        }
        series
    }

    /// Returns the series of stalled ranks as they were before the agents of their nodes disconnected. `None` if no such agent is away, or
    /// if a rank has moved since.
    #[must_use]
    pub fn stalls_before(&self) -> Option<StallsBefore> {
        let attempt = self.current();
        let has_stall = |task: &&NodeTask| {
            let mut ranks = task.ranks.values();
            task.phase != NodePhase::Ended && ranks.any(|rank| rank.exit.is_none() && rank.stall.is_some())
        };
        let stalled_nodes = attempt.nodes.iter().filter(has_stall);
        let away_since_ms = stalled_nodes.filter_map(|task| task.away_since_ms).min()?;
        let moved_ms = attempt.progress.last_progress_ms;
        let has_moved = moved_ms.is_some_and(|moved_ms| moved_ms > away_since_ms);
        (!has_moved && !self.state.is_final()).then(|| StallsBefore {
            series: stalled(&self.id, attempt, Reporters::All),
            away_since_ms,
        })
    }
}

impl Attempt {
    fn has_failed(&self) -> bool {
        self.ended_ms.is_some() && self.progress.failing_since_ms.is_some()
    }
}

fn of_run(name: &str, run: &RunId) -> Labels {
    Labels::new([(METRIC_NAME, name), ("run", run.as_str())]).expect("well-formed names")
}

/// Counts failed attempts by cause and node. Attempts without an outcome are not counted, because neither is known.
fn failures(run: &RunId, attempts: &[Attempt]) -> Vec<(Labels, f64)> {
    let mut counts: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for outcome in attempts
        .iter()
        .filter(|attempt| attempt.has_failed())
        .filter_map(|attempt| attempt.outcome.as_ref())
    {
        let key = (
            outcome.cause.as_str(),
            outcome.node.as_deref().unwrap_or_default(),
        );
        *counts.entry(key).or_default() += 1.0;
    }
    let labels = |cause, node: &str| {
        let labels = of_run("run_attempt_failures_total", run).with("cause", cause);
        if node.is_empty() {
            labels
        } else {
            labels.with("node", node)
        }
    };
    counts
        .into_iter()
        .map(|((cause, node), count)| (labels(cause, node), count))
        .collect()
}

fn ended(run: &RunId, outcome: &Outcome) -> Labels {
    let labels = of_run("run_ended_info", run).with("cause", outcome.cause.as_str());
    let labels = match &outcome.node {
        Some(node) => labels.with("node", node),
        None => labels,
    };
    match outcome.rank {
        Some(rank) => labels.with("rank", &rank.to_string()),
        None => labels,
    }
}

/// Returns the labels of the ranks that keep the others waiting, if they are known.
fn stalled(run: &RunId, attempt: &Attempt, reporters: Reporters) -> Vec<(Labels, f64)> {
    let suspects = suspects(attempt, reporters);
    let Some(first) = suspects.first() else {
        return Vec::new();
    };
    if first.is_held() {
        return suspects.iter().map(|culprit| named(run, culprit)).collect();
    }
    let left = attempt.ranks().filter(|(_, rank)| rank.exit.is_none()).count();
    let has_exits = left < attempt.ranks().count();
    if left == 1 && has_exits {
        // No rank waits for the last one, which may save or evaluate at the end of the run.
        return Vec::new();
    }
    // The ranks may wait for one that has exited, or for one on a node that is away, whose stalls are not known.
    let is_unknown = |task: &NodeTask| {
        reporters == Reporters::Connected && task.phase != NodePhase::Ended && task.away_since_ms.is_some()
    };
    if suspects.len() > 1 || has_exits || attempt.nodes.iter().any(is_unknown) {
        let labels = of_run("run_stalled", run).with("cause", StallCause::NoStep.as_str());
        return vec![(labels, 1.0)];
    }
    vec![named(run, first)]
}

fn named(run: &RunId, stalled: &StalledRank<'_>) -> (Labels, f64) {
    let labels = of_run("run_stalled", run)
        .with("cause", stalled.stall.cause.as_str())
        .with("node", stalled.node.as_str())
        .with("rank", &stalled.rank.to_string());
    (labels, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{NodeName, Rank};
    use crate::run::spec::Spec;
    use crate::run::state::node_task::{RankTask, Stall};
    use crate::run::state::{Cause, RankExit, RunState};

    /// A running run with two nodes and two ranks per node; `stalls` has the rank, cause and last step of each stalled rank.
    fn run(stalls: &[(u32, StallCause, Option<u64>)]) -> Machine {
        let spec = Spec {
            recipe: Some("ddp".to_owned()),
            ..Spec::default()
        };
        let (mut machine, _) = Machine::submit(RunId::new("ddp-1").expect("an id"), spec, 0);
        machine.state = RunState::Running;
        let node = |first_rank: u32| {
            let ranks = (0..2).map(|local| {
                let stall = stalls.iter().find(|(rank, ..)| *rank == first_rank + local);
                let stall = stall.map(|(_, cause, step)| Stall {
                    since_ms: 0,
                    step: *step,
                    cause: cause.clone(),
                });
                (
                    local,
                    RankTask {
                        stall,
                        ..RankTask::default()
                    },
                )
            });
            NodeTask {
                node: NodeName::new(format!("n{first_rank}")).expect("a name"),
                phase: NodePhase::Running,
                away_since_ms: None,
                prepared: None,
                command: String::new(),
                stop_grace_sent_ms: None,
                first_rank,
                ranks: ranks.collect::<BTreeMap<_, _>>(),
                end: None,
                fault: None,
                sees_first: None,
            }
        };
        machine.current_mut().nodes = vec![node(0), node(2)];
        machine
    }

    fn check(stalls: &[(u32, StallCause, Option<u64>)], expected: &[&str]) {
        assert_eq!(stalled_of(&run(stalls)), expected, "{stalls:?}");
    }

    fn stalled_of(machine: &Machine) -> Vec<String> {
        texts(&machine.series())
    }

    fn texts(series: &[(Labels, f64)]) -> Vec<String> {
        let stalled = series
            .iter()
            .filter(|(labels, _)| labels.metric_name() == Some("run_stalled"));
        let text = |labels: &Labels| {
            let pairs = ["cause", "node", "rank"].map(|name| labels.get(name).unwrap_or("-").to_owned());
            pairs.join(" ")
        };
        stalled.map(|(labels, _)| text(labels)).collect()
    }

    #[test]
    fn a_rank_is_named_where_the_kernel_holds_it_or_where_it_alone_is_behind() {
        use StallCause::{NoStep, Stopped, Uninterruptible};
        check(&[], &[]);
        check(&[(3, Stopped, None)], &["stopped n2 3"]);
        check(&[(3, NoStep, Some(7))], &["no_step n2 3"]);
        check(
            &[(0, NoStep, Some(7)), (2, Stopped, Some(7)), (3, NoStep, Some(7))],
            &["stopped n2 2"],
        );
        check(
            &[(0, Uninterruptible, Some(7)), (2, Stopped, Some(7))],
            &["uninterruptible n0 0", "stopped n2 2"],
        );
        check(
            &[(0, NoStep, Some(8)), (1, NoStep, Some(7)), (2, NoStep, Some(8))],
            &["no_step n0 1"],
        );
    }

    #[test]
    fn the_stalls_before_an_agent_disconnected_are_known_until_a_rank_moves() {
        let mut machine = run(&[(3, StallCause::Stopped, Some(7))]);
        assert_eq!(machine.stalls_before(), None, "its agent is connected");
        machine.current_mut().nodes[0].away_since_ms = Some(4);
        assert_eq!(machine.stalls_before(), None, "its agent is connected");
        machine.current_mut().nodes[1].away_since_ms = Some(5);
        assert_eq!(stalled_of(&machine), [] as [&str; 0]);
        let before = machine.stalls_before().expect("its agent is away");
        assert_eq!(
            (texts(&before.series), before.away_since_ms),
            (vec!["stopped n2 3".to_owned()], 5)
        );
        machine.current_mut().progress.last_progress_ms = Some(6);
        assert_eq!(machine.stalls_before(), None, "a rank has made a step");
    }

    #[test]
    fn of_ranks_that_are_equally_far_none_is_named() {
        let level = [0, 1, 2, 3].map(|rank| (rank, StallCause::NoStep, Some(7)));
        check(&level, &["no_step - -"]);
    }

    #[test]
    fn a_rank_that_waits_for_a_node_that_is_away_or_for_one_that_has_exited_is_not_named() {
        let waits = [(0, StallCause::NoStep, Some(7))];
        let mut machine = run(&waits);
        machine.current_mut().nodes[1].away_since_ms = Some(1);
        assert_eq!(stalled_of(&machine), ["no_step - -"]);
        let mut machine = run(&waits);
        exit(&mut machine, 1, 1);
        assert_eq!(stalled_of(&machine), ["no_step - -"]);
    }

    #[test]
    fn the_last_rank_of_a_run_keeps_no_other_waiting() {
        let mut machine = run(&[(0, StallCause::NoStep, Some(7))]);
        for (node, local) in [(0, 1), (1, 0), (1, 1)] {
            exit(&mut machine, node, local);
        }
        assert_eq!(stalled_of(&machine), [] as [&str; 0]);
        let mut machine = run(&[(3, StallCause::NoStep, Some(7))]);
        let task = &mut machine.current_mut().nodes[1];
        task.ranks.remove(&0);
        machine.current_mut().nodes.remove(0);
        assert_eq!(stalled_of(&machine), ["no_step n2 3"], "a run of one rank");
    }

    fn exit(machine: &mut Machine, node: usize, local: u32) {
        let task = &mut machine.current_mut().nodes[node];
        let exit = RankExit {
            code: Some(0),
            ..RankExit::default()
        };
        task.ranks.entry(local).or_default().exit = Some(exit);
    }

    #[test]
    fn failed_attempts_are_counted_by_cause_and_node() {
        let mut machine = run(&[]);
        let failed = |node: Option<&str>, cause: Cause| {
            let mut attempt = machine.attempts[0].clone();
            attempt.ended_ms = Some(1);
            attempt.progress.failing_since_ms = Some(1);
            attempt.outcome = Some(Outcome {
                node: node.map(str::to_owned),
                ..Outcome::new(cause, "words")
            });
            attempt
        };
        let attempts = [
            failed(Some("n2"), Cause::OutOfMemory),
            failed(None, Cause::Mismatch),
            failed(Some("n2"), Cause::OutOfMemory),
        ];
        machine.attempts.extend(attempts);
        let counts: Vec<String> = machine
            .series()
            .iter()
            .filter(|(labels, _)| labels.metric_name() == Some("run_attempt_failures_total"))
            .map(|(labels, count)| format!("{labels} {count}"))
            .collect();
        assert_eq!(
            counts,
            [
                r#"run_attempt_failures_total{cause="mismatch", run="ddp-1"} 1"#,
                r#"run_attempt_failures_total{cause="out_of_memory", node="n2", run="ddp-1"} 2"#,
            ]
        );
    }

    #[test]
    fn a_run_that_ended_says_how_and_by_whom() {
        let mut machine = run(&[(3, StallCause::Stopped, None)]);
        machine.state = RunState::Failed;
        machine.outcome = Some(Outcome {
            cause: Cause::OutOfMemory,
            node: Some("n2".to_owned()),
            rank: Some(Rank(3)),
            message: "words".into(),
        });
        let names: Vec<String> = machine
            .series()
            .iter()
            .map(|(labels, _)| labels.to_string())
            .collect();
        assert_eq!(
            names,
            [
                r#"run_state{run="ddp-1", state="failed"}"#,
                r#"run_failed_attempts_total{run="ddp-1"}"#,
                r#"run_ended_info{cause="out_of_memory", node="n2", rank="3", run="ddp-1"}"#,
            ]
        );
    }
}
