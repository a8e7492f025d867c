//! `lockstep run check FILE`: checks a specification. Starts nothing.

use std::path::{Path, PathBuf};

use clap::Args;
use domain::api::runs::{CheckedSpec, MemoryForecast, SpecDraft, SpecProblem};
use domain::bytes::DisplayBytes;
use domain::plan::{Fit, Verdict};
use domain::run::secret::REDACTED;
use domain::run::spec::Spec;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Arguments of `check`.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run check train.toml
  lockstep run check train.toml && lockstep run submit train.toml --wait

Each error has the name of its field, and in a TOML file its line and column:
  train.toml:3:1: nodez: unknown field `nodez`

If there is no error, the command prints what `lockstep run submit` would start, with the memory plan of the recipe, if it has one. It
does not check that nodes are free or that files exist on them: that is checked when the run starts.

Values of secrets are not sent; if the file contains some, errors have no line and column. A value may also be \"[redacted]\": give it
to `submit` with --secret.

Exit codes: 0 valid, 1 invalid, 2 the file cannot be read, 3 no collector.")]
pub(super) struct Check {
    /// Specification of the run: TOML, or JSON if the file name ends in .json.
    file: PathBuf,
    /// Print the API's response as JSON.
    #[arg(long)]
    json: bool,
}

/// A specification as read from a file.
#[derive(Debug)]
struct Draft {
    /// What the collector checks: without the values of secrets.
    request: SpecDraft,
    /// The specification itself, if this version can read it.
    spec: Option<Spec>,
}

impl Check {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let file = self.file.display().to_string();
        let text = std::fs::read_to_string(&self.file)
            .map_err(|error| Failure::Usage(format!("{file}: {error}")))?;
        let (checked, spec) = match draft(&self.file, &text) {
            Ok(draft) => {
                let mut checked: CheckedSpec = client.post("/api/runs/check", &draft.request).await?;
                add_secret_problems(&mut checked, draft.spec.as_ref());
                (checked, draft.spec)
            }
            Err(problem) => {
                let checked = CheckedSpec {
                    problems: vec![problem],
                    ..CheckedSpec::default()
                };
                (checked, None)
            }
        };
        if self.json {
            crate::say::json(&checked)?;
        } else {
            print(&file, &checked, spec.as_ref());
        }
        match checked.problems.len() {
            0 => Ok(()),
            1 => Err(Failure::Failed(anyhow::anyhow!("{file} has 1 error"))),
            errors => Err(Failure::Failed(anyhow::anyhow!("{file} has {errors} errors"))),
        }
    }
}

/// Reads a file. Only TOML has positions. But the collector refuses TOML with the values of secrets, so such a file is sent as JSON without
/// them.
fn draft(path: &Path, text: &str) -> Result<Draft, SpecProblem> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let mut document: Value = if is_json {
        serde_json::from_str(text).map_err(|error| SpecProblem {
            message: error.to_string(),
            ..SpecProblem::default()
        })?
    } else {
        toml::from_str(text).map_err(|error| syntax_problem(text, &error))?
    };
    // The collector would read `null` as a draft that is missing.
    if document.is_null() {
        return Err(SpecProblem {
            message: "a specification is an object".to_owned(),
            ..SpecProblem::default()
        });
    }
    let spec = serde_json::from_value(document.clone()).ok();
    let request = if redact(&mut document) || is_json {
        SpecDraft {
            spec: Some(document),
            ..SpecDraft::default()
        }
    } else {
        SpecDraft {
            toml: Some(text.to_owned()),
            ..SpecDraft::default()
        }
    };
    Ok(Draft { request, spec })
}

/// Returns the error with its position. The error's own text would repeat the line, which may contain a secret.
fn syntax_problem(text: &str, error: &toml::de::Error) -> SpecProblem {
    let offset = error.span().map_or(text.len(), |span| span.start);
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    SpecProblem {
        field: String::new(),
        message: error.message().to_owned(),
        line: u32::try_from(line).ok(),
        column: u32::try_from(column).ok(),
    }
}

/// Replaces the values of secrets. Returns true if there was one. A value of a wrong type stays wrong, so that the collector reports it.
fn redact(document: &mut Value) -> bool {
    let secrets = match document.get_mut("secrets") {
        Some(Value::Object(secrets)) => secrets,
        Some(Value::Null) | None => return false,
        Some(wrong) => {
            *wrong = Value::Bool(true);
            return true;
        }
    };
    let mut found = false;
    for value in secrets.values_mut() {
        let replacement = match &*value {
            Value::String(text) if text.is_empty() || text == REDACTED => continue,
            Value::String(_) => Value::from(REDACTED),
            _ => Value::Null,
        };
        *value = replacement;
        found = true;
    }
    found
}

