//! A run as it is stored: one JSON document.
//!
//! ```text
//!  Machine (decides) ──V1::from(&machine)──▶ V1 (borrows) ──serde──▶ JSON of the column `machine` and of backups
//!  Machine           ◀──Machine::from(v1)── V1 (owns)    ◀──serde──
//! ```
//! The JSON never changes its meaning: a field may be added with a default, but none is renamed or removed. A field of [`Machine`] may be
//! renamed, or moved between the parts of an attempt, at any time: then only this file changes. This file repeats each type of the state
//! with the names and defaults of its JSON; all parts of an attempt are fields of one object.
//!
//! Values that have the same form on the wire, on disk and in the API have one type everywhere: ids, words such as a cause or a phase, and
//! records that are stored as received ([`Spec`], [`Outcome`], [`RankExit`], [`Prepared`], [`Checkpoint`], changes of knobs, [`Mesh`]).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ident::{AttemptNo, NodeName, RunId};
use crate::run::checkpoint::{Checkpoint, ResumedFrom, Storage};
use crate::run::knob::{Change, InPlaceChange, KnobAnswer, Pending};
use crate::run::mesh::Mesh;
use crate::run::provenance::Provenance;
use crate::run::spec::Spec;
use crate::run::state::{
    Attempt, AttemptKnobs, BandwidthCheck, DesiredState, Divergence, Exclusion, Fault, Findings, Looked,
    Machine, NodeEnd, NodePhase, NodeTask, Outcome, Placement, Prepared, Progress, RankExit, RankTask,
    RunState, Stall, StopPlan,
};
use crate::run::unobserved::Unobserved;
use crate::time::TimestampMs;

/// The first version of the document, and so far the only one. Writing it copies nothing of the run.
#[derive(Debug)]
pub struct V1<'a, T: Clone = Machine>(Cow<'a, T>);

impl<'a, T: Clone> From<&'a T> for V1<'a, T> {
    fn from(state: &'a T) -> Self {
        Self(Cow::Borrowed(state))
    }
}

