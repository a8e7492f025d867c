//! `lockstep plan memory`: the options, and what they mean as settings of a plan.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use domain::bytes::parse_bytes;
use domain::plan::{
    Attention, Checkpointing, Optimizer, Precision, Refusal, Settings, Strategy, alternatives, plan,
    ways_to_fit,
};
use serde::de::DeserializeOwned;

use super::model::ModelOptions;
use super::show::{self, Answer};
use crate::failure::Failure;

/// Bytes a GPU by component, by strategy, and what would make it fit.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep plan memory --model llama3-8b --gpus 8 --sequence 8192 --gpu-memory 80GiB
  lockstep plan memory --model gpt2-xl --strategy ddp --gpus 4 --micro-batch 8 --gpu-memory 40GiB
  lockstep plan memory --model llama3-8b --layers 40 --strategy hsdp --gpus 64 --checkpointing block
  lockstep plan memory --layers 24 --hidden 2048 --heads 16 --vocabulary 50000
  lockstep plan memory --params 7e9 --gpus 64 --format json      activations need dimensions

How to read it:
  Not everything lives at once. A step peaks at the start of its backward pass (all activations,
  the loss), within it (gradients come while activations go), or in the optimizer's step.
  AT THE PEAK is what counts then; its sum is the peak.
  States (parameters, gradients, optimizer) are shared out by FSDP, not by DDP. Activations are
  by neither: a smaller micro-batch or sequence, checkpointing (recomputed in the backward pass,
  at most a third more computation) or tensor parallelism makes them less.
  exact: follows from shapes. formula: published, held against PyTorch. estimate: depends on
  versions and machines. docs/plan.md has formulas, sources, and distances from measurements.

Exit codes: 0 told (also when it does not fit), 2 settings that make no sense.")]
pub(super) struct Memory {
    #[command(flatten)]
    model: ModelOptions,

    /// How states are spread: ddp (a copy each), zero1 (DDP with ZeroRedundancyOptimizer), fsdp (fully_shard over all), hsdp (sharded
    /// inside a group, copied between groups).
    #[arg(long, default_value = "fsdp", value_parser = one_of::<Strategy>(&["ddp", "zero1", "fsdp", "hsdp"]), help_heading = SPREAD)]
    strategy: Strategy,
    /// All GPUs of the training.
    #[arg(long, default_value_t = 8, value_name = "N", help_heading = SPREAD)]
    gpus: u64,
    /// HSDP: GPUs that share one copy, like those of one machine.
    #[arg(long, default_value_t = 8, value_name = "N", help_heading = SPREAD)]
    shard_group: u64,
    /// FSDP, HSDP: free gathered parameters between forward and backward. false shards gradients and optimizer states only: more
    /// memory, less communication.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL", help_heading = SPREAD)]
    reshard_after_forward: bool,
    /// GPUs that share each layer.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = SPREAD)]
    tensor_parallel: u64,
    /// With --tensor-parallel: split norms and the residual stream along the sequence.
    #[arg(long, help_heading = SPREAD)]
    sequence_parallel: bool,
    /// DDP: gradients are views into the buckets, not copies beside them.
    #[arg(long, help_heading = SPREAD)]
    gradient_as_bucket_view: bool,

    /// fp32; bf16-mixed (32-bit parameters, computed in bfloat16: MixedPrecisionPolicy under FSDP, autocast else); fp16-amp (autocast
    /// and GradScaler); bf16 (throughout); bf16-master (16-bit with 32-bit copies, as DeepSpeed and Megatron).
    #[arg(long, default_value = "bf16-mixed", value_parser = one_of::<Precision>(&["fp32", "bf16-mixed", "fp16-amp", "bf16", "bf16-master"]), help_heading = STEP)]
    precision: Precision,
    /// What updates the parameters; Adam is as AdamW.
    #[arg(long, default_value = "adamw", value_parser = one_of::<Optimizer>(&["adamw", "sgd", "sgd-momentum", "adafactor"]), help_heading = STEP)]
    optimizer: Optimizer,
    /// The optimizer is made with fused=True: no temporaries in its step.
    #[arg(long, help_heading = STEP)]
    fused: bool,
    /// What is recomputed in the backward pass: none, block, every=N (every N-th block), sequential=N (N segments).
    #[arg(long, visible_alias = "activation-checkpointing", default_value = "none", value_name = "HOW", help_heading = STEP)]
    checkpointing: Checkpointing,
    /// flash, or scores as matrices of heads × sequence × sequence.
    #[arg(long, default_value = "flash", value_parser = one_of::<Attention>(&["flash", "materialised"]), help_heading = STEP)]
    attention: Attention,
    /// The model has dropout: its masks are kept.
    #[arg(long, help_heading = STEP)]
    dropout: bool,
    /// Tokens in a sequence [default: 2048, or the model's learned positions where those are fewer].
    #[arg(long, value_name = "TOKENS", help_heading = STEP)]
    sequence: Option<u64>,
    /// Sequences a GPU in one forward pass.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = STEP)]
    micro_batch: u64,
    /// Micro-batches a step (gradient accumulation).
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = STEP)]
    accumulate: u64,

    /// Memory of one GPU, like 80GiB: says what fits, and what would make it fit.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = ANSWER)]
    gpu_memory: Option<u64>,
    /// What CUDA's context, NCCL and loaded kernels take. An estimate: measure yours with nvidia-smi after a tiny tensor.
    #[arg(long, value_name = "SIZE", default_value = "2GB", value_parser = size, help_heading = ANSWER)]
    framework: u64,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Table, help_heading = ANSWER)]
    format: Format,
}

const SPREAD: &str = "How it is spread";
const STEP: &str = "What a step does";
const ANSWER: &str = "What is answered";

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs; all sizes in bytes.
    Json,
}

impl Memory {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let answer = self.answer().map_err(|Refusal(words)| Failure::Usage(words))?;
        match self.format {
            Format::Table => show::table(&answer),
            Format::Json => show::json(&answer)?,
        }
        Ok(())
    }

    fn answer(&self) -> Result<Answer, Refusal> {
        let settings = self.settings()?;
        Ok(Answer {
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

    fn settings(&self) -> Result<Settings, Refusal> {
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

/// Takes one of these words, as the plan's own types spell them.
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
        Ok(0) => Err("must be more than nothing".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}
