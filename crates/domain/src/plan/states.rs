//! Memory of a model's states. It is exact, because it follows from shapes and types.
//!
//! Sources: ZeRO (Rajbhandari et al. 2020, §3.1) for 16 bytes per parameter and for what sharding divides; documentation of torch.optim for
//! what each optimizer keeps and for the temporary memory of `foreach`; `MixedPrecisionPolicy` for the types of FSDP2.

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
    /// Temporary memory of the optimizer's step.
    pub(super) temporaries: u128,
}

/// Returns the states of these tensors.
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
    // ZeroRedundancyOptimizer distributes whole tensors, the largest first: nearly even, but not exactly.
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

/// Returns the number of GPUs over which the optimizer's work is distributed.
fn stepped_by(settings: &Settings) -> u64 {
    match settings.strategy {
        Strategy::Zero1 => settings.data_parallel(),
        Strategy::Ddp | Strategy::Fsdp | Strategy::Hsdp => settings.shards(),
    }
}

/// Returns the state of Adafactor: a row and a column for a matrix, the whole vector for a vector. Source: `torch.optim.Adafactor`
/// (`row_var`, `col_var`, `variance`). Of a sharded matrix, each GPU keeps the column: an estimate.
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

/// Returns the temporary memory of the optimizer. `foreach` needs about as much again as the parameters. Source: torch.optim ("~
/// sizeof(params) more peak memory"). Measured: exactly that for AdamW, nothing for SGD (both in testdata/plan).
fn temporaries(settings: &Settings, size: u128) -> u128 {
    match settings.optimizer {
        Optimizer::Adamw | Optimizer::Adafactor if settings.foreach => size,
        _ => 0,
    }
}

impl Precision {
    /// Returns the bytes of a stored parameter and of its gradient: `fully_shard` casts reduced gradients to the type of the parameter.
    pub(super) fn stored(self) -> u128 {
        match self {
            Self::Fp32 | Self::Bf16Mixed | Self::Fp16Amp => 4,
            Self::Bf16 | Self::Bf16Master => 2,
        }
    }

    /// Returns the bytes of a number in matrix products, and of the activations around them.
    pub(super) fn computed(self) -> u128 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16Mixed | Self::Fp16Amp | Self::Bf16 | Self::Bf16Master => 2,
        }
    }
}
