//! What a person asks for: one type for the form, the TOML file, the API and the agent.

mod problems;
mod secrets;

pub use crate::run::field_error::FieldError;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::bandwidth::BandwidthWish;
use crate::run::checkout::Checkout;
use crate::run::checkpoint::Keep;
use crate::run::container::ContainerWish;
use crate::run::knob::KnobTarget;
use crate::run::secret::SecretValue;

/// The most nodes one run may ask for.
pub const NODES_MAX: u32 = 1_024;
/// The most processes a node; twice the densest GPU server's count.
pub const NPROC_MAX: u32 = 32;
/// Enough restarts for a month-long run; past this something else is wrong.
pub const RESTARTS_MAX: u32 = 1_000;
/// Longer than an evaluation or a save between two steps takes, and than NCCL's own time-out of ten minutes, which says more.
pub const STALL_TIMEOUT_S: u32 = 1_800;
/// Several reconnects with back-off and the restart of an agent fit in; a machine that boots does not.
pub const NODE_TIMEOUT_S: u32 = 120;
/// Bounds of what one spec may carry, so that it fits a message and a page.
pub const ARGS_MAX: usize = 512;
/// The longest single argument, path or value, in bytes.
pub const TEXT_BYTES_MAX: usize = 8_192;
/// All arguments, variables and settings together, in bytes: it goes to each of up to [`NODES_MAX`] nodes, twice.
pub const SPEC_BYTES_MAX: usize = 128 << 10;

/// How processes are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// On the agents' nodes.
    #[default]
    Agent,
}

/// The collective library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NCCL where there are usable GPUs, else Gloo.
    #[default]
    Auto,
    /// NVIDIA GPUs.
    Nccl,
    /// CPUs.
    Gloo,
}

/// A training run as asked for. TOML and JSON have the same shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// For people; the run's id is made from it. Defaults to the recipe's or script's name.
    pub name: String,
    /// A built-in recipe; either this or `script`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// Path of the training script on the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Arguments of the script, as they are.
    pub args: Vec<String>,
    /// Working directory on the nodes; the run's own folder when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Has each node check out a git revision; `workdir` is a folder in it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<Checkout>,
    /// Has the ranks run in a container: an image, or a table; see [`container`](crate::run::container).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerWish>,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// More of them, whose values nobody is shown; see [`secret`](crate::run::secret). Stored and shown without their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
    /// Python interpreter or virtual environment on the nodes; the agent's default when empty. In a container, one that is there,
    /// `python3` when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Nodes.
    pub nodes: Option<u32>,
    /// Processes a node; the GPUs of the node, or 2 on a node without, when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nproc_per_node: Option<u32>,
    /// Collective library.
    pub backend: Backend,
    /// Where the script saves checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<String>,
    /// Which of them stay: a number for the last so many, or `{ last = 3, every = 1000, best = true }`; all when empty.
    #[serde(skip_serializing_if = "Keep::is_all")]
    pub keep_checkpoints: Keep,
    /// Declares that whatever was not in `checkpoint_dir` when the run first started belongs to the run, so that it may be removed
    /// without a save that the probe reported. Not for a folder that anyone else writes to.
    #[serde(skip_serializing_if = "is_false")]
    pub checkpoint_dir_is_mine: bool,
    /// How often a failed attempt is followed by another.
    pub max_restarts: u32,
    /// Seconds without a step after which an attempt counts as stuck; [`STALL_TIMEOUT_S`] when empty, 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout_s: Option<u32>,
    /// Seconds without a word from a node, and without a step of the others, after which it is replaced;
    /// [`NODE_TIMEOUT_S`] when empty, 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_timeout_s: Option<u32>,
    /// Has the network between the nodes measured before anything starts: `true`, seconds a pair, or a table; see
    /// [`bandwidth`](crate::run::bandwidth).
    #[serde(skip_serializing_if = "BandwidthWish::is_off")]
    pub preflight_bandwidth: BandwidthWish,
    /// The argument by which the script takes a checkpoint to go on from: `--resume`, or with a `=` at the end as one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_arg: Option<String>,
    /// How processes are started.
    pub launcher: Launcher,
    /// Has NCCL load `nccl-probe` into each rank: collectives by communicator, their sizes and times.
    #[serde(skip_serializing_if = "is_false")]
    pub nccl_probe: bool,
    /// Asks NCCL RAS once a minute for missing, failed and late ranks.
    #[serde(skip_serializing_if = "is_false")]
    pub nccl_ras: bool,
    /// Has PyTorch's profiler in each rank wait for the wish of a trace; see [`inspect`](crate::run::inspect). PyTorch 2.7 and later.
    #[serde(skip_serializing_if = "is_false")]
    pub kineto: bool,
    /// Settings by name: `--set NAME=VALUE`. For a recipe they become `--NAME VALUE`; `lr` is one. A name of a
    /// [knob](crate::run::knob) is that knob, for scripts too.
    pub set: BTreeMap<String, String>,
    /// Knobs that the script has a setting of its own for, each with that flag or variable.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub knobs: BTreeMap<String, KnobTarget>,
    /// Whether a change of knobs is taken back by itself when the verdict is against it; only activation checkpointing when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_revert: Option<bool>,
    /// Whether a doubled `micro_batch` is tried by itself once activation checkpointing is kept; not when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub try_larger_batch: Option<bool>,
}

impl Spec {
    /// How many nodes it runs on.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.nodes.unwrap_or(1)
    }

    /// Milliseconds without a step after which an attempt is stuck; `None` for never.
    #[must_use]
    pub fn stall_timeout_ms(&self) -> Option<i64> {
        timeout_ms(self.stall_timeout_s, STALL_TIMEOUT_S)
    }

    /// Milliseconds without a word from a node after which it is replaced; `None` for never.
    #[must_use]
    pub fn node_timeout_ms(&self) -> Option<i64> {
        timeout_ms(self.node_timeout_s, NODE_TIMEOUT_S)
    }

    /// The name a person sees: given, or the recipe's, or the script's file name.
    #[must_use]
    pub fn display_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let from_script = self.script.as_deref().and_then(|path| path.rsplit('/').next());
        let name = self.recipe.as_deref().or(from_script).unwrap_or("run");
        name.trim_end_matches(".py").to_owned()
    }
}

fn timeout_ms(wished_s: Option<u32>, default_s: u32) -> Option<i64> {
    let seconds = wished_s.unwrap_or(default_s);
    (seconds > 0).then(|| i64::from(seconds) * 1_000)
}

/// A wish that was not made is not sent: a node that does not know it yet would refuse the run.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(wish: &bool) -> bool {
    !wish
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_a_default_and_an_end() {
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
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_str::<Spec>(r#"{"recipe":"ddp","nodez":2}"#).is_err());
    }
}
