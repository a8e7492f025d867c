//! `lockstep plan memory`: the options, and their conversion to the settings of a plan.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use domain::bytes::parse_bytes;
use domain::plan::{
    Attention, Checkpointing, InvalidSettings, Optimizer, Precision, Settings, Strategy, alternatives, plan,
    ways_to_fit,
};
use serde::de::DeserializeOwned;

use super::model::ModelOptions;
use super::show::{self, MemoryReport};
use crate::failure::Failure;

/// Estimate the memory per GPU by component and by strategy, and what would make it fit.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep plan memory --model llama3-8b --gpus 8 --sequence 8192 --gpu-memory 80GiB
  lockstep plan memory --model gpt2-xl --strategy ddp --gpus 4 --micro-batch 8 --gpu-memory 40GiB
  lockstep plan memory --model llama3-8b --layers 40 --strategy hsdp --gpus 64 --checkpointing block
  lockstep plan memory --layers 24 --hidden 2048 --heads 16 --vocabulary 50000
  lockstep plan memory --params 7e9 --gpus 64 --format json      states only: activations need dimensions

How to read the tables:
  Not all memory is in use at the same time. The peak of a step is at the start of the backward
  pass (all activations, the loss), within it (gradients are added while activations are freed),
  or in the optimizer's step. AT THE PEAK is the memory in use at that time; its sum is the peak.
  FSDP shards states (parameters, gradients, optimizer); DDP does not. Neither of them shards
  activations: a smaller micro-batch or sequence, checkpointing (recomputed in the backward pass,
  at most a third more computation) or tensor parallelism reduces them.
  exact: follows from shapes. formula: published, compared with PyTorch. estimate: depends on
  versions and machines. docs/plan.md has formulas, sources, and differences from measurements.

Exit codes: 0 success (also if the model does not fit), 2 invalid settings.")]
pub(super) struct Memory {
    #[command(flatten)]
    model: ModelOptions,

    /// How parameters, gradients and optimizer states are distributed: ddp (a full copy per GPU), zero1 (DDP with ZeroRedundancyOptimizer),
    /// fsdp (fully_shard over all GPUs), hsdp (sharded inside a group, copied between groups).
    #[arg(long, default_value = "fsdp", value_parser = one_of::<Strategy>(&["ddp", "zero1", "fsdp", "hsdp"]), help_heading = SPREAD)]
    strategy: Strategy,
    /// Number of GPUs of the training run.
    #[arg(long, default_value_t = 8, value_name = "N", help_heading = SPREAD)]
    gpus: u64,
    /// HSDP: number of GPUs that share one copy, for example those of one node.
    #[arg(long, default_value_t = 8, value_name = "N", help_heading = SPREAD)]
    shard_group: u64,
    /// FSDP, HSDP: free the gathered parameters between forward and backward. With false, only gradients and optimizer states are sharded:
    /// more memory, less communication.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL", help_heading = SPREAD)]
    reshard_after_forward: bool,
    /// Number of GPUs that share each layer.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = SPREAD)]
    tensor_parallel: u64,
    /// With --tensor-parallel: split norms and the residual stream along the sequence.
    #[arg(long, help_heading = SPREAD)]
    sequence_parallel: bool,
    /// DDP: gradients are views into the buckets instead of separate copies.
    #[arg(long, help_heading = SPREAD)]
    gradient_as_bucket_view: bool,

