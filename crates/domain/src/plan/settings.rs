//! What a plan is made for, and what is refused before anything is computed.

use serde::{Deserialize, Serialize};

use super::architecture::Model;
use super::checkpointing::Checkpointing;

/// A training, as far as memory is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What is trained.
    pub model: Model,
    /// How the model's states are spread.
    pub strategy: Strategy,
    /// All GPUs of the training.
    pub gpus: u64,
    /// HSDP: GPUs that share one copy of the states.
    pub shard_group: u64,
    /// FSDP and HSDP: gathered parameters of a block are freed between forward and backward. `false` shards gradients and optimizer
    /// states only.
    pub reshard_after_forward: bool,
    /// GPUs that share each layer.
    pub tensor_parallel: u64,
    /// With tensor parallelism: norms, dropouts and the residual stream are split along the sequence.
    pub sequence_parallel: bool,
    /// Types of numbers.
    pub precision: Precision,
    /// What updates the parameters.
    pub optimizer: Optimizer,
    /// The optimizer works on all tensors at once and needs temporaries; torch's default on GPUs. `fused=True` needs none.
    pub foreach: bool,
    /// DDP: gradients are views into the buckets instead of copies beside them.
    pub gradient_as_bucket_view: bool,
    /// What is recomputed.
    pub checkpointing: Checkpointing,
    /// How attention is computed.
    pub attention: Attention,
    /// Dropout is on: its masks are kept.
    pub dropout: bool,
    /// Tokens in a sequence.
    pub sequence: u64,
    /// Sequences a GPU and forward pass.
    pub micro_batch: u64,
    /// Micro-batches a step. From two on gradients stay alive during the forward pass.
    pub accumulate: u64,
}

/// How parameters, gradients and optimizer states are spread over GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// `DistributedDataParallel`: everything on each GPU.
    Ddp,
    /// DDP with `ZeroRedundancyOptimizer`: optimizer states are shared out.
    Zero1,
    /// `fully_shard` over all GPUs.
    Fsdp,
    /// `fully_shard` on a two-dimensional mesh: sharded inside a group, copied between groups.
    Hsdp,
}

/// Types of parameters, gradients, optimizer states and computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32 bits throughout.
    Fp32,
    /// Parameters in 32 bits, computed in bfloat16: by `MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)` under FSDP and
    /// HSDP, by `torch.autocast` else.
    Bf16Mixed,
    /// Parameters in 32 bits, `torch.autocast` in float16 with a `GradScaler`.
    Fp16Amp,
    /// bfloat16 throughout, optimizer states too.
    Bf16,
    /// Parameters and gradients in 16 bits, a copy in 32 bits beside 32-bit optimizer states: the ZeRO paper's 2 + 2 + 12 bytes, as
    /// DeepSpeed and Megatron do it.
    Bf16Master,
}

/// What updates the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Two moments a parameter; Adam is the same.
    Adamw,
    /// None.
    Sgd,
    /// One momentum a parameter.
    SgdMomentum,
    /// `torch.optim.Adafactor`: a row and a column of each matrix.
    Adafactor,
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Flash attention: one number a head and token is kept.
    Flash,
    /// Scores are matrices, heads × sequence × sequence.
    Materialised,
}

