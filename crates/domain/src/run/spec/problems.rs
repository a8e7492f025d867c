//! Checks of a spec.

use crate::run::field_error::FieldError;
use crate::run::knob;
use crate::run::recipe::{RECIPES, Recipe};
use crate::run::secret::{REDACTED, SECRETS_MAX};
use crate::run::spec::{
    ARGS_MAX, LABEL_CHARS_MAX, LABELS_MAX, NODES_MAX, NPROC_MAX, RESTARTS_MAX, SPEC_BYTES_MAX, Spec,
    TEXT_BYTES_MAX,
};

impl Spec {
    /// Returns all errors, field by field; empty if the run can be started.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let mut problems = Problems::default();
        self.check_program(&mut problems);
        self.check_labels(&mut problems);
        self.check_sizes(&mut problems);
        self.check_texts(&mut problems);
        self.check_settings(&mut problems);
        self.check_secrets(&mut problems);
        self.check_knobs(&mut problems);
        self.check_environment(&mut problems);
        problems.0
    }

    fn check_program(&self, problems: &mut Problems) {
        match (&self.recipe, &self.script) {
            (None, None) => problems.add("recipe", "choose a recipe, or give the path of a script"),
            (Some(_), Some(_)) => problems.add("script", "give either a recipe or a script, not both"),
            (Some(recipe), None) if Recipe::named(recipe).is_none() => {
                let known: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
                problems.add(
                    "recipe",
                    format!(
                        "unknown recipe {recipe:?}; available recipes: {}",
                        known.join(", ")
                    ),
                );
            }
            (None, Some(script)) if script.trim().is_empty() => problems.add("script", "the path is empty"),
            (None, Some(script))
                if !script.starts_with('/') && self.workdir.is_none() && self.git.is_none() =>
            {
                problems.add(
                    "script",
                    "give an absolute path, or a workdir to which it is relative",
                );
            }
            _ => {}
        }
        if self.checkpoint_dir_is_mine && self.checkpoint_dir.as_ref().is_none_or(String::is_empty) {
            problems.add(
                "checkpoint_dir_is_mine",
                "requires checkpoint_dir: give it, or remove this field",
            );
        }
        if self.resume_arg.as_ref().is_some_and(|arg| arg.trim().is_empty()) {
            problems.add(
                "resume_arg",
                "is empty; give the name of the argument, for example --resume",
            );
        }
        if let Some(workdir) = &self.workdir
            && self.git.is_none()
            && !workdir.starts_with('/')
        {
            problems.add("workdir", "give an absolute path");
        }
    }

    /// The key has no `=`, so that `KEY=VALUE` has one meaning on a command line.
    fn check_labels(&self, problems: &mut Problems) {
        if self.labels.len() > LABELS_MAX {
            problems.add("labels", format!("at most {LABELS_MAX} labels"));
        }
        let key_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        for (key, value) in &self.labels {
            let field = format!("labels.{key}");
            if !(1..=LABEL_CHARS_MAX).contains(&key.len()) || !key.chars().all(key_allowed) {
                problems.add(
                    &field,
                    format!("use 1 to {LABEL_CHARS_MAX} letters, digits, '.', '_', '-' or '/' in the key"),
                );
            }
            if value.chars().count() > LABEL_CHARS_MAX || value.contains(char::is_control) {
                problems.add(
                    &field,
                    format!(
                        "use at most {LABEL_CHARS_MAX} characters in the value, and no control characters"
                    ),
                );
            }
        }
    }

    /// Checks the working copy and the container.
    fn check_environment(&self, problems: &mut Problems) {
        if let Some(git) = &self.git {
            problems.0.extend(git.problems());
            let leads_out = |path: &String| path.starts_with('/') || path.split('/').any(|part| part == "..");
            if self.workdir.as_ref().is_some_and(leads_out) {
                problems.add(
                    "workdir",
                    "with git, give a folder in the repository, without / in front and without ..",
                );
            }
            if self.script.as_ref().is_some_and(leads_out) {
                problems.add(
                    "script",
                    "with git, give a path in the repository, without / in front and without ..",
                );
            }
            if self
                .checkpoint_dir
                .as_ref()
                .is_some_and(|path| !path.starts_with('/'))
            {
                problems.add(
                    "checkpoint_dir",
                    "with git, give an absolute path: the working copy is removed with the attempt",
                );
            }
        }
        let Some(container) = &self.container else { return };
        problems.0.extend(container.problems());
        let secrets = self
            .secrets
            .iter()
            .map(|(name, value)| ("secrets", name, value.expose()));
        let env = self.env.iter().map(|(name, value)| ("env", name, value.as_str()));
        for (field, name, value) in env.chain(secrets) {
            if crate::run::container::is_client_variable(name) && value.contains('\n') {
                problems.add(
                    &format!("{field}.{name}"),
                    "contains a line break, which cannot be passed to a container in a variable with this name",
                );
            }
        }
    }

    fn check_sizes(&self, problems: &mut Problems) {
        if !(1..=NODES_MAX).contains(&self.node_count()) {
            problems.add("nodes", format!("must be from 1 to {NODES_MAX}"));
        }
        if self.nproc_per_node.is_some_and(|n| !(1..=NPROC_MAX).contains(&n)) {
            problems.add("nproc_per_node", format!("must be from 1 to {NPROC_MAX}"));
        }
        if let Some(problem) = self.preflight_bandwidth.problem() {
            problems.add("preflight_bandwidth", problem);
        }
        if self.max_restarts > RESTARTS_MAX {
            problems.add("max_restarts", format!("at most {RESTARTS_MAX}"));
        }
        if self.args.len() > ARGS_MAX {
            problems.add("args", format!("at most {ARGS_MAX} arguments"));
        }
        let pairs = self.env.iter().chain(&self.set);
        let bytes = self.args.iter().map(String::len).sum::<usize>()
            + pairs.map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if bytes > SPEC_BYTES_MAX {
            problems.add(
                "args",
                format!(
                    "arguments, variables and settings have {bytes} bytes in total; at most {SPEC_BYTES_MAX} are allowed"
                ),
            );
        }
    }

    fn check_texts(&self, problems: &mut Problems) {
        let name_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.len() > 64 || !self.name.chars().all(name_allowed) || self.name.starts_with(['.', '-']) {
            problems.add(
                "name",
                "use at most 64 letters, digits, '.', '_' or '-', not starting with '.' or '-'",
            );
        }
        let optional = [
            ("script", &self.script),
            ("workdir", &self.workdir),
            ("python", &self.python),
            ("checkpoint_dir", &self.checkpoint_dir),
            ("resume_arg", &self.resume_arg),
        ];
        for (field, text) in optional {
            if let Some(text) = text {
                problems.check_text(field, text);
            }
        }
        for arg in &self.args {
            problems.check_text("args", arg);
        }
        for (name, value) in &self.env {
            let field = format!("env.{name}");
            if !is_variable_name(name) {
                problems.add(&field, "is not a valid name of an environment variable");
            } else if is_reserved(name) {
                problems.add(&field, "is set by Lockstep or torchrun for each rank");
            }
            problems.check_text(&field, value);
            if value == REDACTED {
                problems.add(
                    &field,
                    "is the placeholder of a hidden value; give the value itself",
                );
            }
        }
    }

    /// No message contains the value of a secret.
    fn check_secrets(&self, problems: &mut Problems) {
        if self.secrets.len() > SECRETS_MAX {
            problems.add("secrets", format!("at most {SECRETS_MAX} secrets"));
        }
        for (name, value) in &self.secrets {
            let field = format!("secrets.{name}");
            if !is_variable_name(name) {
                problems.add(&field, "is not a valid name of an environment variable");
            } else if is_reserved(name) {
                problems.add(&field, "is set by Lockstep or torchrun for each rank");
            } else if self.env.contains_key(name) {
                problems.add(&field, "is also given in env; give it only once");
            } else if let Some(problem) = value.problem() {
                problems.add(&field, problem);
            } else {
                problems.check_text(&field, value.expose());
            }
        }
    }

    fn check_settings(&self, problems: &mut Problems) {
        if self.recipe.is_none() && self.set.keys().any(|name| knob::known(name).is_err()) {
            problems.add(
                "set",
                "only knobs and settings of recipes can be set by name; give the arguments of a script in args",
            );
        }
        for (name, value) in &self.set {
            let field = format!("set.{name}");
            let well_formed = !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            if !well_formed || name.starts_with('-') {
                problems.add(
                    &field,
                    "use only letters, digits, '_' and '-' in the name of a setting",
                );
            }
            problems.check_text(&field, value);
        }
    }

    fn check_knobs(&self, problems: &mut Problems) {
        for (name, target) in &self.knobs {
            let field = format!("knobs.{name}");
            if let Err(message) = knob::known(name) {
                problems.add(&field, message);
            }
            match target.how() {
                Err(message) => problems.add(&field, message),
                Ok(knob::How::Variable { env }) if is_reserved(&env) => {
                    problems.add(
                        &field,
                        format!("{env} is set by Lockstep or torchrun for each rank"),
                    );
                }
                Ok(knob::How::Variable { env }) if self.secrets.contains_key(&env) => {
                    problems.add(&field, format!("{env} is a secret of the run"));
                }
                Ok(_) => {}
            }
        }
        for (name, value) in &self.set {
            let Ok(knob) = knob::known(name) else { continue };
            let parsed = knob.values.parse(value);
            if let Err(message) = parsed.and_then(|_| knob::place(self, name)) {
                problems.add(&format!("set.{name}"), message);
            }
        }
    }
}

