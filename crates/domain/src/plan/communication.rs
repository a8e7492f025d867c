//! Memory for the communication with other GPUs, and for the weights that autocast casts.
//!
//! Sources: documentation of DistributedDataParallel (`gradient_as_bucket_view`: "the saved memory size will be equal to the total
//! gradients size"); of fully_shard (a unit is what it is applied to; the root keeps its parameters between forward and backward); for what
//! is in memory at the same time, torch's own `FSDPMemTracker` (testdata/plan).

use super::settings::{Precision, Settings, Strategy};
use super::tensors::{Tensor, Unit};

/// Number of units that are gathered at once: the one that computes, and the buffer of the next. Measured (testdata/plan) on a CPU, where
/// nothing overlaps. On a GPU a buffer may exist until the next one is filled, so this is an estimate.
const GATHERED_UNITS: u128 = 2;

/// Bytes on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Communication {
    /// Buckets of DDP, allocated from the first backward pass on.
    pub(super) buckets: u128,
    /// Gathered parameters: at the start of the backward pass, during the backward pass of the last block, and during that of the first
    /// block.
    pub(super) gathered: [u128; 3],
    /// Gradients of a block as they are computed.
    pub(super) computed: u128,
    /// The same, and the buffer from which they are reduced, after the block's activations are freed.
    pub(super) reduced: u128,
    /// Weights cast by autocast, which their layers keep for the backward pass.
    pub(super) casts: Casts,
    /// Gradients of the root's tensors, the first of a backward pass.
    pub(super) first_gradients: u128,
}

/// Bytes of weights that autocast casts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Casts {
    /// All casts. They are cached until autocast ends, after the loss. Source: torch's `autocast_mode.cpp` ("cache fp16 casts of fp32 model
    /// weights").
    pub(super) all: u128,
    /// Casts that autograd keeps: those of the output layer, and of blocks that are not recomputed.
    pub(super) kept: u128,
    /// Casts of one block.
    pub(super) block: u128,
}

/// Returns the communication memory of a training. If only the number of parameters is known, `layers` is `None` and the units are unknown.
pub(super) fn of(
    settings: &Settings,
    tensors: &[Tensor],
    layers: Option<u64>,
    gradients: u128,
) -> Communication {
    let of_unit = |unit: Unit, all: bool| -> u128 {
        tensors
            .iter()
            .filter(|tensor| tensor.unit == unit && (all || tensor.linear))
            .map(|tensor| tensor.elements(settings.tensor_parallel))
            .sum()
    };
    let Some(depth) = layers else {
        return Communication {
            buckets: buckets(settings, gradients),
            ..Communication::default()
        };
    };
    let layers = u128::from(depth);
    let (blocks, root) = (of_unit(Unit::Block, true), of_unit(Unit::Root, true));
    let block = blocks.div_ceil(layers);
    let casts = if settings.autocast() {
        let width = settings.precision.computed();
        let linear = of_unit(Unit::Block, false).div_ceil(layers);
        let head = of_unit(Unit::Root, false);
        let (_, whole) = settings.checkpointing.split(depth);
        Casts {
            all: width * (head + linear * layers),
            kept: width * (head + linear * u128::from(whole)),
            block: width * linear,
        }
    } else {
        Casts::default()
    };
    Communication {
        buckets: buckets(settings, gradients),
        gathered: gathered(settings, blocks, block, root),
        computed: if sharded(settings) {
            gathered_width(settings) * block
        } else {
            0
        },
        reduced: if sharded(settings) {
            (gathered_width(settings) + settings.precision.stored()) * block
        } else {
            0
        },
        casts,
        first_gradients: settings.precision.stored() * root.div_ceil(u128::from(settings.shards())),
    }
}

fn buckets(settings: &Settings, gradients: u128) -> u128 {
    let ddp = matches!(settings.strategy, Strategy::Ddp | Strategy::Zero1);
    if ddp && settings.data_parallel() > 1 && !settings.gradient_as_bucket_view {
        gradients
    } else {
        0
    }
}

/// Parameters of a block are freed again after its backward pass.
fn gathered(settings: &Settings, blocks: u128, block: u128, root: u128) -> [u128; 3] {
    if !sharded(settings) {
        return [0; 3];
    }
    let units = if settings.reshard_after_forward {
        let flight = (GATHERED_UNITS * block).min(blocks);
        [flight, flight, block]
    } else {
        [blocks, blocks, block]
    };
    units.map(|units| gathered_width(settings) * (root + units))
}

/// Returns true if parameters are gathered and gradients reduced.
fn sharded(settings: &Settings) -> bool {
    settings.gathers() && settings.shards() > 1
}

/// Returns the bytes of a gathered parameter. `MixedPrecisionPolicy` casts before gathering; autocast casts afterwards.
fn gathered_width(settings: &Settings) -> u128 {
    match settings.precision {
        Precision::Fp16Amp => settings.precision.stored(),
        _ => settings.precision.computed(),
    }
}
