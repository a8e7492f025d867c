//! Checks a specification that is being written, and converts it between JSON and TOML. Nothing is started or stored.
//!
//! ```text
//! JSON ─ json::read ─┐                        ┌▶ problems, each with its field (TOML: and its position)
//!                    ├▶ Spec ─ draft_problems ┼▶ the other form: TOML of JSON, JSON of TOML
//! TOML ─ text::read ─┘                        └▶ the settings of the program, the memory plan
//! ```
//! No answer contains the value of a secret.

mod json;
mod memory;
mod settings;
mod text;

use domain::api::runs::{CheckedSpec, PlacementPreview, SpecDraft, SpecProblem};
use domain::run::secret::{REDACTED, SecretValue};
use domain::run::spec::{FieldError, Spec};

pub(crate) use memory::{NPROC_WITHOUT_GPUS, SmallestGpu};

/// Maximum number of errors of one answer.
const PROBLEMS_MAX: usize = 100;

/// What could be read of a draft.
struct Read {
    /// The fields that can be read.
    spec: Spec,
    /// The fields that cannot be read, and other errors of the text.
    problems: Vec<SpecProblem>,
}

/// The cluster for which a draft is checked.
pub(crate) struct Cluster<'a> {
    /// The GPU that the memory plan is compared with.
    pub(crate) smallest_gpu: Option<SmallestGpu>,
    /// Returns where a run would be placed now.
    pub(crate) place: &'a dyn Fn(&Spec) -> PlacementPreview,
}