/// Returns true for variables that torchrun or the agent sets: a run that replaced them would report false facts about itself. The switches
/// of the probes may be set by the run.
fn is_reserved(name: &str) -> bool {
    if name.starts_with("LOCKSTEP_NCCL_") || name == "LOCKSTEP_WORKER_SERVER" {
        return false;
    }
    ["LOCKSTEP_", "MASTER_", "TORCHELASTIC_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || [
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "GROUP_WORLD_SIZE",
            "ROLE_RANK",
            "ROLE_WORLD_SIZE",
        ]
        .contains(&name)
}

#[derive(Default)]
struct Problems(Vec<FieldError>);

impl Problems {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(FieldError::new(field, message));
    }

    fn check_text(&mut self, field: &str, text: &str) {
        if text.len() > TEXT_BYTES_MAX {
            self.add(field, format!("is longer than {TEXT_BYTES_MAX} bytes"));
        } else if text.contains('\0') {
            self.add(field, "contains a zero byte");
        }
    }
}

fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::checkout::Checkout;
    use crate::run::container::ContainerOptions;

    fn fields(spec: &Spec) -> Vec<String> {
        spec.problems().into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn a_run_may_set_the_switches_of_probes_and_unset_fields_are_not_sent() {
        let spec: Spec = serde_json::from_str(
            r#"{"recipe": "ddp", "nccl_probe": true, "env": {"LOCKSTEP_NCCL_TIMING": "off", "LOCKSTEP_RUN": "x"}}"#,
        )
        .expect("a spec");
        let problems: Vec<String> = spec.problems().into_iter().map(|problem| problem.field).collect();
        assert_eq!(problems, ["env.LOCKSTEP_RUN"]);
        assert!(spec.nccl_probe && !spec.nccl_ras);
        let sent = serde_json::to_string(&Spec::default()).expect("JSON");
        assert!(!sent.contains("nccl"), "{sent}");
    }

    #[test]
    fn a_recipe_is_enough() {
        let spec = Spec {
            recipe: Some("ddp".into()),
            ..Spec::default()
        };
        assert_eq!(spec.problems(), []);
        assert_eq!((spec.display_name().as_str(), spec.node_count()), ("ddp", 1));
    }

    #[test]
    fn labels_have_bounds() {
        let with = |labels: Vec<(String, String)>| Spec {
            recipe: Some("ddp".into()),
            labels: labels.into_iter().collect(),
            ..Spec::default()
        };
        let label = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        let many = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new())).collect();
        for (labels, expected) in [
            (label("team", "vision 显存"), vec![]),
            (label(&"k".repeat(64), &"显".repeat(64)), vec![]),
            (many(16), vec![]),
            (many(17), vec!["labels".to_owned()]),
            (label("", "x"), vec!["labels.".to_owned()]),
            (label("a=b", "x"), vec!["labels.a=b".to_owned()]),
            (
                label(&"k".repeat(65), "x"),
                vec![format!("labels.{}", "k".repeat(65))],
            ),
            (label("team", &"x".repeat(65)), vec!["labels.team".to_owned()]),
            (label("team", "a\nb"), vec!["labels.team".to_owned()]),
        ] {
            assert_eq!(fields(&with(labels.clone())), expected, "{labels:?}");
        }
    }

    #[test]
    fn each_mistake_is_named_at_its_field() {
        let script = |path: &str| Spec {
            script: Some(path.into()),
            ..Spec::default()
        };
        let ddp = || Spec {
            recipe: Some("ddp".into()),
            ..Spec::default()
        };
        let in_git = |path: &str, revision: &str| Spec {
            git: Some(Checkout {
                repository: "/srv/train.git".into(),
                revision: revision.into(),
                submodules: false,
            }),
            ..script(path)
        };
        let set = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (spec, field) in [
            (Spec::default(), "recipe"),
            (
                Spec {
                    recipe: Some("nope".into()),
                    ..Spec::default()
                },
                "recipe",
            ),
            (
                Spec {
                    recipe: Some("ddp".into()),
                    ..script("/x.py")
                },
                "script",
            ),
            (script("x.py"), "script"),
            (
                Spec {
                    nodes: Some(0),
                    ..ddp()
                },
                "nodes",
            ),
            (
                Spec {
                    nproc_per_node: Some(1_000),
                    ..ddp()
                },
                "nproc_per_node",
            ),
            (
                Spec {
                    name: "../x".into(),
                    ..ddp()
                },
                "name",
            ),
            (
                Spec {
                    args: vec!["a\0b".into()],
                    ..ddp()
                },
                "args",
            ),
            (
                Spec {
                    args: vec!["x".repeat(TEXT_BYTES_MAX); 17],
                    ..ddp()
                },
                "args",
            ),
            (
                Spec {
                    env: set("RANK", "1"),
                    ..ddp()
                },
                "env.RANK",
            ),
            (
                Spec {
                    resume_arg: Some(" ".into()),
                    ..ddp()
                },
                "resume_arg",
            ),
            (
                Spec {
                    env: set("A B", "1"),
                    ..ddp()
                },
                "env.A B",
            ),
            (
                Spec {
                    set: set("--lr", "1"),
                    ..ddp()
                },
                "set.--lr",
            ),
            (
                Spec {
                    set: set("lr", "1"),
                    ..script("/x.py")
                },
                "set",
            ),
            (in_git("/x.py", "ckpt"), "script"),
            (in_git("../x.py", "ckpt"), "script"),
            (
                Spec {
                    workdir: Some("/a".into()),
                    ..in_git("x.py", "ckpt")
                },
                "workdir",
            ),
            (
                Spec {
                    checkpoint_dir: Some("saved".into()),
                    ..in_git("x.py", "ckpt")
                },
                "checkpoint_dir",
            ),
            (in_git("x.py", "-x"), "git.revision"),
            (
                Spec {
                    container: Some(ContainerOptions::default()),
                    ..ddp()
                },
                "container.image",
            ),
            (
                Spec {
                    container: Some(ContainerOptions {
                        image: "a".into(),
                        ..ContainerOptions::default()
                    }),
                    env: set("PATH", "a\nb"),
                    ..ddp()
                },
                "env.PATH",
            ),
        ] {
            assert_eq!(fields(&spec), [field], "{spec:?}");
        }
    }
}