/// Settings that make no sense, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Settings {
    /// The usual for a model: FSDP on one machine of eight GPUs, bfloat16 mixed, AdamW, flash attention, a sequence of 2048 a GPU.
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

    /// Copies of the model, tensor parallelism taken out.
    pub(super) fn data_parallel(&self) -> u64 {
        self.gpus / self.tensor_parallel
    }

    /// GPUs that parameters and gradients are sharded over.
    pub(super) fn shards(&self) -> u64 {
        match self.strategy {
            Strategy::Ddp | Strategy::Zero1 => 1,
            Strategy::Fsdp => self.data_parallel(),
            Strategy::Hsdp => self.shard_group,
        }
    }

    /// Whether `fully_shard` is at work.
    pub(super) fn gathers(&self) -> bool {
        matches!(self.strategy, Strategy::Fsdp | Strategy::Hsdp)
    }

    /// Whether `torch.autocast` casts weights and inputs, layer by layer.
    pub(super) fn autocast(&self) -> bool {
        match self.precision {
            Precision::Fp16Amp => true,
            Precision::Bf16Mixed => !self.gathers(),
            Precision::Fp32 | Precision::Bf16 | Precision::Bf16Master => false,
        }
    }

    /// Refuses what cannot be, and bounds every number: the largest product of a plan then stays below 2^110.
    ///
    /// # Errors
    /// In words a person can act on.
    pub fn check(&self) -> Result<(), Refusal> {
        self.model.check()?;
        within("gpus", self.gpus, 1, 1 << 20)?;
        within("sequence", self.sequence, 1, 1 << 27)?;
        within("micro-batch", self.micro_batch, 1, 1 << 20)?;
        within("accumulate", self.accumulate, 1, 1 << 20)?;
        within("tensor-parallel", self.tensor_parallel, 1, self.gpus)?;
        self.check_groups()?;
        match &self.model {
            Model::Shape(_) => self.check_shape(),
            Model::Count { .. } => self.check_count(),
        }
    }

    fn check_groups(&self) -> Result<(), Refusal> {
        if !self.gpus.is_multiple_of(self.tensor_parallel) {
            return Err(Refusal(format!(
                "{} GPUs cannot be divided into groups of {} for tensor parallelism",
                self.gpus, self.tensor_parallel
            )));
        }
        let copies = self.data_parallel();
        if self.strategy == Strategy::Hsdp && !copies.is_multiple_of(self.shard_group.max(1)) {
            return Err(Refusal(format!(
                "HSDP cannot divide {copies} data-parallel GPUs into shard groups of {}; the group must divide their number",
                self.shard_group
            )));
        }
        if self.strategy == Strategy::Hsdp {
            within("shard-group", self.shard_group, 1, copies)?;
        }
        if self.sequence_parallel && self.tensor_parallel == 1 {
            return Err(Refusal(
                "sequence parallelism is part of tensor parallelism: give --tensor-parallel too".to_owned(),
            ));
        }
        Ok(())
    }

    fn check_shape(&self) -> Result<(), Refusal> {
        let Some(shape) = self.model.shape() else {
            return Ok(());
        };
        let t = self.tensor_parallel;
        if !shape.kv_heads.is_multiple_of(t) || !shape.mlp.is_multiple_of(t) {
            return Err(Refusal(format!(
                "tensor parallelism over {t} GPUs must divide the {} heads of keys and values and the MLP's width {}",
                shape.kv_heads, shape.mlp
            )));
        }
        if shape.positions > 0 && self.sequence > shape.positions {
            return Err(Refusal(format!(
                "a sequence of {} tokens is longer than the model's {} learned positions",
                self.sequence, shape.positions
            )));
        }
        let (Checkpointing::Every(n) | Checkpointing::Sequential(n)) = self.checkpointing else {
            return Ok(());
        };
        if n == 0 || n > shape.layers {
            return Err(Refusal(format!(
                "checkpointing {} does not go with {} layers",
                self.checkpointing, shape.layers
            )));
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), Refusal> {
        if self.optimizer == Optimizer::Adafactor {
            return Err(Refusal(
                "Adafactor keeps a row and a column of each matrix: without the model's dimensions its size is unknown. Give a \
                 preset or --layers, --hidden and so on, or another optimizer"
                    .to_owned(),
            ));
        }
        if self.checkpointing != Checkpointing::None {
            return Err(Refusal(
                "checkpointing changes activations, and those are unknown with --params alone. Give a preset or the dimensions"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Refuses a number out of its bounds.
pub(super) fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), Refusal> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Refusal(format!(
        "--{name} is {value}; it must be from {least} to {most}"
    )))
}
