//! The fields of the form: one table, from which the page is built. A path is that of the specification.

use super::kind::Kind;
use crate::language::marked;

/// A part of the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// The program and its code.
    Program,
    /// Nodes, processes, Python, container.
    Place,
    /// Settings and knobs.
    Settings,
    /// Variables and secrets.
    Environment,
    /// Checkpoints and restarts.
    Checkpoints,
    /// Timeouts and probes.
    Checks,
    /// Labels.
    Labels,
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// The section that shows the field.
    pub(super) section: Section,
    /// The path in the specification, and the name of the input.
    pub(super) path: &'static str,
    /// The label, in English.
    pub(super) label: &'static str,
    /// The hint beside the label, in English; may be empty.
    pub(super) hint: &'static str,
    /// How the value is typed.
    pub(super) kind: Kind,
    /// True if the field is under "More", because its default suits most runs.
    pub(super) is_rare: bool,
}

/// The sections in their order, with their headings.
pub(super) const SECTIONS: [(Section, &str); 7] = [
    (Section::Program, marked("What runs")),
    (Section::Place, marked("Where it runs")),
    (Section::Settings, marked("Settings and knobs")),
    (Section::Environment, marked("Environment and secrets")),
    (Section::Checkpoints, marked("Checkpoints and restarts")),
    (Section::Checks, marked("Timeouts and probes")),
    (Section::Labels, marked("Labels")),
];

/// The field with the name of the recipe.
pub(super) const RECIPE: &str = "recipe";
/// The field with the path of the script.
pub(super) const SCRIPT: &str = "script";
/// The field with the arguments of the script.
pub(super) const ARGS: &str = "args";
/// The field with settings and values of knobs.
pub(super) const SET: &str = "set";
/// The field with the names of secrets.
pub(super) const SECRETS: &str = "secrets";

const fn field(
    section: Section,
    path: &'static str,
    kind: Kind,
    label: &'static str,
    hint: &'static str,
) -> Field {
    Field {
        section,
        path,
        label,
        hint,
        kind,
        is_rare: false,
    }
}

const fn rare_field(
    section: Section,
    path: &'static str,
    kind: Kind,
    label: &'static str,
    hint: &'static str,
) -> Field {
    Field {
        is_rare: true,
        ..field(section, path, kind, label, hint)
    }
}

/// All fields, in the order of the form. The paths are literals, because `docs/api-fields.md` is made from them.
#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    field(Section::Program, "recipe", Kind::Text, marked("Program"), ""),
    field(Section::Program, "script", Kind::Text, marked("Script"), marked("absolute path on the nodes, or relative to the working directory")),
    field(Section::Program, "args", Kind::Lines, marked("Arguments"), marked("one per line; a value in double quotes is a JSON string")),
    field(Section::Program, "name", Kind::Text, marked("Name"), marked("part of the run ID")),
    rare_field(Section::Program, "workdir", Kind::Text, marked("Working directory"), marked("absolute path on the nodes, or a folder in the repository")),
    rare_field(Section::Program, "git.repository", Kind::Text, marked("Git repository"), marked("URL, or absolute path on the nodes; each node checks it out")),
    rare_field(Section::Program, "git.revision", Kind::Text, marked("Git revision"), marked("commit, tag or branch")),
    rare_field(Section::Program, "git.submodules", Kind::Flag, marked("Check out submodules"), ""),
    field(Section::Place, "nodes", Kind::Whole, marked("Nodes"), marked("number of nodes")),
    field(Section::Place, "nproc_per_node", Kind::Whole, marked("Processes per node"), marked("default: one per GPU")),
    rare_field(Section::Place, "python", Kind::Text, marked("Python"), marked("interpreter or virtual environment on the nodes, or in the container")),
    rare_field(Section::Place, "backend", Kind::Choice(&["auto", "nccl", "gloo"]), marked("Backend"), marked("auto: NCCL with GPUs, otherwise Gloo")),
    rare_field(Section::Place, "launcher", Kind::Choice(&["agent"]), marked("Launcher"), ""),
    rare_field(Section::Place, "container.image", Kind::Text, marked("Container image"), marked("the ranks run in it, with Docker or Podman")),
    rare_field(Section::Place, "container.runtime", Kind::Choice(&["auto", "docker", "podman"]), marked("Container runtime"), ""),
    rare_field(Section::Place, "container.mounts", Kind::Lines, marked("Mounts"), marked("HOST:CONTAINER or HOST:CONTAINER:ro, one per line")),
    rare_field(Section::Place, "container.gpus", Kind::Lines, marked("GPUs of the container"), marked("index or UUID, one per line; default: all")),
    rare_field(Section::Place, "container.user", Kind::Text, marked("User in the container"), marked("user or user:group")),
    rare_field(Section::Place, "container.shm_size", Kind::Text, marked("Shared memory"), marked("such as 16g; default: that of the machine")),
    rare_field(Section::Place, "container.ulimits", Kind::Lines, marked("Limits"), marked("such as nofile=65536:65536, one per line")),
    rare_field(Section::Place, "container.options", Kind::Lines, marked("Container options"), marked("of docker run or podman run, one word per line")),
    field(Section::Settings, "set", Kind::Pairs, marked("All settings as text"), marked("NAME=VALUE, one per line; such as steps=200 or lr=0.001")),
    rare_field(Section::Settings, "knobs", Kind::Pairs, marked("Knobs of the script"), marked("KNOB=--FLAG or KNOB=VARIABLE, one per line")),
    rare_field(Section::Settings, "auto_revert", Kind::Answer, marked("Revert a change of knobs that does not help"), marked("default: only activation checkpointing")),
    rare_field(Section::Settings, "try_larger_batch", Kind::Flag, marked("Try a larger batch once activation checkpointing is kept"), ""),
    field(Section::Environment, "env", Kind::Pairs, marked("Variables"), marked("NAME=VALUE, one per line; stored with the run")),
    field(Section::Environment, "secrets", Kind::Names, marked("Secrets"), marked("names of variables, one per line; their values are stored separately and never shown")),
    field(Section::Checkpoints, "max_restarts", Kind::Whole, marked("Restarts"), marked("maximum, after failures")),
    field(Section::Checkpoints, "checkpoint_dir", Kind::Text, marked("Checkpoint folder"), marked("where the script saves")),
    rare_field(Section::Checkpoints, "resume_arg", Kind::Text, marked("Argument for resuming"), marked("such as --resume; it gets the path of the checkpoint")),
    rare_field(Section::Checkpoints, "keep_checkpoints.last", Kind::Whole, marked("Keep the last checkpoints"), marked("number; default: all are kept")),
    rare_field(Section::Checkpoints, "keep_checkpoints.every", Kind::Whole, marked("Keep checkpoints every"), marked("number of steps")),
    rare_field(Section::Checkpoints, "keep_checkpoints.best", Kind::Flag, marked("Keep the checkpoint with the lowest validation loss"), ""),
    rare_field(Section::Checkpoints, "checkpoint_dir_is_mine", Kind::Flag, marked("Only this run writes to the checkpoint folder"), marked("Lockstep may then remove files that no save reported")),
    rare_field(Section::Checks, "stall_timeout_s", Kind::Whole, marked("Stall timeout"), marked("seconds without a step; default: 1800, 0: never")),
    rare_field(Section::Checks, "node_timeout_s", Kind::Whole, marked("Node timeout"), marked("seconds without a message; default: 120, 0: never")),
    rare_field(Section::Checks, "preflight_bandwidth.seconds", Kind::Decimal, marked("Network check"), marked("seconds per pair of nodes, before the ranks start")),
    rare_field(Section::Checks, "preflight_bandwidth.min_mib_s", Kind::Decimal, marked("Minimum bandwidth"), marked("MiB per second, for each pair")),
    rare_field(Section::Checks, "preflight_bandwidth.refuse", Kind::Flag, marked("Do not start if a pair of nodes is slow"), ""),
    rare_field(Section::Checks, "nccl_probe", Kind::Flag, marked("Measure collectives (nccl-probe)"), ""),
    rare_field(Section::Checks, "nccl_ras", Kind::Flag, marked("Query NCCL RAS each minute"), ""),
    rare_field(Section::Checks, "kineto", Kind::Flag, marked("Record profiler traces on request (PyTorch 2.7 or later)"), ""),
    field(Section::Labels, "labels", Kind::Pairs, marked("Labels"), marked("KEY=VALUE, one per line; such as team=vision")),
];