/// Checks a draft. Returns an error unless the draft has one form.
pub(crate) fn check(draft: SpecDraft, cluster: &Cluster<'_>) -> Result<CheckedSpec, &'static str> {
    let mut checked = check_form(draft, cluster)?;
    // A field that cannot be read may be the number of nodes.
    if !checked.problems.is_empty() {
        checked.placement = None;
    }
    Ok(checked)
}

fn check_form(draft: SpecDraft, cluster: &Cluster<'_>) -> Result<CheckedSpec, &'static str> {
    match (draft.spec, draft.toml) {
        (Some(document), None) => {
            let read = json::read(&document);
            let toml = text::write(document);
            let mut checked = checked(&read.spec, cluster);
            checked.problems = problems(read, draft.copied);
            match toml {
                Ok(toml) => checked.toml = Some(toml),
                Err(message) => checked.problems.push(at_field(String::new(), message)),
            }
            Ok(checked)
        }
        (None, Some(toml)) => {
            let (read, positions) = match text::read(&toml) {
                Ok(read) => read,
                Err(problem) => {
                    return Ok(CheckedSpec {
                        problems: vec![problem],
                        ..CheckedSpec::default()
                    });
                }
            };
            let mut checked = checked(&read.spec, cluster);
            let visible = text::visible_secrets(&read.spec);
            // The form would lose what cannot be read, and these values.
            let is_whole = read.problems.is_empty() && visible.is_empty();
            checked.spec = is_whole.then(|| without_secrets(read.spec.clone()));
            let found = visible.into_iter().chain(problems(read, draft.copied));
            checked.problems = found
                .take(PROBLEMS_MAX)
                .map(|problem| positions.place(problem))
                .collect();
            Ok(checked)
        }
        _ => Err("give either spec or toml"),
    }
}

/// Returns the part of the result that is the same for both forms.
fn checked(spec: &Spec, cluster: &Cluster<'_>) -> CheckedSpec {
    let memory = memory::forecast(spec, cluster.smallest_gpu);
    CheckedSpec {
        hints: spec.hints(),
        settings: settings::of_program(spec),
        memory_unknown: memory.as_ref().err().cloned(),
        memory: memory.ok(),
        placement: Some((cluster.place)(spec)),
        ..CheckedSpec::default()
    }
}

/// Returns the errors of reading, then those of the fields that could be read.
fn problems(read: Read, copied: bool) -> Vec<SpecProblem> {
    let mut problems = read.problems;
    problems.truncate(PROBLEMS_MAX);
    let is_unread = |error: &FieldError| {
        let field = error.field.split('.').next().unwrap_or_default();
        problems.iter().any(|problem| problem.field == field)
    };
    let found = read.spec.draft_problems(copied).into_iter();
    let found = found.filter(|error| !is_unread(error)).take(PROBLEMS_MAX);
    let found: Vec<SpecProblem> = found.map(|error| at_field(error.field, error.message)).collect();
    problems.extend(found);
    problems
}

fn at_field(field: String, message: String) -> SpecProblem {
    SpecProblem {
        field,
        message,
        ..SpecProblem::default()
    }
}

fn without_secrets(mut spec: Spec) -> Spec {
    for value in spec.secrets.values_mut() {
        *value = SecretValue::new(REDACTED);
    }
    spec
}

/// Returns an error of serde without the list of all fields, which is longer than a screen.
fn shortened(message: &str) -> String {
    let is_long = message.starts_with("unknown field");
    let short = message.split(", expected one of").next().filter(|_| is_long);
    short.unwrap_or(message).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks a draft for a cluster in which each run would wait, with the number of nodes as the reason.
    fn check_with(draft: SpecDraft, smallest_gpu: Option<SmallestGpu>) -> CheckedSpec {
        let place = |spec: &Spec| PlacementPreview {
            waits: Some(format!("{} nodes", spec.node_count())),
            ..PlacementPreview::default()
        };
        let cluster = Cluster {
            smallest_gpu,
            place: &place,
        };
        check(draft, &cluster).expect("one form")
    }

    fn check_json(spec: Value) -> CheckedSpec {
        let draft = SpecDraft {
            spec: Some(spec),
            ..SpecDraft::default()
        };
        check_with(draft, None)
    }

    fn check_toml(toml: &str) -> CheckedSpec {
        let draft = SpecDraft {
            toml: Some(toml.to_owned()),
            ..SpecDraft::default()
        };
        check_with(draft, None)
    }

    /// Returns `field line:column` of each problem.
    fn places(checked: &CheckedSpec) -> Vec<String> {
        let place = |problem: &SpecProblem| {
            let at = problem.line.zip(problem.column);
            let at = at.map_or_else(String::new, |(line, column)| format!(" {line}:{column}"));
            format!("{}{at}", problem.field)
        };
        checked.problems.iter().map(place).collect()
    }

    #[test]
    fn each_wrong_field_is_named_and_the_others_are_still_checked() {
        let checked = check_json(json!({
            "recipe": "ddp", "nodes": "two", "nodez": 2, "git": {"repository": "", "revision": "main"}, "max_restarts": 5000,
        }));
        let mut fields = places(&checked);
        fields.sort_unstable();
        assert_eq!(fields, ["git.repository", "max_restarts", "nodes", "nodez"]);
        let unknown = checked.problems.iter().find(|problem| problem.field == "nodez");
        assert_eq!(
            unknown.map(|problem| problem.message.as_str()),
            Some("unknown field `nodez`")
        );
        let toml = checked.toml.expect("a text also of a wrong specification");
        assert!(
            toml.contains("nodes = \"two\"") && toml.contains("[git]"),
            "{toml}"
        );
    }

    #[test]
    fn both_forms_describe_the_same_run() {
        let document = json!({
            "name": "vision", "recipe": "ddp", "args": [], "nodes": 2, "max_restarts": 0, "backend": "auto",
            "env": {"NCCL_DEBUG": "INFO", "TEXT": "two\nlines \"quoted\""}, "set": {"lr": "1e-3"},
            "container": {"image": "team/train:24", "mounts": ["/data:/data:ro"]},
            "keep_checkpoints": {"last": 3, "best": true}, "preflight_bandwidth": {"seconds": 0.5},
            "knobs": {"num_workers": {"env": "WORKERS"}}, "labels": {"team.name": "vision"}, "workdir": null,
        });
        let toml = check_json(document.clone()).toml.expect("a text");
        assert!(
            toml.starts_with("name = \"vision\"\nrecipe = \"ddp\"\n"),
            "{toml}"
        );
        assert!(
            !toml.contains("workdir") && !toml.contains("backend") && !toml.contains("args"),
            "{toml}"
        );
        let back = check_toml(&toml);
        assert_eq!(places(&back), [""; 0], "{toml}");
        let expected: Spec = serde_json::from_value(document).expect("a specification");
        assert_eq!(back.spec, Some(expected));
    }

    #[test]
    fn errors_in_text_have_a_position() {
        for (toml, line, column) in [
            ("recipe = \"ddp\"\nnodes = ]\n", 2, None),
            ("recipe = \"ddp\"\n  nodez = 2\n", 2, Some(3)),
            ("recipe = \"ddp\"\nnodes = \"two\"\n", 2, Some(9)),
        ] {
            let checked = check_toml(toml);
            let problem = checked.problems.first().expect("an error");
            assert_eq!(problem.line, Some(line), "{toml}: {problem:?}");
            assert!(
                column.is_none() || problem.column == column,
                "{toml}: {problem:?}"
            );
            assert!(
                checked.spec.is_none() && !problem.message.contains("expected one of"),
                "{problem:?}"
            );
        }
        let checked = check_toml(
            "recipe = \"ddp\"\nnodes = 0\n\n[env]\nOK = \"1\"\nRANK = \"0\"\n[container]\nimage = \"\"\n",
        );
        assert_eq!(
            places(&checked),
            ["nodes 2:1", "env.RANK 6:1", "container.image 8:1"]
        );
        assert!(checked.spec.is_some(), "the form can show what can be read");
        assert_eq!(places(&check_toml("nodes = 1\n")), ["recipe"]);
    }

    #[test]
    fn no_answer_contains_the_value_of_a_secret() {
        let secret = "hf_0123456789";
        let given = check_json(json!({"recipe": "ddp", "secrets": {"HF_TOKEN": secret}}));
        assert_eq!(places(&given), [""; 0]);
        let toml = given.toml.expect("a text");
        assert!(
            toml.contains("HF_TOKEN = \"[redacted]\"") && !toml.contains(secret),
            "{toml}"
        );
        assert_eq!(
            places(&check_toml(&toml)),
            [""; 0],
            "a placeholder is enough for a draft"
        );
        let typed = check_toml(&format!("recipe = \"ddp\"\n[secrets]\nHF_TOKEN = \"{secret}\"\n"));
        assert_eq!(places(&typed), ["secrets.HF_TOKEN 3:1"]);
        let answer = serde_json::to_string(&typed).expect("JSON");
        assert!(!answer.contains(secret), "{answer}");
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_repeated() {
        let typed = check_toml("recipe = \"ddp\"\n[secrets]\nHF_TOKEN = 1234567890\n");
        assert!(
            !typed.problems[0].message.contains("1234567890"),
            "{:?}",
            typed.problems
        );
        let typed = check_json(json!({"recipe": "ddp", "secrets": {"HF_TOKEN": 1_234_567_890}}));
        let answer = serde_json::to_string(&typed).expect("JSON");
        assert!(!answer.contains("1234567890"), "{answer}");
    }

    #[test]
    fn a_program_has_its_settings_and_knobs() {
        let checked = check_json(json!({"recipe": "fsdp"}));
        let setting = |name: &str| checked.settings.iter().find(|setting| setting.name == name);
        assert_eq!(checked.settings[0].name, "steps");
        assert_eq!(
            setting("sharding").expect("a setting").choices,
            ["full", "grad-op"]
        );
        let batch = setting("micro_batch").expect("a knob");
        assert!(
            batch.is_knob && batch.default.as_deref() == Some("8"),
            "{batch:?}"
        );
        assert!(setting("batch-size").is_none(), "it is the knob");
        let script = check_json(json!({"script": "/srv/train.py"}));
        assert!(script.settings.iter().all(|setting| setting.is_knob) && !script.settings.is_empty());
    }

    #[test]
    fn the_memory_plan_is_there_or_says_why_not() {
        let gpu = SmallestGpu {
            memory_bytes: 80 << 30,
            per_node: 8,
        };
        let draft = |spec| SpecDraft {
            spec: Some(spec),
            ..SpecDraft::default()
        };
        let checked = check_with(draft(json!({"recipe": "fsdp", "nodes": 2})), Some(gpu));
        let memory = checked.memory.expect("a plan");
        assert_eq!(memory.gpus, 16);
        assert!(
            memory.fit.is_some() && memory.parts.iter().all(|part| part.bytes > 0),
            "{memory:?}"
        );
        let checked = check_with(draft(json!({"script": "/srv/train.py"})), Some(gpu));
        assert!(checked.memory.is_none() && checked.memory_unknown.is_some());
    }

    #[test]
    fn a_draft_without_errors_has_its_placement() {
        let waits = |checked: CheckedSpec| checked.placement.and_then(|placement| placement.waits);
        let nodes = |nodes: Value| waits(check_json(json!({"recipe": "ddp", "nodes": nodes})));
        assert_eq!(nodes(json!(3)).as_deref(), Some("3 nodes"));
        assert_eq!(nodes(json!("three")), None, "not that of another number of nodes");
        let toml = check_toml("recipe = \"ddp\"\nnodes = 2\n");
        assert_eq!(waits(toml).as_deref(), Some("2 nodes"));
    }
}
