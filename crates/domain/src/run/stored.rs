//! A run as the store keeps it: one JSON document.
//!
//! ```text
//!  Machine (decides) ──V1::from(&machine)──▶ V1 (borrows) ──serde──▶ JSON of the column `machine` and of backups
//!  Machine           ◀──Machine::from(v1)── V1 (owns)    ◀──serde──
//! ```
//! The JSON never changes its meaning: a field may be added with a default, and none is renamed or removed. A field of
//! [`Machine`] may be renamed or moved at any time: only the conversions here change.
//!
//! Values that name themselves on the wire, on disk and in the API alike have one type everywhere: ids, words such as a cause or a
//! phase, and records that are kept as they came ([`Spec`], [`Outcome`], [`RankExit`], [`Prepared`], [`Checkpoint`], changes of
//! knobs, [`Mesh`]).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::{Checkpoint, ResumedFrom, Storage};
use crate::run::knob::{Change, KnobAnswer, LiveChange, Pending};
use crate::run::mesh::Mesh;
use crate::run::provenance::Provenance;
use crate::run::spec::Spec;
use crate::run::state::{
    Attempt, AttemptKnobs, BandwidthCheck, Exclusion, Fault, Findings, Looked, Machine, NodeEnd, NodePhase,
    NodeTask, Outcome, Placement, Prepared, Progress, RankExit, RankTask, RunState, Stall, StopPlan, Wished,
};
use crate::run::unseen::Unseen;
use crate::time::TimestampMs;

/// The document's first version, and so far the only one.
#[derive(Debug, Serialize, Deserialize)]
pub struct V1<'a> {
    id: Cow<'a, RunId>,
    spec: Cow<'a, Spec>,
    wished: Wished,
    state: RunState,
    submitted_ms: TimestampMs,
    started_ms: Option<TimestampMs>,
    ended_ms: Option<TimestampMs>,
    outcome: Option<Cow<'a, Outcome>>,
    restart_at_ms: Option<TimestampMs>,
    attempts: Vec<AttemptV1<'a>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    checkpoints: Cow<'a, [Checkpoint]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<Cow<'a, StopPlan>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    watched: bool,
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    storage: Cow<'a, Storage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Cow<'a, Pending>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts_used: Option<AttemptNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_attempt: Option<AttemptNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored_ms: Option<TimestampMs>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AttemptV1<'a> {
    no: AttemptNo,
    cause: Cow<'a, str>,
    started_ms: TimestampMs,
    ended_ms: Option<TimestampMs>,
    outcome: Option<Cow<'a, Outcome>>,
    trouble: Option<Cow<'a, Outcome>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble_ms: Option<TimestampMs>,
    failing_since_ms: Option<TimestampMs>,
    next_action: u32,
    nodes: Vec<NodeTaskV1<'a>>,
    #[serde(default)]
    asked: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anew: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    placed_ms: Option<TimestampMs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_from: Option<Cow<'a, ResumedFrom>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    excluded: Cow<'a, [Exclusion]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    warnings: Cow<'a, [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<Cow<'a, BandwidthCheck>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provenance: Option<Cow<'a, Provenance>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_ms: Option<TimestampMs>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    knobs: Cow<'a, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Cow<'a, Change>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    answers: Cow<'a, [KnobAnswer]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<Cow<'a, Mesh>>,
    #[serde(default, skip_serializing_if = "Unseen::is_empty")]
    unseen: Cow<'a, Unseen>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    live: Cow<'a, [LiveChange]>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_alone: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct NodeTaskV1<'a> {
    node: Cow<'a, NodeName>,
    phase: NodePhase,
    away_since_ms: Option<TimestampMs>,
    prepared: Option<Cow<'a, Prepared>>,
    command: Cow<'a, str>,
    stop_told_ms: Option<u64>,
    first_rank: u32,
    ranks: BTreeMap<u32, RankTaskV1<'a>>,
    end: Option<Cow<'a, NodeEnd>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Cow<'a, Fault>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sees_first: Option<Looked>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct RankTaskV1<'a> {
    pid: Option<u32>,
    first_step: Option<u64>,
    exit: Option<Cow<'a, RankExit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stall: Option<Cow<'a, Stall>>,
}

