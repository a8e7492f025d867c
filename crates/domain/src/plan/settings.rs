//! Settings of a plan, and their checks.

use serde::{Deserialize, Serialize};

use super::architecture::Model;
use super::checkpointing::Checkpointing;

/// Settings of a training that matter for its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The model to train.
    pub model: Model,
    /// How the states of the model are distributed.
    pub strategy: Strategy,
    /// Number of GPUs of the training.
    pub gpus: u64,
    /// HSDP: number of GPUs that share one copy of the states.
    pub shard_group: u64,
    /// FSDP and HSDP: true if the gathered parameters of a block are freed between forward and backward. `false` shards only gradients and
    /// optimizer states.
    pub reshard_after_forward: bool,
    /// Number of GPUs that share each layer.
    pub tensor_parallel: u64,
    /// With tensor parallelism: true if norms, dropouts and the residual stream are split along the sequence.
    pub sequence_parallel: bool,
    /// Number types.
    pub precision: Precision,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// True if the optimizer processes all tensors at once and needs temporary memory, as is torch's default on GPUs. `fused=True` needs
    /// none.
    pub foreach: bool,
    /// DDP: true if gradients are views into the buckets instead of separate copies.
    pub gradient_as_bucket_view: bool,
    /// Activation checkpointing.
    pub checkpointing: Checkpointing,
    /// How attention is computed.
    pub attention: Attention,
    /// True if dropout is on: its masks are kept.
    pub dropout: bool,
    /// Number of tokens in a sequence.
    pub sequence: u64,
    /// Number of sequences per GPU and forward pass.
    pub micro_batch: u64,
    /// Number of micro-batches per step. With two or more, gradients stay in memory during the forward pass.
    pub accumulate: u64,
}

/// How parameters, gradients and optimizer states are distributed over GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// `DistributedDataParallel`: each GPU has everything.
    Ddp,
    /// DDP with `ZeroRedundancyOptimizer`: optimizer states are sharded.
    Zero1,
    /// `fully_shard` over all GPUs.
    Fsdp,
    /// `fully_shard` on a two-dimensional mesh: sharded within a group, replicated between groups.
    Hsdp,
}

/// Types of parameters, gradients, optimizer states and computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32 bits for everything.
    Fp32,
    /// Parameters in 32 bits, computation in bfloat16: by `MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)` under FSDP and
    /// HSDP, otherwise by `torch.autocast`.
    Bf16Mixed,
    /// Parameters in 32 bits, `torch.autocast` in float16 with a `GradScaler`.
    Fp16Amp,
    /// bfloat16 for everything, including optimizer states.
    Bf16,
    /// Parameters and gradients in 16 bits, with a 32-bit copy of the parameters and 32-bit optimizer states: the 2 + 2 + 12 bytes of the
    /// ZeRO paper, as in DeepSpeed and Megatron.
    Bf16Master,
}

/// Optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Two moments per parameter; the same for Adam.
    Adamw,
    /// No state.
    Sgd,
    /// One momentum per parameter.
    SgdMomentum,
    /// `torch.optim.Adafactor`: one row and one column per matrix.
    Adafactor,
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Flash attention: keeps one number per head and token.
    Flash,
    /// Scores are stored as matrices of heads × sequence × sequence.
    Materialised,
}

/// Why settings are not valid, as a text for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSettings(pub String);

impl Settings {
    /// Returns the default settings for a model: FSDP on one machine with eight GPUs, bfloat16 mixed, AdamW, flash attention, one sequence
    /// of 2048 tokens per GPU.
    #[must_use]
    pub fn of(model: Model) -> Self {
        Self {
            model,
            strategy: Strategy::Fsdp,
            gpus: 8,
            shard_group: 8,
            reshard_after_forward: true,
            tensor_parallel: 1,
            sequence_parallel: false,
            precision: Precision::Bf16Mixed,
            optimizer: Optimizer::Adamw,
            foreach: true,
            gradient_as_bucket_view: false,
            checkpointing: Checkpointing::None,
            attention: Attention::Flash,
            dropout: false,
            sequence: 2_048,
            micro_batch: 1,
            accumulate: 1,
        }
    }

    /// Returns the number of copies of the model, counting tensor-parallel GPUs as one.
    pub(super) fn data_parallel(&self) -> u64 {
        self.gpus / self.tensor_parallel
    }

