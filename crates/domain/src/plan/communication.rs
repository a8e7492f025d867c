//! What is allocated to talk to other GPUs, and what autocast casts.
//!
//! Sources: DistributedDataParallel's documentation (`gradient_as_bucket_view`: "the saved memory size will be equal to the total gradients
//! size"); fully_shard's (a unit is what it is applied to; the root keeps its parameters between forward and backward); what lives
//! at once: torch's own `FSDPMemTracker` (testdata/plan).

use super::settings::{Precision, Settings, Strategy};
use super::tensors::{Tensor, Unit};

/// Units that are gathered at once: the one that computes, and the buffer of the next. Measured (testdata/plan) on a CPU, where nothing
/// overlaps; on a GPU a buffer may live until the next has been filled, so that this stays an estimate.
const GATHERED_UNITS: u128 = 2;

/// Bytes on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Communication {
    /// DDP's buckets, there from the first backward pass on.
    pub(super) buckets: u128,
    /// Whole parameters: at the start of the backward pass, while the last block goes back, while the first one does.
    pub(super) gathered: [u128; 3],
    /// Gradients of a block as they are computed.
    pub(super) computed: u128,
    /// The same and the buffer they are reduced from, when the block's activations have gone.
    pub(super) reduced: u128,
    /// Weights cast by autocast, as their layers keep them for the backward pass.
    pub(super) casts: Casts,
    /// Gradients of the root's tensors, the first ones of a backward pass.
    pub(super) first_gradients: u128,
}

/// Bytes of weights that autocast casts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Casts {
    /// All: they are cached until autocast ends, after the loss. Source: torch's `autocast_mode.cpp` ("cache fp16 casts of fp32 model weights").
    pub(super) all: u128,
    /// What autograd keeps: of the output layer, and of blocks that are not recomputed.
    pub(super) kept: u128,
    /// One block's.
    pub(super) block: u128,
}

/// What a training needs of it. `layers` is unknown with a bare number of parameters: then no unit is.
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

/// Blocks that went back are freed again.
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

/// Whether anything is gathered and reduced at all.
fn sharded(settings: &Settings) -> bool {
    settings.gathers() && settings.shards() > 1
}

/// Bytes of a gathered parameter. `MixedPrecisionPolicy` casts before it gathers; autocast casts after.
fn gathered_width(settings: &Settings) -> u128 {
    match settings.precision {
        Precision::Fp16Amp => settings.precision.stored(),
        _ => settings.precision.computed(),
    }
}