// === to disk: nothing but short lists is copied, as a run of thousands of ranks is stored with each batch of events ===

fn borrowed<T: Clone>(value: Option<&T>) -> Option<Cow<'_, T>> {
    value.map(Cow::Borrowed)
}

impl<'a> From<&'a Machine> for V1<'a> {
    fn from(machine: &'a Machine) -> Self {
        Self {
            id: Cow::Borrowed(&machine.id),
            spec: Cow::Borrowed(&machine.spec),
            wished: machine.wished,
            state: machine.state,
            submitted_ms: machine.submitted_ms,
            started_ms: machine.started_ms,
            ended_ms: machine.ended_ms,
            outcome: borrowed(machine.outcome.as_ref()),
            restart_at_ms: machine.restart_at_ms,
            attempts: machine.attempts.iter().map(AttemptV1::from).collect(),
            checkpoints: (&machine.checkpoints).into(),
            stop: borrowed(machine.stop.as_ref()),
            watched: machine.watched,
            storage: Cow::Borrowed(&machine.storage),
            pending: borrowed(machine.pending.as_deref()),
            attempts_used: machine.attempts_used,
            unknown_attempt: machine.unknown_attempt,
            restored_ms: machine.restored_ms,
        }
    }
}

impl<'a> From<&'a Attempt> for AttemptV1<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        let Attempt {
            placement,
            progress,
            knobs,
            findings,
            ..
        } = attempt;
        Self {
            no: attempt.no,
            cause: (&attempt.cause).into(),
            started_ms: attempt.started_ms,
            ended_ms: attempt.ended_ms,
            outcome: borrowed(attempt.outcome.as_ref()),
            trouble: borrowed(progress.first_failure.as_ref()),
            trouble_ms: progress.first_failure_ms,
            failing_since_ms: progress.failing_since_ms,
            next_action: attempt.next_action,
            nodes: attempt.nodes.iter().map(NodeTaskV1::from).collect(),
            asked: attempt.requested_by_user,
            anew: placement.start_chosen_by_user,
            placed_ms: placement.placed_ms,
            resumed_from: borrowed(placement.resumed_from.as_ref()),
            excluded: (&placement.excluded).into(),
            warnings: (&findings.warnings).into(),
            bandwidth: borrowed(findings.bandwidth.as_ref()),
            provenance: borrowed(findings.provenance.as_ref()),
            step: progress.highest_step,
            moved_ms: progress.last_progress_ms,
            knobs: Cow::Borrowed(&knobs.values),
            change: borrowed(knobs.change.as_deref()),
            answers: (&knobs.answers).into(),
            mesh: borrowed(findings.mesh.as_ref()),
            unseen: Cow::Borrowed(&findings.unseen),
            live: (&knobs.live).into(),
            left_alone: attempt.left_alone,
        }
    }
}

impl<'a> From<&'a NodeTask> for NodeTaskV1<'a> {
    fn from(task: &'a NodeTask) -> Self {
        let rank = |(local, rank): (&u32, &'a RankTask)| {
            let rank = RankTaskV1 {
                pid: rank.pid,
                first_step: rank.first_step,
                exit: borrowed(rank.exit.as_ref()),
                stall: borrowed(rank.stall.as_ref()),
            };
            (*local, rank)
        };
        Self {
            node: Cow::Borrowed(&task.node),
            phase: task.phase,
            away_since_ms: task.away_since_ms,
            prepared: borrowed(task.prepared.as_ref()),
            command: (&task.command).into(),
            stop_told_ms: task.stop_told_ms,
            first_rank: task.first_rank,
            ranks: task.ranks.iter().map(rank).collect(),
            end: borrowed(task.end.as_ref()),
            fault: borrowed(task.fault.as_ref()),
            sees_first: task.sees_first,
        }
    }
}

// === from disk ===

fn owned<T: Clone>(value: Option<Cow<'_, T>>) -> Option<T> {
    value.map(Cow::into_owned)
}