    /// Returns the number of GPUs over which parameters and gradients are sharded.
    pub(super) fn shards(&self) -> u64 {
        match self.strategy {
            Strategy::Ddp | Strategy::Zero1 => 1,
            Strategy::Fsdp => self.data_parallel(),
            Strategy::Hsdp => self.shard_group,
        }
    }

    /// Returns true if `fully_shard` is used.
    pub(super) fn gathers(&self) -> bool {
        matches!(self.strategy, Strategy::Fsdp | Strategy::Hsdp)
    }

    /// Returns true if `torch.autocast` casts weights and inputs, layer by layer.
    pub(super) fn autocast(&self) -> bool {
        match self.precision {
            Precision::Fp16Amp => true,
            Precision::Bf16Mixed => !self.gathers(),
            Precision::Fp32 | Precision::Bf16 | Precision::Bf16Master => false,
        }
    }

    /// Checks the settings and limits every number, so that the largest product of a plan is below 2^110.
    ///
    /// # Errors
    /// Returns what is wrong, and what to change.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        self.model.check()?;
        check_range("gpus", self.gpus, 1, 1 << 20)?;
        check_range("sequence", self.sequence, 1, 1 << 27)?;
        check_range("micro-batch", self.micro_batch, 1, 1 << 20)?;
        check_range("accumulate", self.accumulate, 1, 1 << 20)?;
        check_range("tensor-parallel", self.tensor_parallel, 1, self.gpus)?;
        self.check_groups()?;
        match &self.model {
            Model::Shape(_) => self.check_shape(),
            Model::Count { .. } => self.check_count(),
        }
    }

    fn check_groups(&self) -> Result<(), InvalidSettings> {
        if !self.gpus.is_multiple_of(self.tensor_parallel) {
            return Err(InvalidSettings(format!(
                "{} GPUs cannot be divided into groups of {} for tensor parallelism",
                self.gpus, self.tensor_parallel
            )));
        }
        let copies = self.data_parallel();
        if self.strategy == Strategy::Hsdp && !copies.is_multiple_of(self.shard_group.max(1)) {
            return Err(InvalidSettings(format!(
                "HSDP cannot divide {copies} data-parallel GPUs into shard groups of {}; the group must divide their number",
                self.shard_group
            )));
        }
        if self.strategy == Strategy::Hsdp {
            check_range("shard-group", self.shard_group, 1, copies)?;
        }
        if self.sequence_parallel && self.tensor_parallel == 1 {
            return Err(InvalidSettings(
                "sequence parallelism requires tensor parallelism: add --tensor-parallel".to_owned(),
            ));
        }
        Ok(())
    }

    fn check_shape(&self) -> Result<(), InvalidSettings> {
        let Some(shape) = self.model.shape() else {
            return Ok(());
        };
        let t = self.tensor_parallel;
        if !shape.kv_heads.is_multiple_of(t) || !shape.mlp.is_multiple_of(t) {
            return Err(InvalidSettings(format!(
                "tensor parallelism over {t} GPUs must divide the {} heads of keys and values and the MLP's width {}",
                shape.kv_heads, shape.mlp
            )));
        }
        if shape.positions > 0 && self.sequence > shape.positions {
            return Err(InvalidSettings(format!(
                "a sequence of {} tokens is longer than the model's {} learned positions",
                self.sequence, shape.positions
            )));
        }
        let (Checkpointing::Every(n) | Checkpointing::Sequential(n)) = self.checkpointing else {
            return Ok(());
        };
        if n == 0 || n > shape.layers {
            return Err(InvalidSettings(format!(
                "checkpointing {} is not possible with {} layers",
                self.checkpointing, shape.layers
            )));
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), InvalidSettings> {
        if self.optimizer == Optimizer::Adafactor {
            return Err(InvalidSettings(
                "Adafactor keeps a row and a column of each matrix: without the model's dimensions its size is unknown. Give a \
                 preset or --layers, --hidden and so on, or another optimizer"
                    .to_owned(),
            ));
        }
        if self.checkpointing != Checkpointing::None {
            return Err(InvalidSettings(
                "checkpointing changes activations, which are unknown if only --params is given. Give a preset or the dimensions"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Returns an error if a number is out of its bounds.
pub(super) fn check_range(name: &str, value: u64, least: u64, most: u64) -> Result<(), InvalidSettings> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(InvalidSettings(format!(
        "--{name} is {value}; it must be from {least} to {most}"
    )))
}
