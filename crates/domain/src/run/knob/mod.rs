//! Knobs: settings of a training run that Lockstep knows by name, so that a diagnosis can name a repair and a command can apply it.
//!
//! ```text
//!             ┌ declared in the spec, or by the recipe ──▶ the script's own flag or variable
//!  NAME=VALUE ┼ else a variable that libraries read    ──▶ the launcher's environment
//!             ├ else a change that the probe can make  ──▶ LOCKSTEP_KNOBS, shown with a badge
//!             └ else refused, with advice as text
//! ```
//! | file | contents |
//! |---|---|
//! | `value` | the values of a knob, and which of them deserve a warning |
//! | `target` | the setting of the script that a run declares for a knob |
//! | `place` | where a value goes, and the spec with that value |
//! | `change` | what an attempt changed, and how its ranks answered |
//! | `in_place` | changes that a running attempt makes in place |
//! | `performance` | an attempt's series, reduced to a few numbers |
//! | `symptom` | what a change repairs |
//! | `verdict` | whether the change was worth it |
//! | `compare` | the differences between two attempts |

mod change;
mod compare;
mod in_place;
mod performance;
mod place;
mod symptom;
mod target;
mod value;
mod verdict;

pub use change::{ANSWERS_MAX, Change, How, KnobAnswer, KnobDiff, Pending};
pub use compare::{ComparedAttempt, Comparison, ComparisonInput, Difference, compare};
pub use in_place::{ChangeId, IN_PLACE_MAX, InPlaceChange, InPlaceState, apply_change, revert_change};
pub use performance::{Median, Memory, MemoryKind, PerformanceSummary, StepSample, Trace, WARM_UP_STEPS};
pub use place::{LOCKSTEP_KNOBS, current, place, spec_with};
pub use symptom::{Recovery, Symptom};
pub use target::KnobTarget;
pub use value::Values;
pub use verdict::{Decision, Losses, Ratio, STEPS_MIN, Verdict, judge, percent_change};

/// A knob.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// Name of the knob.
    pub name: &'static str,
    /// What it does, as text for users.
    pub what: &'static str,
    /// The values it accepts.
    pub values: Values,
    /// How it is applied if the script has no setting of its own for it.
    pub mechanism: Mechanism,
    /// True if training computes the same with any value, only slower, faster or with less memory.
    pub keeps_losses: bool,
    /// True if the probe can change it in running ranks, in each rank independently.
    pub live: bool,
    /// The value that turns it off, for a knob that exists to save memory. A change that turns such a knob on is kept only if it saves
    /// enough memory; otherwise it is reverted automatically. A larger batch may follow a kept change.
    pub memory_saver_off: Option<&'static str>,
    /// True if it is the number of samples per step. Steps with different values take different times, and twice the value is tried when
    /// memory is left.
    pub is_batch_size: bool,
}

/// How a knob is applied that the run does not declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Through variables that libraries read.
    Environment {
        /// Variables for ranks that communicate over NCCL.
        nccl: &'static [&'static str],
        /// Variables for ranks that communicate over Gloo, which accepts only complete names as values; empty for a knob that has no effect
        /// there.
        gloo: &'static [&'static str],
    },
    /// The probe changes what the script creates.
    Injection,
}

/// The values that most knobs have in common.
const INJECTED: Knob = Knob {
    name: "",
    what: "",
    values: Values::Words(&[]),
    mechanism: Mechanism::Injection,
    keeps_losses: false,
    live: false,
    memory_saver_off: None,
    is_batch_size: false,
};

const fn nccl(nccl: &'static [&'static str]) -> Mechanism {
    Mechanism::Environment { nccl, gloo: &[] }
}

/// All knobs.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "activation_checkpointing",
        what: "recomputes activations in the backward pass instead of keeping them: less memory, longer steps",
        values: Values::Checkpointing,
        keeps_losses: true,
        memory_saver_off: Some("none"),
        ..INJECTED
    },
    Knob {
        name: "fsdp_sharding",
        what: "what FSDP shards among the ranks: parameters, gradients and optimizer state, or fewer of them",
        values: Values::Words(&["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "reshard_after_forward",
        what: "whether FSDP2 frees gathered parameters between forward and backward: less memory, more communication",
        values: Values::Words(&["true", "false"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "grad_clip_norm",
        what: "maximum norm of the gradients before the optimizer's step",
        values: Values::Number {
            above: 0.0,
            most: 1e6,
        },
        ..INJECTED
    },
    Knob {
        name: "lr_scale",
        what: "a factor for the learning rate that the script sets",
        values: Values::Number {
            above: 0.0,
            most: 1e3,
        },
        ..INJECTED
    },
    Knob {
        name: "lr_schedule",
        what: "how the learning rate changes over the steps",
        values: Values::Schedule,
        ..INJECTED
    },
    Knob {
        name: "process_group_timeout_s",
        what: "seconds a collective may wait for other ranks before it fails",
        values: Values::Whole {
            least: 1,
            most: 7 * 86_400,
        },
        keeps_losses: true,
        live: true,
        ..INJECTED
    },
    Knob {
        name: "nccl_ib_timeout",
        what: "how long InfiniBand waits for an acknowledgement, as 4.096 µs × 2^value; from 23 on, NCCL waits forever",
        values: Values::Whole { least: 1, most: 22 },
        mechanism: nccl(&["NCCL_IB_TIMEOUT"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "nccl_ib_retry_count",
        what: "how often InfiniBand retries before NCCL gives up",
        values: Values::Whole { least: 0, most: 7 },
        mechanism: nccl(&["NCCL_IB_RETRY_CNT"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "nccl_socket_ifname",
        what: "the network interfaces that ranks use to communicate",
        values: Values::Interfaces,
        mechanism: Mechanism::Environment {
            nccl: &["NCCL_SOCKET_IFNAME"],
            gloo: &["GLOO_SOCKET_IFNAME"],
        },
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "cuda_alloc_conf",
        what: "settings of PyTorch's GPU memory allocator, for example expandable_segments:True against fragmentation",
        values: Values::AllocatorSettings,
        mechanism: nccl(&["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "num_workers",
        what: "data loading processes per rank",
        values: Values::Whole { least: 0, most: 256 },
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "amp",
        what: "the precision of the forward pass: lower precision needs less memory and is faster on tensor cores, but is less exact",
        values: Values::Words(&["off", "bf16", "fp16"]),
        ..INJECTED
    },
    Knob {
        name: "micro_batch",
        what: "samples per rank in one forward pass",
        values: Values::Whole {
            least: 1,
            most: 1_000_000,
        },
        is_batch_size: true,
        ..INJECTED
    },
];

/// Returns the knob with this name.
///
/// # Errors
/// Returns a message with all names if there is no such knob.
pub fn known(name: &str) -> Result<&'static Knob, String> {
    KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
        let names: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        format!("unknown knob {name:?}; known knobs: {}", names.join(", "))
    })
}
