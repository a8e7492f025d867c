//! `GET /api/runs/{id}/knobs`, `POST …/preview`, `POST …/exclude`: the knobs of a run, what a change would do, and the exclusion of a node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApplyKnobs, RevertKnobs};
use crate::ident::AttemptNo;
use crate::run::knob::{Change, ChangeId, How, KNOBS, Knob, current, place};
use crate::run::spec::Spec;
use crate::run::state::Machine;

/// Knobs of a run, and the changes that can be reverted now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KnobsView {
    /// All knobs, always in the same order.
    pub knobs: Vec<KnobView>,
    /// Changes that can be reverted now, oldest first.
    pub revertible: Vec<ChangeId>,
}

/// One knob of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KnobView {
    /// Name of the knob.
    pub name: String,
    /// What the knob does, as text.
    pub what: String,
    /// Valid values, as text.
    pub values: String,
    /// All valid values, if they are a few words. Otherwise empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Value of the current attempt. Absent if the script's own value applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// How the knob is applied. Absent if the run cannot change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub how: Option<How>,
    /// Why the run cannot change the knob.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// True if running ranks can change it in place. Other knobs need a new attempt.
    pub live: bool,
}

/// Request body of `POST /api/runs/{id}/exclude`. Excludes a node from a run: the attempt ends, and the run continues on other nodes from its
/// last complete checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExcludeNode {
    /// Node of the current attempt.
    pub node: String,
    /// Number of the attempt that the client expects to be current. If it is not, nothing happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<AttemptNo>,
}

/// Request body of `POST /api/runs/{id}/preview`: the request that would follow. Nothing is changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewChange {
    /// Body of `POST /api/runs/{id}/apply`.
    Apply(ApplyKnobs),
    /// Body of `POST /api/runs/{id}/revert`.
    Revert(RevertKnobs),
    /// Body of `POST /api/runs/{id}/exclude`.
    Exclude(ExcludeNode),
}

/// What a change of a run would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChangePreview {
    /// The change. Absent if the knobs already have these values, or if the change is already in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// True if the ranks apply the change while they train. False if it needs a new attempt.
    pub in_place: bool,
    /// Cost of the change: attempt, ranks, checkpoint and steps that are trained again. Empty without a change.
    pub cost: String,
    /// How to undo the change, in one sentence.
    pub undo: String,
    /// Maximum number of steps that must be trained again. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<u64>,
    /// Number of ranks that the change affects.
    pub ranks: u32,
}

impl From<&Machine> for KnobsView {
    fn from(run: &Machine) -> Self {
        let spec = run.spec.shown();
        Self {
            knobs: KNOBS.iter().map(|knob| KnobView::of(knob, run, &spec)).collect(),
            revertible: run.revertible_changes(),
        }
    }
}

impl KnobView {
    /// `spec` is the run's specification as it may be shown: a knob may be a variable whose name looks like a secret.
    fn of(knob: &Knob, run: &Machine, spec: &Spec) -> Self {
        let (how, problem) = match place(&run.spec, knob.name) {
            Ok(how) => (Some(how), String::new()),
            Err(problem) => (None, problem),
        };
        let choices = knob.values.choices().iter();
        Self {
            name: knob.name.to_owned(),
            what: knob.what.to_owned(),
            values: knob.values.words(),
            choices: choices.map(|&word| word.to_owned()).collect(),
            value: current(spec, &run.current().knobs.values, knob.name),
            live: knob.live && how == Some(How::Injected),
            how,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use serde_json::json;

    use super::*;
    use crate::ident::RunId;

    #[test]
    fn a_knob_does_not_show_a_variable_whose_name_looks_like_a_secret() {
        let spec: Spec = serde_json::from_value(json!({
            "script": "/srv/train.py",
            "env": {"API_TOKEN": "hf_secret", "WORKERS": "4"},
            "knobs": {"num_workers": {"env": "WORKERS"}, "grad_clip_norm": {"env": "API_TOKEN"}},
        }))
        .unwrap();
        let (run, _) = Machine::submit(RunId::new("r").unwrap(), spec, 0);
        let view = KnobsView::from(&run);
        let value = |name: &str| {
            let knob = view.knobs.iter().find(|knob| knob.name == name).unwrap();
            knob.value.clone()
        };
        assert_eq!(value("num_workers").as_deref(), Some("4"));
        assert!(!serde_json::to_string(&view).unwrap().contains("hf_secret"));
        assert!(value("grad_clip_norm").is_some());
    }
}