/// Adds the errors of the values of secrets, which the collector did not get. No message contains a value.
fn add_secret_problems(checked: &mut CheckedSpec, spec: Option<&Spec>) {
    let errors = spec.map(|spec| spec.draft_problems(false)).unwrap_or_default();
    for error in errors {
        let is_known = checked.problems.iter().any(|known| known.field == error.field);
        if error.field.starts_with("secrets.") && !is_known {
            checked.problems.push(SpecProblem {
                field: error.field,
                message: error.message,
                ..SpecProblem::default()
            });
        }
    }
}

fn print(file: &str, checked: &CheckedSpec, spec: Option<&Spec>) {
    for problem in &checked.problems {
        eprintln!("{}", problem_line(file, problem));
    }
    if checked.problems.is_empty() {
        say!("{} is valid", printable(file));
        for line in spec.map(spec_lines).unwrap_or_default() {
            say!("  {}", printable(&line));
        }
        for line in memory_lines(checked) {
            say!("  {}", printable(&line));
        }
    }
    for hint in &checked.hints {
        eprintln!("hint: {}", printable(hint));
    }
}

/// Formats an error as compilers do: `train.toml:3:1: nodez: …`.
fn problem_line(file: &str, problem: &SpecProblem) -> String {
    let place = match (problem.line, problem.column) {
        (Some(line), Some(column)) => format!("{file}:{line}:{column}"),
        (Some(line), None) => format!("{file}:{line}"),
        (None, _) => file.to_owned(),
    };
    let message = if problem.field.is_empty() {
        problem.message.clone()
    } else {
        format!("{}: {}", problem.field, problem.message)
    };
    printable(&format!("{place}: {message}"))
}

/// Describes the run that a valid specification starts.
fn spec_lines(spec: &Spec) -> Vec<String> {
    let program = match (&spec.recipe, &spec.script) {
        (Some(recipe), _) => format!("recipe {recipe}"),
        (None, Some(script)) => format!("script {script}"),
        (None, None) => "none".to_owned(),
    };
    let nodes = spec.node_count();
    let ranks = match spec.nproc_per_node {
        Some(per_node) => format!("{}, {per_node} per node", u64::from(nodes) * u64::from(per_node)),
        None => "one per GPU of each node, or 2 on a node without GPUs".to_owned(),
    };
    let mut lines = vec![
        format!("name      {}", spec.display_name()),
        format!("program   {program}"),
        format!("nodes     {nodes}"),
        format!("ranks     {ranks}"),
    ];
    let hidden = spec.secrets.iter().filter(|(_, value)| value.is_hidden());
    for (name, _) in hidden {
        lines.push(format!(
            "secret    {name} has no value: `submit` needs --secret {name}"
        ));
    }
    lines
}

/// Describes the memory plan, or says why there is none.
fn memory_lines(checked: &CheckedSpec) -> Vec<String> {
    let Some(plan) = &checked.memory else {
        let unknown = checked.memory_unknown.iter();
        return unknown.map(|why| format!("memory    no plan: {why}")).collect();
    };
    let MemoryForecast {
        gpus,
        peak_bytes,
        peak_at,
        fit,
        ways_to_fit,
        ..
    } = plan;
    let peak = DisplayBytes(*peak_bytes);
    let fit = fit.as_ref().map_or_else(
        || "no node that accepts runs has a GPU to compare with".to_owned(),
        fit_words,
    );
    let mut lines = vec![format!(
        "memory    peak {peak} per GPU with {gpus} GPUs, {peak_at}; {fit}"
    )];
    lines.extend(
        ways_to_fit
            .iter()
            .map(|way| format!("          would fit with {way}")),
    );
    lines
}

