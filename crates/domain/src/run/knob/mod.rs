//! Knobs: settings of a training that Lockstep knows by name, so that a diagnosis can name its fix and a command can make it.
//!
//! ```text
//!            declared in the spec, or by the recipe ──▶ the script's own flag or variable
//!  NAME=VALUE ┤ else a variable the libraries read  ──▶ the launcher's environment
//!            │ else a change the probe can make     ──▶ LOCKSTEP_KNOBS, shown with a badge
//!            └ else refused, with the advice in words
//! ```
//! | file | what it decides |
//! |---|---|
//! | `value` | which values a knob takes, and which of them deserve a warning |
//! | `target` | which setting of its script a run declares a knob to be |
//! | `place` | where a value goes, and what the spec is with it |
//! | `change` | what an attempt changed, and what its ranks said of it |
//! | `live` | changes that a running attempt takes over in place |
//! | `figures` | what an attempt's series say in a few numbers |
//! | `verdict` | whether the change was worth it |
//! | `compare` | what two attempts differ in |

mod change;
mod compare;
mod figures;
mod live;
mod place;
mod target;
mod value;
mod verdict;

pub use change::{ANSWERS_MAX, Change, How, KnobAnswer, KnobDiff, Pending};
pub use compare::{Compared, Comparison, Difference, Side, compare};
pub use figures::{Figures, Median, Memory, MemoryKind, StepSample, Trace, WARM_UP_STEPS};
pub use live::{ChangeId, LIVE_MAX, LiveChange, LiveState, turn, turn_back};
pub use place::{LOCKSTEP_KNOBS, current, place, spec_with};
pub use target::KnobTarget;
pub use value::Values;
pub use verdict::{Decision, Losses, Ratio, STEPS_MIN, Verdict, judge};

/// A knob.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// Its name.
    pub name: &'static str,
    /// What it does, in words.
    pub what: &'static str,
    /// The values it takes.
    pub values: Values,
    /// How it is turned where the script has no setting of its own for it.
    pub way: Way,
    /// The training computes the same with any value, only slower, faster or in less memory.
    pub keeps_losses: bool,
    /// The probe can turn it in ranks that train, each for itself.
    pub live: bool,
    /// The value that turns it off, for a knob that exists to save memory. A change that turns such a knob on is kept only if it saves
    /// enough memory, is taken back by itself otherwise, and may be followed by a larger batch.
    pub memory_saver_off: Option<&'static str>,
    /// It is the number of samples per step: steps with different values take different times, and twice the value is tried when
    /// memory is left.
    pub is_batch_size: bool,
}

/// How a knob is turned that is not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Variables that libraries read.
    Environment {
        /// For ranks that talk over NCCL.
        nccl: &'static [&'static str],
        /// For ranks that talk over Gloo, with whole names as values; empty for a knob that has no effect there.
        gloo: &'static [&'static str],
    },
    /// The probe changes what the script makes.
    Injection,
}

/// What most knobs have in common.
const INJECTED: Knob = Knob {
    name: "",
    what: "",
    values: Values::Words(&[]),
    way: Way::Injection,
    keeps_losses: false,
    live: false,
    memory_saver_off: None,
    is_batch_size: false,
};

const fn nccl(nccl: &'static [&'static str]) -> Way {
    Way::Environment { nccl, gloo: &[] }
}

/// Every knob there is.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "activation_checkpointing",
        what: "computes activations again in the backward pass instead of keeping them: less memory, longer steps",
        values: Values::Checkpointing,
        keeps_losses: true,
        memory_saver_off: Some("none"),
        ..INJECTED
    },
    Knob {
        name: "fsdp_sharding",
        what: "how much FSDP cuts up among the ranks: parameters, gradients and optimizer state, or less of them",
        values: Values::Words(&["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "reshard_after_forward",
        what: "whether FSDP2 lets go of gathered parameters between forward and backward: less memory, more communication",
        values: Values::Words(&["true", "false"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "grad_clip_norm",
        what: "the largest norm gradients may have before the optimizer's step",
        values: Values::Number {
            above: 0.0,
            most: 1e6,
        },
        ..INJECTED
    },
    Knob {
        name: "lr_scale",
        what: "a factor on the learning rate the script asks for",
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
        what: "how long InfiniBand waits for an acknowledgement, as 4.096 µs × 2^value; NCCL waits for ever from 23 up",
        values: Values::Whole { least: 1, most: 22 },
        way: nccl(&["NCCL_IB_TIMEOUT"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "nccl_ib_retry_count",
        what: "how often InfiniBand sends again before NCCL gives up",
        values: Values::Whole { least: 0, most: 7 },
        way: nccl(&["NCCL_IB_RETRY_CNT"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "nccl_socket_ifname",
        what: "the network interfaces that ranks talk over",
        values: Values::Interfaces,
        way: Way::Environment {
            nccl: &["NCCL_SOCKET_IFNAME"],
            gloo: &["GLOO_SOCKET_IFNAME"],
        },
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "cuda_alloc_conf",
        what: "settings of PyTorch's GPU memory allocator, like expandable_segments:True against fragmentation",
        values: Values::AllocatorSettings,
        way: nccl(&["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]),
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "num_workers",
        what: "processes of each rank that load data ahead",
        values: Values::Whole { least: 0, most: 256 },
        keeps_losses: true,
        ..INJECTED
    },
    Knob {
        name: "amp",
        what: "the precision of the forward pass: less memory and faster on tensor cores, less exact",
        values: Values::Words(&["off", "bf16", "fp16"]),
        ..INJECTED
    },
    Knob {
        name: "micro_batch",
        what: "samples of each rank in one forward pass",
        values: Values::Whole {
            least: 1,
            most: 1_000_000,
        },
        is_batch_size: true,
        ..INJECTED
    },
];

/// A knob by its name; else what there is.
///
/// # Errors
/// In words, when there is no such knob.
pub fn known(name: &str) -> Result<&'static Knob, String> {
    KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
        let names: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        format!("there is no knob {name:?}; there is: {}", names.join(", "))
    })
}
