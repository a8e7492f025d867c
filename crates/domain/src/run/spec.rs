//! The specification of a run: one type for the form, the TOML file, the API and the agent.

mod problems;
mod secrets;

pub use crate::run::field_error::FieldError;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::bandwidth::BandwidthOptions;
use crate::run::checkout::Checkout;
use crate::run::checkpoint::Keep;
use crate::run::container::ContainerOptions;
use crate::run::knob::KnobTarget;
use crate::run::recipe::Recipe;
use crate::run::secret::SecretValue;

/// Maximum number of nodes of one run.
pub const NODES_MAX: u32 = 1_024;
/// Maximum number of processes per node: twice the GPU count of the densest GPU server.
pub const NPROC_MAX: u32 = 32;
/// Maximum of `max_restarts`: enough for a run of a month. A run that needs more has another problem.
pub const RESTARTS_MAX: u32 = 1_000;
/// Default of `stall_timeout_s`, in seconds. Longer than an evaluation or a save between two steps takes, and longer than NCCL's own
/// timeout of ten minutes, whose error says more.
pub const STALL_TIMEOUT_S: u32 = 1_800;
/// Default of `node_timeout_s`, in seconds. Long enough for several reconnects with back-off and for the restart of an agent, too short for
/// the boot of a machine.
pub const NODE_TIMEOUT_S: u32 = 120;
/// Maximum number of arguments. This and the following bounds keep a spec small enough for one message and one page.
pub const ARGS_MAX: usize = 512;
/// Maximum size of a single argument, path or value, in bytes.
pub const TEXT_BYTES_MAX: usize = 8_192;
/// Maximum number of labels: a list of runs shows all of them in each row.
pub const LABELS_MAX: usize = 16;
/// Maximum length of the key and of the value of a label, in characters.
pub const LABEL_CHARS_MAX: usize = 64;
/// Maximum size of all arguments, variables and settings together, in bytes. The spec is sent to each of up to [`NODES_MAX`] nodes, twice.
pub const SPEC_BYTES_MAX: usize = 128 << 10;

/// How Lockstep starts the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// The agents start the processes on their nodes.
    #[default]
    Agent,
}

/// The library for collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NCCL where there are usable GPUs, otherwise Gloo.
    #[default]
    Auto,
    /// NCCL, for NVIDIA GPUs.
    Nccl,
    /// Gloo, for CPUs.
    Gloo,
}

/// The specification of a training run. TOML and JSON have the same shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// The run's name, shown to users; the run's id is made from it. Defaults to the name of the recipe or script.
    pub name: String,
    /// Labels by which people find and group runs, for example `team = "vision"`. At most 16, with at most 64 characters in each key and
    /// each value. They do not change what the run does, and nodes do not get them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of a built-in recipe. Give either this or `script`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// Path of the training script on the nodes. Give either this or `recipe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Arguments of the script, passed unchanged.
    pub args: Vec<String>,
    /// Working directory on the nodes. Defaults to the run's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// A git revision that each node checks out. `workdir` is then a folder in the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<Checkout>,
    /// The container in which the ranks run: an image, or a table; see [`container`](crate::run::container).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerOptions>,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// Additional environment variables whose values are never shown; see [`secret`](crate::run::secret). The run is stored and shown
    /// without their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
    /// Python interpreter or virtual environment on the nodes. Defaults to the agent's. In a container: one inside the container, by
    /// default `python3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Number of nodes. Defaults to 1.
    pub nodes: Option<u32>,
    /// Processes per node. Defaults to the number of GPUs of the node, or 2 on a node without GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nproc_per_node: Option<u32>,
    /// The library for collectives.
    pub backend: Backend,
    /// Folder in which the script saves checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<String>,
    /// Which checkpoints are kept: a number N for the last N, or a table such as `{ last = 3, every = 1000, best = true }`. Defaults to
    /// all.
    #[serde(skip_serializing_if = "Keep::is_all")]
    pub keep_checkpoints: Keep,
    /// Declares that everything in `checkpoint_dir` that was not there when the run first started belongs to the run. Lockstep may then
    /// remove it even if the probe reported no save. Do not set this for a folder that anyone else writes to.
    // Not sent if it is not set, like other new fields: an older node that does not know it would refuse the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checkpoint_dir_is_mine: bool,
    /// Maximum number of restarts after failed attempts.
    pub max_restarts: u32,
    /// Seconds without a step after which an attempt counts as stuck. Defaults to 1800; 0 means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout_s: Option<u32>,
    /// Seconds without a message from a node, and without a step of the other nodes, after which the node is replaced. Defaults to 120; 0
    /// means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_timeout_s: Option<u32>,
    /// Measures the network between the nodes before the ranks start: `true`, seconds per pair of nodes, or a table; see
    /// [`bandwidth`](crate::run::bandwidth).
    #[serde(skip_serializing_if = "BandwidthOptions::is_off")]
    pub preflight_bandwidth: BandwidthOptions,
    /// The script's argument for the checkpoint to resume from, for example `--resume`. If it ends with `=`, argument and path form one
    /// word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_arg: Option<String>,
    /// How Lockstep starts the processes.
    pub launcher: Launcher,
    /// Loads `nccl-probe` into each rank: count, size and duration of the collectives per communicator.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nccl_probe: bool,
    /// Queries NCCL RAS once per minute for missing, failed and late ranks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nccl_ras: bool,
    /// Keeps PyTorch's profiler in each rank ready to record a trace on request; see [`inspect`](crate::run::inspect). Needs PyTorch 2.7 or
    /// later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kineto: bool,
    /// Settings by name (`--set NAME=VALUE`). For a recipe, each setting becomes the argument `--NAME VALUE`; `lr` is an example. A setting
    /// with the name of a [knob](crate::run::knob) sets that knob, for scripts too.
    pub set: BTreeMap<String, String>,
    /// Knobs for which the script has its own flag or variable, each with that flag or variable.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, KnobTarget>,
    /// Reverts an applied knob change automatically when the verdict is against it. Defaults to activation checkpointing only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_revert: Option<bool>,
    /// Tries a doubled `micro_batch` automatically once activation checkpointing is kept. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub try_larger_batch: Option<bool>,
}

