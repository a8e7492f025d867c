//! Two attempts side by side: what they were asked, what they ran, and how that went.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ident::AttemptNo;
use crate::run::knob::figures::Trace;
use crate::run::knob::live::{LiveChange, LiveState};
use crate::run::knob::place::spec_with;
use crate::run::knob::verdict::Verdict;
use crate::run::state::{Attempt, Machine};

/// Differences shown; two environments built from scratch may differ in hundreds of packages.
const DIFFERENCES_MAX: usize = 200;

/// Two attempts, of one run or of two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The first.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// What differs, by name.
    pub differences: Vec<Difference>,
    /// There are more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// How it went, `a` as before and `b` as after.
    pub figures: Verdict,
}

/// Which attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// The run.
    pub run: String,
    /// The attempt.
    pub attempt: AttemptNo,
    /// How it ended; `under way` when it has not.
    pub outcome: String,
}

/// One thing that differs; a side that lacks it is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Difference {
    /// `spec.args.3`, `knobs.lr_scale`, `packages.numpy`, `env.NCCL_DEBUG`, …
    pub what: String,
    /// In the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// In the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
}

/// One of the two attempts that are compared.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    /// Its run.
    pub run: &'a Machine,
    /// The attempt.
    pub attempt: &'a Attempt,
    /// What its series say.
    pub trace: &'a Trace,
}

/// Compares two attempts with what was read of their series.
#[must_use]
pub fn compare(a: &Compared<'_>, b: &Compared<'_>) -> Comparison {
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
        a: side(a.run, a.attempt),
        b: side(b.run, b.attempt),
        differences,
        truncated,
        figures,
    }
}

fn side(machine: &Machine, attempt: &Attempt) -> Side {
    let outcome = attempt.outcome.as_ref();
    Side {
        run: machine.id.to_string(),
        attempt: attempt.no,
        outcome: outcome.map_or_else(|| "under way".into(), |outcome| outcome.cause.to_string()),
    }
}

/// Everything that could differ, by a name that says where it is from.
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

/// `as the script has it, then 1200 from step 340`.
fn turned_in_place(live: &LiveChange, facts: &mut BTreeMap<String, String>) {
    let script = || "as the script has it".to_owned();
    let at = live
        .step
        .map_or("its start".into(), |step| format!("step {step}"));
    let count = live.ranks.len();
    let ranks = match live.state {
        LiveState::Taken => String::new(),
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