#[cfg(test)]
mod tests {
    use domain::run::bandwidth::BandwidthOptions;
    use domain::run::checkout::Checkout;
    use domain::run::checkpoint::Keep;
    use domain::run::container::ContainerOptions;
    use domain::run::knob::KnobTarget;
    use domain::run::secret::SecretValue;
    use domain::run::spec::Spec;
    use serde_json::Value;

    use super::*;

    /// A specification in which each field is set, so that serde writes it.
    fn whole() -> Spec {
        let text = || Some("x".to_owned());
        Spec {
            labels: [("a".to_owned(), "b".to_owned())].into(),
            recipe: text(),
            script: text(),
            workdir: text(),
            git: Some(Checkout {
                submodules: true,
                ..Checkout::default()
            }),
            container: Some(ContainerOptions {
                runtime: domain::run::container::RuntimeChoice::Docker,
                mounts: vec![String::new()],
                gpus: vec![String::new()],
                user: text(),
                shm_size: text(),
                ulimits: Some(Vec::new()),
                options: vec![String::new()],
                ..ContainerOptions::default()
            }),
            secrets: [("A".to_owned(), SecretValue::default())].into(),
            python: text(),
            nproc_per_node: Some(1),
            checkpoint_dir: text(),
            keep_checkpoints: Keep {
                last: Some(1),
                every: Some(1),
                best: true,
            },
            checkpoint_dir_is_mine: true,
            stall_timeout_s: Some(1),
            node_timeout_s: Some(1),
            preflight_bandwidth: BandwidthOptions {
                seconds: 1.0,
                min_mib_s: Some(1.0),
                refuse: true,
            },
            resume_arg: text(),
            nccl_probe: true,
            nccl_ras: true,
            kineto: true,
            knobs: [("a".to_owned(), KnobTarget::Text(String::new()))].into(),
            auto_revert: Some(true),
            try_larger_batch: Some(true),
            ..Spec::default()
        }
    }

    #[test]
    fn the_named_fields_exist() {
        for path in [RECIPE, SCRIPT, ARGS, SET, SECRETS] {
            assert!(FIELDS.iter().any(|field| field.path == path), "{path}");
        }
    }

    /// The tables whose fields the form has.
    const TABLES: [&str; 4] = ["git", "container", "keep_checkpoints", "preflight_bandwidth"];

    #[test]
    fn the_form_has_each_field_of_a_specification() {
        let document = serde_json::to_value(whole()).expect("JSON");
        let mut paths = Vec::new();
        for (name, value) in document.as_object().expect("an object") {
            match value {
                Value::Object(fields) if TABLES.contains(&name.as_str()) => {
                    paths.extend(fields.keys().map(|field| format!("{name}.{field}")));
                }
                _ => paths.push(name.clone()),
            }
        }
        let mut shown: Vec<String> = FIELDS.iter().map(|field| field.path.to_owned()).collect();
        paths.sort();
        shown.sort();
        assert_eq!(shown, paths);
    }
}
