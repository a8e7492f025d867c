//! What a model's own states take: exact, since it follows from shapes and types.
//!
//! Sources: ZeRO (Rajbhandari et al. 2020, §3.1) for 16 bytes a parameter and what sharding divides; torch.optim's documentation for what each
//! optimizer keeps and for the temporaries of `foreach`; `MixedPrecisionPolicy` for FSDP2's types.

use super::settings::{Optimizer, Precision, Settings, Strategy};
use super::tensors::Tensor;

/// Bytes of the states on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct States {
    pub(super) parameters: u128,
    pub(super) gradients: u128,
    pub(super) optimizer: u128,
    /// 32-bit copies of 16-bit parameters.
    pub(super) master: u128,
    /// What the optimizer's step needs for its duration.
    pub(super) temporaries: u128,
}

/// The states of these tensors.
pub(super) fn of(settings: &Settings, tensors: &[Tensor]) -> States {
    let shards = settings.shards();
    let elements = |shards| -> u128 {
        tensors
            .iter()
            .map(|tensor| tensor.sharded(settings.tensor_parallel, shards))
            .sum()
    };
    let stored = settings.precision.stored();
    let stepped_shards = stepped_by(settings);
    // ZeroRedundancyOptimizer hands out whole tensors, greedily by size: near to even, not exactly.
    let stepped = if settings.strategy == Strategy::Zero1 {
        elements(1).div_ceil(u128::from(stepped_shards))
    } else {
        elements(shards)
    };
    let kept: u128 = match settings.optimizer {
        Optimizer::Adamw => 2 * stepped,
        Optimizer::Sgd => 0,
        Optimizer::SgdMomentum => stepped,
        Optimizer::Adafactor => tensors
            .iter()
            .map(|tensor| factors(tensor, settings.tensor_parallel, stepped_shards))
            .sum(),
    };
    let master = settings.precision == Precision::Bf16Master;
    let step_width = if master { 4 } else { stored };
    States {
        parameters: stored * elements(shards),
        gradients: stored * elements(shards),
        optimizer: step_width * kept,
        master: if master { 4 * stepped } else { 0 },
        temporaries: temporaries(settings, step_width * stepped),
    }
}

/// GPUs that the optimizer's work is spread over.
fn stepped_by(settings: &Settings) -> u64 {
    match settings.strategy {
        Strategy::Zero1 => settings.data_parallel(),
        Strategy::Ddp | Strategy::Fsdp | Strategy::Hsdp => settings.shards(),
    }
}

/// Adafactor keeps a row and a column of a matrix, a vector whole. Source: `torch.optim.Adafactor` (`row_var`, `col_var`, `variance`).
/// Of a sharded matrix the column is kept by each GPU: an estimate.
fn factors(tensor: &Tensor, tensor_parallel: u64, shards: u64) -> u128 {
    let (rows, columns) = tensor.shape(tensor_parallel);
    let own = u128::from(rows.div_ceil(shards));
    let kept = if tensor.columns.is_some() {
        own + u128::from(columns)
    } else {
        own
    };
    kept * u128::from(tensor.count)
}

/// `foreach` needs about the parameters' size more. Source: torch.optim ("~ sizeof(params) more peak memory"); measured to the byte for
/// AdamW, none for SGD (both in testdata/plan).
fn temporaries(settings: &Settings, size: u128) -> u128 {
    match settings.optimizer {
        Optimizer::Adamw | Optimizer::Adafactor if settings.foreach => size,
        _ => 0,
    }
}

impl Precision {
    /// Bytes of a stored parameter, and of its gradient: `fully_shard` casts reduced gradients to the parameter's type.
    pub(super) fn stored(self) -> u128 {
        match self {
            Self::Fp32 | Self::Bf16Mixed | Self::Fp16Amp => 4,
            Self::Bf16 | Self::Bf16Master => 2,
        }
    }

    /// Bytes of a number in matrix products, and of the activations around them.
    pub(super) fn computed(self) -> u128 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16Mixed | Self::Fp16Amp | Self::Bf16 | Self::Bf16Master => 2,
        }
    }
}
