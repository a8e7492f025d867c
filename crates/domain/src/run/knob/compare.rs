//! Compares two attempts: their settings, what they ran, and their performance.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::AttemptNo;
use crate::run::knob::in_place::{InPlaceChange, InPlaceState};
use crate::run::knob::performance::Trace;
use crate::run::knob::place::spec_with;
use crate::run::knob::verdict::Verdict;
use crate::run::state::{Attempt, Machine};

/// Maximum number of shown differences. Two environments built from scratch may differ in hundreds of packages.
const DIFFERENCES_MAX: usize = 200;

/// A comparison of two attempts, of one run or of two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The first attempt.
    pub a: ComparedAttempt,
    /// The second attempt.
    pub b: ComparedAttempt,
    /// The differences, by name.
    pub differences: Vec<Difference>,
    /// True if there are more differences.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Comparison of performance, with `a` as before and `b` as after.
    pub figures: Verdict,
}

/// One of the compared attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedAttempt {
    /// Id of the run.
    pub run: String,
    /// Number of the attempt.
    pub attempt: AttemptNo,
    /// How it ended; `under way` if it has not ended.
    pub outcome: String,
}

/// One difference. A side that lacks the value is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Difference {
    /// Name of the value: `spec.args.3`, `knobs.lr_scale`, `packages.numpy`, `env.NCCL_DEBUG`, …
    pub what: String,
    /// Value in the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// Value in the second attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
}

/// One of the two attempts to compare.
#[derive(Debug, Clone, Copy)]
pub struct ComparisonInput<'a> {
    /// The run of the attempt.
    pub run: &'a Machine,
    /// The attempt.
    pub attempt: &'a Attempt,
    /// The data from its series.
    pub trace: &'a Trace,
}

/// Compares two attempts, with the data read from their series.
#[must_use]
pub fn compare(a: &ComparisonInput<'_>, b: &ComparisonInput<'_>) -> Comparison {
    let (facts_a, facts_b) = (facts(a.run, a.attempt), facts(b.run, b.attempt));
    let names: BTreeSet<&String> = facts_a.keys().chain(facts_b.keys()).collect();
    let differs = |name: &&&String| facts_a.get(**name) != facts_b.get(**name);
    let mut differences: Vec<Difference> = names
        .iter()
        .filter(differs)
        .map(|name| Difference {
            what: (*name).clone(),
            a: facts_a.get(*name).cloned(),
            b: facts_b.get(*name).cloned(),
        })
        .collect();
    let truncated = differences.len() > DIFFERENCES_MAX;
    differences.truncate(DIFFERENCES_MAX);
    let mut figures = Verdict::measured(a.trace, b.trace);
    figures.summary = figures.evidence();
    Comparison {
        a: compared_attempt(a.run, a.attempt),
        b: compared_attempt(b.run, b.attempt),
        differences,
        truncated,
        figures,
    }
}

fn compared_attempt(machine: &Machine, attempt: &Attempt) -> ComparedAttempt {
    let outcome = attempt.outcome.as_ref();
    ComparedAttempt {
        run: machine.id.to_string(),
        attempt: attempt.no,
        outcome: outcome.map_or_else(|| "under way".into(), |outcome| outcome.cause.to_string()),
    }
}