impl From<V1<'_>> for Machine {
    fn from(stored: V1<'_>) -> Self {
        Self {
            id: stored.id.into_owned(),
            spec: stored.spec.into_owned(),
            wished: stored.wished,
            state: stored.state,
            submitted_ms: stored.submitted_ms,
            started_ms: stored.started_ms,
            ended_ms: stored.ended_ms,
            outcome: owned(stored.outcome),
            restart_at_ms: stored.restart_at_ms,
            attempts: stored.attempts.into_iter().map(Attempt::from).collect(),
            checkpoints: stored.checkpoints.into_owned(),
            stop: owned(stored.stop),
            watched: stored.watched,
            storage: stored.storage.into_owned(),
            pending: owned(stored.pending).map(Box::new),
            attempts_used: stored.attempts_used,
            unknown_attempt: stored.unknown_attempt,
            restored_ms: stored.restored_ms,
        }
    }
}

impl From<AttemptV1<'_>> for Attempt {
    fn from(stored: AttemptV1<'_>) -> Self {
        Self {
            no: stored.no,
            cause: stored.cause.into_owned(),
            requested_by_user: stored.asked,
            started_ms: stored.started_ms,
            ended_ms: stored.ended_ms,
            outcome: owned(stored.outcome),
            left_alone: stored.left_alone,
            next_action: stored.next_action,
            nodes: stored.nodes.into_iter().map(NodeTask::from).collect(),
            placement: Placement {
                placed_ms: stored.placed_ms,
                excluded: stored.excluded.into_owned(),
                resumed_from: owned(stored.resumed_from),
                start_chosen_by_user: stored.anew,
            },
            progress: Progress {
                highest_step: stored.step,
                last_progress_ms: stored.moved_ms,
                failing_since_ms: stored.failing_since_ms,
                first_failure: owned(stored.trouble),
                first_failure_ms: stored.trouble_ms,
            },
            knobs: AttemptKnobs {
                values: stored.knobs.into_owned(),
                change: owned(stored.change).map(Box::new),
                answers: stored.answers.into_owned(),
                live: stored.live.into_owned(),
            },
            findings: Findings {
                warnings: stored.warnings.into_owned(),
                bandwidth: owned(stored.bandwidth),
                provenance: owned(stored.provenance),
                mesh: owned(stored.mesh),
                unseen: stored.unseen.into_owned(),
            },
        }
    }
}

impl From<NodeTaskV1<'_>> for NodeTask {
    fn from(stored: NodeTaskV1<'_>) -> Self {
        let rank = |(local, rank): (u32, RankTaskV1<'_>)| {
            let rank = RankTask {
                pid: rank.pid,
                first_step: rank.first_step,
                exit: owned(rank.exit),
                stall: owned(rank.stall),
            };
            (local, rank)
        };
        Self {
            node: stored.node.into_owned(),
            phase: stored.phase,
            away_since_ms: stored.away_since_ms,
            prepared: owned(stored.prepared),
            command: stored.command.into_owned(),
            stop_told_ms: stored.stop_told_ms,
            first_rank: stored.first_rank,
            ranks: stored.ranks.into_iter().map(rank).collect(),
            end: owned(stored.end),
            fault: owned(stored.fault),
            sees_first: stored.sees_first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by revision 365a0b7, when the decision state itself was serialised: every field set, with words of a newer release,
    /// and a run that has nothing but what a run always has.
    const RECORDED: &str = include_str!("../../testdata/run/stored-v1.json");

    #[test]
    fn recorded_documents_are_written_as_they_were_byte_for_byte() {
        let stored: Vec<V1<'_>> = serde_json::from_str(RECORDED).expect("documents of this version");
        let machines: Vec<Machine> = stored.into_iter().map(Machine::from).collect();
        let written: Vec<V1<'_>> = machines.iter().map(V1::from).collect();
        let json = serde_json::to_string_pretty(&written).expect("plain data");
        assert_eq!(json + "\n", RECORDED);
    }

    #[test]
    fn writing_borrows_and_copies_nothing_of_a_rank() {
        let stored: Vec<V1<'_>> = serde_json::from_str(RECORDED).expect("documents of this version");
        let machine = Machine::from(stored.into_iter().next().expect("a document"));
        let written = V1::from(&machine);
        let rank = &written.attempts[0].nodes[0].ranks[&0];
        assert!(matches!(rank.exit, Some(Cow::Borrowed(_))));
        assert!(matches!(
            written.attempts[0].nodes[0].prepared,
            Some(Cow::Borrowed(_))
        ));
    }
}