impl Spec {
    /// Returns the number of nodes of the run.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.nodes.unwrap_or(1)
    }

    /// Returns the milliseconds without a step after which an attempt is stuck; `None` means never.
    #[must_use]
    pub fn stall_timeout_ms(&self) -> Option<i64> {
        timeout_ms(self.stall_timeout_s, STALL_TIMEOUT_S)
    }

    /// Returns the milliseconds without a message from a node after which it is replaced; `None` means never.
    #[must_use]
    pub fn node_timeout_ms(&self) -> Option<i64> {
        timeout_ms(self.node_timeout_s, NODE_TIMEOUT_S)
    }

    /// Returns the name shown to users: the given name, otherwise the recipe's name, otherwise the script's file name.
    #[must_use]
    pub fn display_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let from_script = self.script.as_deref().and_then(|path| path.rsplit('/').next());
        let name = self.recipe.as_deref().or(from_script).unwrap_or("run");
        name.trim_end_matches(".py").to_owned()
    }

    /// Returns the last step of the run, if its recipe has a setting for it. The arguments of a script can mean anything.
    #[must_use]
    pub fn total_steps(&self) -> Option<u32> {
        let setting = Recipe::named(self.recipe.as_deref()?)?.total_steps?;
        let total: u32 = self.set.get(setting)?.trim().parse().ok()?;
        (total > 0).then_some(total)
    }
}

fn timeout_ms(requested_s: Option<u32>, default_s: u32) -> Option<i64> {
    let seconds = requested_s.unwrap_or(default_s);
    (seconds > 0).then(|| i64::from(seconds) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_default_and_can_be_turned_off() {
        let with = |seconds| Spec {
            stall_timeout_s: seconds,
            node_timeout_s: seconds,
            ..Spec::default()
        };
        for (seconds, expected) in [
            (None, (Some(1_800_000), Some(120_000))),
            (Some(0), (None, None)),
            (Some(5), (Some(5_000), Some(5_000))),
        ] {
            let spec = with(seconds);
            assert_eq!((spec.stall_timeout_ms(), spec.node_timeout_ms()), expected);
        }
    }

    #[test]
    fn only_the_setting_of_a_recipe_is_its_total() {
        for (recipe, steps, expected) in [
            (Some("ddp"), Some("50000"), Some(50_000)),
            (Some("ddp"), Some("many"), None),
            (Some("ddp"), Some("0"), None),
            (Some("ddp"), None, None),
            (Some("rpc-parameter-server"), Some("150"), None),
            (Some("unknown"), Some("150"), None),
            (None, Some("50000"), None),
        ] {
            let steps = steps.map(|steps| ("steps".to_owned(), steps.to_owned()));
            let spec = Spec {
                recipe: recipe.map(str::to_owned),
                set: steps.into_iter().collect(),
                ..Spec::default()
            };
            assert_eq!(spec.total_steps(), expected, "{spec:?}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_str::<Spec>(r#"{"recipe":"ddp","nodez":2}"#).is_err());
    }
}