/// Returns everything that could differ, by a name that says where it comes from.
fn facts(machine: &Machine, attempt: &Attempt) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let at_launch = attempt.knobs_at_launch();
    let spec = spec_with(&machine.spec, &at_launch).shown();
    if let Ok(Value::Object(fields)) = serde_json::to_value(&spec) {
        for (name, value) in fields {
            let prefix = if name == "env" {
                name
            } else {
                format!("spec.{name}")
            };
            flatten(&prefix, &value, &mut facts);
        }
    }
    for (name, value) in &at_launch {
        facts.insert(format!("knobs.{name}"), value.clone());
    }
    // Nodes get no labels, so they are not in the spec above.
    let labels = machine.spec.labels.iter();
    facts.extend(labels.map(|(key, value)| (format!("labels.{key}"), value.clone())));
    for live in attempt.knobs.live.iter().filter(|live| live.is_made()) {
        turned_in_place(live, &mut facts);
    }
    let nodes: Vec<&str> = attempt.nodes.iter().map(|task| task.node.as_str()).collect();
    facts.insert("nodes".into(), nodes.join(", "));
    let world: usize = attempt.nodes.iter().map(|task| task.ranks.len()).sum();
    facts.insert("world_size".into(), world.to_string());
    if let Some(from) = &attempt.placement.resumed_from {
        facts.insert("resumed_from".into(), from.path.clone());
    }
    if let Some(found) = attempt.nodes.first().and_then(|task| task.prepared.as_ref()) {
        let versions = [
            ("python", &found.python_version),
            ("interpreter", &found.python),
            ("torch", &found.torch_version),
            ("cuda", &found.cuda),
            ("nccl", &found.nccl),
            ("driver", &found.driver),
            ("script_sha256", &found.script_sha256),
        ];
        facts.extend(versions.map(|(name, value)| (name.to_owned(), value.clone())));
    }
    if let Some(ran) = &attempt.findings.provenance {
        let packages = ran.packages.iter().filter_map(|package| package.split_once("=="));
        facts.extend(packages.map(|(name, version)| (format!("packages.{name}"), version.to_owned())));
        let others = [
            ("commit", &ran.commit),
            ("seed", &ran.seed),
            ("image", &ran.image_digest),
        ];
        facts.extend(
            others
                .into_iter()
                .filter_map(|(name, value)| Some((name.into(), value.clone()?))),
        );
    }
    facts
}

/// Appends a change in place to the value: `as the script has it, then 1200 from step 340`.
fn turned_in_place(live: &InPlaceChange, facts: &mut BTreeMap<String, String>) {
    let script = || "as the script has it".to_owned();
    let at = live
        .step
        .map_or("its start".into(), |step| format!("step {step}"));
    let count = live.ranks.len();
    let ranks = match live.state {
        InPlaceState::Taken => String::new(),
        _ => format!(" in {count} of its ranks"),
    };
    for diff in &live.change.set {
        let before = facts.entry(format!("knobs.{}", diff.knob)).or_insert_with(script);
        let value = diff.new.clone().unwrap_or_else(script);
        *before += &format!(", then {value} from {at}{ranks}");
    }
}

fn flatten(name: &str, value: &Value, facts: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                flatten(&format!("{name}.{field}"), value, facts);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                flatten(&format!("{name}.{at}"), item, facts);
            }
        }
        Value::Null => {}
        Value::String(text) => {
            facts.insert(name.into(), text.clone());
        }
        other => {
            facts.insert(name.into(), other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::RunId;
    use crate::run::spec::Spec;

    fn run(set: &str, team: &str) -> Machine {
        let spec = Spec {
            recipe: Some("ddp".into()),
            set: BTreeMap::from([("lr".to_owned(), set.to_owned())]),
            labels: BTreeMap::from([("team".to_owned(), team.to_owned())]),
            ..Spec::default()
        };
        Machine::submit(RunId::new("r").expect("an id"), spec, 0).0
    }

    fn names(a: &Machine, b: &Machine) -> Vec<String> {
        let trace = Trace::default();
        let [a, b] = [a, b].map(|run| ComparisonInput {
            run,
            attempt: run.current(),
            trace: &trace,
        });
        let differences = compare(&a, &b).differences.into_iter();
        differences.map(|difference| difference.what).collect()
    }

    #[test]
    fn settings_and_labels_that_differ_are_named() {
        let first = run("1", "vision");
        assert_eq!(names(&first, &first), [""; 0]);
        assert_eq!(names(&first, &run("2", "speech")), ["labels.team", "spec.set.lr"]);
    }
}