fn fit_words(fit: &Fit) -> String {
    let memory = DisplayBytes(fit.gpu_memory_bytes);
    match fit.verdict {
        Verdict::Fits => format!("fits the smallest GPU, {memory}"),
        Verdict::Tight => format!("less than a tenth of the smallest GPU, {memory}, stays free"),
        Verdict::DoesNotFit => format!("does not fit the smallest GPU, {memory}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Draft {
        draft(Path::new(name), text).expect("a document")
    }

    #[test]
    fn toml_is_sent_as_it_is_and_values_of_secrets_are_not_sent() {
        let plain = read("a.toml", "recipe = \"ddp\"\n");
        assert_eq!(plain.request.toml.as_deref(), Some("recipe = \"ddp\"\n"));
        let hidden = "recipe = \"ddp\"\n[secrets]\nHF_TOKEN = \"[redacted]\"\n";
        assert_eq!(read("a.toml", hidden).request.toml.as_deref(), Some(hidden));
        for (name, text) in [
            (
                "a.toml",
                "recipe = \"ddp\"\n[secrets]\nHF_TOKEN = \"hf_123456\"\n",
            ),
            (
                "a.json",
                r#"{"recipe": "ddp", "secrets": {"HF_TOKEN": "hf_123456"}}"#,
            ),
            ("a.toml", "recipe = \"ddp\"\nsecrets = [\"hf_123456\"]\n"),
        ] {
            let request = read(name, text).request;
            assert!(request.spec.is_some() && request.toml.is_none(), "{request:?}");
            let sent = serde_json::to_string(&request).expect("JSON");
            assert!(sent.contains("secrets") && !sent.contains("hf_123456"), "{sent}");
        }
        let number = read("a.toml", "[secrets]\nHF_TOKEN = 123456\n").request;
        assert_eq!(
            number.spec,
            Some(serde_json::json!({"secrets": {"HF_TOKEN": null}})),
            "the collector reports the wrong type"
        );
    }

    #[test]
    fn an_error_of_the_syntax_has_a_position_and_does_not_repeat_the_line() {
        let text = "recipe = \"ddp\"\nHF_TOKEN = hf_123456\n";
        let problem = draft(Path::new("a.toml"), text).expect_err("not TOML");
        let line = problem_line("a.toml", &problem);
        assert!(
            line.starts_with("a.toml:2:") && !line.contains("hf_123456"),
            "{line}"
        );
        assert!(draft(Path::new("a.json"), "{").is_err());
        let null = draft(Path::new("a.json"), "null").expect_err("not an object");
        assert_eq!(
            problem_line("a.json", &null),
            "a.json: a specification is an object"
        );
    }

    #[test]
    fn an_error_names_its_place_and_its_field() {
        let problem = |field: &str, line, column| SpecProblem {
            field: field.to_owned(),
            message: "is wrong".to_owned(),
            line,
            column,
        };
        for (problem, expected) in [
            (problem("nodez", Some(3), Some(5)), "a.toml:3:5: nodez: is wrong"),
            (problem("", Some(3), None), "a.toml:3: is wrong"),
            (problem("recipe", None, None), "a.toml: recipe: is wrong"),
        ] {
            assert_eq!(problem_line("a.toml", &problem), expected);
        }
    }

    #[test]
    fn values_of_secrets_are_checked_here() {
        let draft = read(
            "a.toml",
            "recipe = \"ddp\"\nnodes = 0\n[secrets]\nSHORT = \"abc\"\nLATER = \"[redacted]\"\n",
        );
        let mut checked = CheckedSpec::default();
        add_secret_problems(&mut checked, draft.spec.as_ref());
        let fields: Vec<&str> = checked
            .problems
            .iter()
            .map(|problem| problem.field.as_str())
            .collect();
        assert_eq!(fields, ["secrets.SHORT"], "the collector checks the rest");
        add_secret_problems(&mut checked, draft.spec.as_ref());
        assert_eq!(checked.problems.len(), 1, "each error is shown once");
    }

    #[test]
    fn a_valid_specification_says_what_it_starts() {
        let spec = |text: &str| read("a.toml", text).spec.expect("a specification");
        assert_eq!(
            spec_lines(&spec(
                "script = \"/srv/train.py\"\nnodes = 2\nnproc_per_node = 8\n[secrets]\nHF_TOKEN = \"[redacted]\"\n"
            )),
            [
                "name      train",
                "program   script /srv/train.py",
                "nodes     2",
                "ranks     16, 8 per node",
                "secret    HF_TOKEN has no value: `submit` needs --secret HF_TOKEN",
            ]
        );
        let of_gpus = spec_lines(&spec("recipe = \"ddp\"\n"));
        assert_eq!(
            of_gpus[3],
            "ranks     one per GPU of each node, or 2 on a node without GPUs"
        );
    }

    #[test]
    fn the_memory_plan_is_one_line_or_its_reason() {
        let plan = |gpu_bytes: Option<u64>| CheckedSpec {
            memory: Some(MemoryForecast {
                gpus: 16,
                peak_bytes: 60 << 30,
                peak_at: "in the optimizer's step".to_owned(),
                parts: Vec::new(),
                fit: gpu_bytes.map(|bytes| Fit::of(60 << 30, bytes)),
                ways_to_fit: vec!["micro_batch=4".to_owned()],
            }),
            ..CheckedSpec::default()
        };
        let peak = "memory    peak 60.0 GiB per GPU with 16 GPUs, in the optimizer's step; ";
        for (gpu_bytes, expected) in [
            (Some(80 << 30), "fits the smallest GPU, 80.0 GiB"),
            (
                Some(62 << 30),
                "less than a tenth of the smallest GPU, 62.0 GiB, stays free",
            ),
            (Some(40 << 30), "does not fit the smallest GPU, 40.0 GiB"),
            (None, "no node that accepts runs has a GPU to compare with"),
        ] {
            let lines = memory_lines(&plan(gpu_bytes));
            assert_eq!(lines[0], format!("{peak}{expected}"));
            assert_eq!(lines[1], "          would fit with micro_batch=4");
        }
        let none = CheckedSpec {
            memory_unknown: Some("a script has no plan".to_owned()),
            ..CheckedSpec::default()
        };
        assert_eq!(memory_lines(&none), ["memory    no plan: a script has no plan"]);
        assert_eq!(memory_lines(&CheckedSpec::default()), [""; 0]);
    }
}