impl From<V1<'_>> for Machine {
    fn from(stored: V1<'_>) -> Self {
        stored.0.into_owned()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Machine")]
struct MachineV1 {
    id: RunId,
    spec: Spec,
    #[serde(rename = "wished")]
    desired: DesiredState,
    state: RunState,
    submitted_ms: TimestampMs,
    started_ms: Option<TimestampMs>,
    ended_ms: Option<TimestampMs>,
    outcome: Option<Outcome>,
    restart_at_ms: Option<TimestampMs>,
    #[serde(with = "list")]
    attempts: Vec<Attempt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    checkpoints: Vec<Checkpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<StopPlan>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    watched: bool,
    #[serde(default, skip_serializing_if = "Storage::is_empty")]
    storage: Storage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Box<Pending>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts_used: Option<AttemptNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_attempt: Option<AttemptNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored_ms: Option<TimestampMs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_since_ms: Option<TimestampMs>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Attempt")]
struct AttemptV1 {
    no: AttemptNo,
    cause: String,
    #[serde(default, rename = "asked")]
    requested_by_user: bool,
    started_ms: TimestampMs,
    ended_ms: Option<TimestampMs>,
    outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_alone: bool,
    next_action: u32,
    #[serde(with = "list")]
    nodes: Vec<NodeTask>,
    #[serde(flatten, with = "PlacementV1")]
    placement: Placement,
    #[serde(flatten, with = "ProgressV1")]
    progress: Progress,
    #[serde(flatten, with = "AttemptKnobsV1")]
    knobs: AttemptKnobs,
    #[serde(flatten, with = "FindingsV1")]
    findings: Findings,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Placement")]
struct PlacementV1 {
    #[serde(skip_serializing_if = "Option::is_none")]
    placed_ms: Option<TimestampMs>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    excluded: Vec<Exclusion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_from: Option<ResumedFrom>,
    #[serde(default, rename = "anew", skip_serializing_if = "std::ops::Not::not")]
    start_chosen_by_user: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Progress")]
struct ProgressV1 {
    #[serde(rename = "step", skip_serializing_if = "Option::is_none")]
    highest_step: Option<u64>,
    #[serde(rename = "moved_ms", skip_serializing_if = "Option::is_none")]
    last_progress_ms: Option<TimestampMs>,
    failing_since_ms: Option<TimestampMs>,
    #[serde(rename = "trouble")]
    first_failure: Option<Outcome>,
    #[serde(rename = "trouble_ms", skip_serializing_if = "Option::is_none")]
    first_failure_ms: Option<TimestampMs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    divergence: Option<Divergence>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AttemptKnobs")]
struct AttemptKnobsV1 {
    #[serde(default, rename = "knobs", skip_serializing_if = "BTreeMap::is_empty")]
    values: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Box<Change>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    answers: Vec<KnobAnswer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    live: Vec<InPlaceChange>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Findings")]
struct FindingsV1 {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<BandwidthCheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provenance: Option<Provenance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<Mesh>,
    #[serde(default, rename = "unseen", skip_serializing_if = "Unobserved::is_empty")]
    unobserved: Unobserved,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "NodeTask")]
struct NodeTaskV1 {
    node: NodeName,
    phase: NodePhase,
    away_since_ms: Option<TimestampMs>,
    prepared: Option<Prepared>,
    command: String,
    #[serde(rename = "stop_told_ms")]
    stop_grace_sent_ms: Option<u64>,
    first_rank: u32,
    #[serde(with = "by_number")]
    ranks: BTreeMap<u32, RankTask>,
    end: Option<NodeEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sees_first: Option<Looked>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RankTask")]
struct RankTaskV1 {
    pid: Option<u32>,
    first_step: Option<u64>,
    exit: Option<RankExit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stall: Option<Stall>,
}

macro_rules! stored_as {
    ($($state:ident as $v1:ident),*) => {$(
        impl Serialize for V1<'_, $state> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $v1::serialize(&self.0, serializer)
            }
        }

        impl<'de> Deserialize<'de> for V1<'_, $state> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $v1::deserialize(deserializer).map(|state| Self(Cow::Owned(state)))
            }
        }
    )*};
}
stored_as!(
    Machine as MachineV1,
    Attempt as AttemptV1,
    NodeTask as NodeTaskV1,
    RankTask as RankTaskV1
);

mod list {
    use super::{Deserialize, Deserializer, Serialize, Serializer, V1};

    pub(super) fn serialize<T: Clone, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error>
    where
        for<'a> V1<'a, T>: Serialize,
    {
        serializer.collect_seq(list.iter().map(V1::from))
    }

    pub(super) fn deserialize<'de, T: Clone + 'static, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error>
    where
        V1<'static, T>: Deserialize<'de>,
    {
        let list: Vec<V1<'static, T>> = Deserialize::deserialize(deserializer)?;
        Ok(list.into_iter().map(|value| value.0.into_owned()).collect())
    }
}

mod by_number {
    use super::{BTreeMap, Deserialize, Deserializer, RankTask, Serializer, V1};

    pub(super) fn serialize<S: Serializer>(
        ranks: &BTreeMap<u32, RankTask>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(ranks.iter().map(|(local, rank)| (local, V1::from(rank))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u32, RankTask>, D::Error> {
        let ranks: BTreeMap<u32, V1<'static, RankTask>> = Deserialize::deserialize(deserializer)?;
        let owned = ranks
            .into_iter()
            .map(|(local, rank)| (local, rank.0.into_owned()));
        Ok(owned.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Written by revision 365a0b7, when the decision state itself was serialised: a run with every field set, with words of a newer
    /// release, and a run with only the required fields.
    const RECORDED: &str = include_str!("../../testdata/run/stored-v1.json");

    #[test]
    fn recorded_documents_are_read_and_written_as_they_were() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).expect("JSON");
        for document in recorded {
            let text = document.to_string();
            let from_text: V1<'_> = serde_json::from_str(&text).expect("a document of this version");
            let from_value: V1<'_> = serde_json::from_value(document.clone()).expect("the same");
            let machine = Machine::from(from_text);
            assert_eq!(machine, Machine::from(from_value));
            let written = serde_json::to_value(V1::from(&machine)).expect("plain data");
            assert_eq!(written, document);
            assert_eq!(written.to_string(), text);
        }
    }

    #[test]
    fn the_owner_is_stored() {
        let (mut machine, _) = Machine::submit(RunId::new("r").expect("an id"), Spec::default(), 0);
        machine.owner = Some("vision team".to_owned());
        machine.submitted_by = Some("token-1".to_owned());
        let text = serde_json::to_string(&V1::from(&machine)).expect("plain data");
        let stored: V1<'_> = serde_json::from_str(&text).expect("a document of this version");
        assert_eq!(Machine::from(stored), machine);
    }
}