    /// Number formats: fp32; bf16-mixed (32-bit parameters, computation in bfloat16: MixedPrecisionPolicy with FSDP, otherwise autocast);
    /// fp16-amp (autocast and GradScaler); bf16 (everything); bf16-master (16-bit with 32-bit copies, as in DeepSpeed and Megatron).
    #[arg(long, default_value = "bf16-mixed", value_parser = one_of::<Precision>(&["fp32", "bf16-mixed", "fp16-amp", "bf16", "bf16-master"]), help_heading = STEP)]
    precision: Precision,
    /// Optimizer. For Adam, choose adamw: it needs the same memory.
    #[arg(long, default_value = "adamw", value_parser = one_of::<Optimizer>(&["adamw", "sgd", "sgd-momentum", "adafactor"]), help_heading = STEP)]
    optimizer: Optimizer,
    /// The optimizer is created with fused=True: its step needs no temporary memory.
    #[arg(long, help_heading = STEP)]
    fused: bool,
    /// What the backward pass recomputes: none, block, every=N (every N-th block), or sequential=N (N segments).
    #[arg(long, visible_alias = "activation-checkpointing", default_value = "none", value_name = "HOW", help_heading = STEP)]
    checkpointing: Checkpointing,
    /// Attention kernel: flash, or materialised (the scores are matrices of heads × sequence × sequence).
    #[arg(long, default_value = "flash", value_parser = one_of::<Attention>(&["flash", "materialised"]), help_heading = STEP)]
    attention: Attention,
    /// The model has dropout: its masks are stored for the backward pass.
    #[arg(long, help_heading = STEP)]
    dropout: bool,
    /// Tokens per sequence [default: 2048, or the number of learned positions if that is smaller].
    #[arg(long, value_name = "TOKENS", help_heading = STEP)]
    sequence: Option<u64>,
    /// Sequences per GPU in one forward pass.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = STEP)]
    micro_batch: u64,
    /// Micro-batches per step (gradient accumulation).
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = STEP)]
    accumulate: u64,

    /// Memory of one GPU, for example 80GiB. The answer then says what fits, and what would make it fit.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = ANSWER)]
    gpu_memory: Option<u64>,
    /// Memory of the CUDA context, NCCL and loaded kernels. An estimate: to measure it, run nvidia-smi after a process has created a tiny
    /// tensor.
    #[arg(long, value_name = "SIZE", default_value = "2GB", value_parser = size, help_heading = ANSWER)]
    framework: u64,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Table, help_heading = ANSWER)]
    format: Format,
}

const SPREAD: &str = "Distribution";
const STEP: &str = "Training step";
const ANSWER: &str = "Output";

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// JSON; all sizes in bytes.
    Json,
}

impl Memory {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let report = self
            .report()
            .map_err(|InvalidSettings(words)| Failure::Usage(words))?;
        match self.format {
            Format::Table => show::table(&report),
            Format::Json => show::json(&report)?,
        }
        Ok(())
    }

    fn report(&self) -> Result<MemoryReport, InvalidSettings> {
        let settings = self.settings()?;
        Ok(MemoryReport {
            model: self.model.name(),
            plan: plan(&settings, self.framework)?,
            gpu_memory: self.gpu_memory,
            alternatives: alternatives(&settings, self.framework),
            ways_to_fit: self
                .gpu_memory
                .map(|memory| ways_to_fit(&settings, self.framework, memory))
                .unwrap_or_default(),
            settings,
        })
    }

    fn settings(&self) -> Result<Settings, InvalidSettings> {
        let model = self.model.model()?;
        let positions = model.shape().map_or(0, |shape| shape.positions);
        let most = if positions > 0 { positions } else { u64::MAX };
        Ok(Settings {
            strategy: self.strategy,
            gpus: self.gpus,
            shard_group: self.shard_group,
            reshard_after_forward: self.reshard_after_forward,
            tensor_parallel: self.tensor_parallel,
            sequence_parallel: self.sequence_parallel,
            precision: self.precision,
            optimizer: self.optimizer,
            foreach: !self.fused,
            gradient_as_bucket_view: self.gradient_as_bucket_view,
            checkpointing: self.checkpointing,
            attention: self.attention,
            dropout: self.dropout,
            sequence: self.sequence.unwrap_or(most.min(2_048)),
            micro_batch: self.micro_batch,
            accumulate: self.accumulate,
            ..Settings::of(model)
        })
    }
}

/// Parses one of `words`, as the plan's types spell them in JSON.
fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).map(|word| {
        serde_json::from_value(serde_json::Value::String(word))
            .expect("each listed word is one of the type's")
    })
}

fn size(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("must be more than zero".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}
