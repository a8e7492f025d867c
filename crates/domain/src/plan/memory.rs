//! A plan: which parts need memory, how much, and how much at the same time.
//!
//! Not all memory is in use at the same time. A step has four moments at which memory can peak:
//!
//! ```text
//!            start of backward   first block back   last block back   optimizer's step
//! states             ■                  ■                  ■                 ■
//! gradients          ·               the root's            ■                 ■
//! activations        ■                  ■            one block's             ·
//! recomputed         ·                  ■                  ■                 ·
//! loss               ■                  ·                  ·                 ·
//! gathered units     ■                  ■                  ■                 ·
//! temporaries        ·                  ·                  ·                 ■
//! ```
//! Between the second and the third moment, activations shrink while gradients grow, block by block: the peak is at one of the two. With
//! several micro-batches per step, and if gradients are views into buckets, gradients are always in memory.

use serde::Serialize;

use super::settings::{Attention, InvalidSettings, Settings, Strategy};
use super::{activations, communication, states, tensors};

/// Memory of a training on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Parameters of the model on all GPUs together, each counted once.
    pub model_parameters: u64,
    /// The parts that need memory, states first.
    pub components: Vec<Component>,
    /// Peak memory in bytes.
    pub peak_bytes: u64,
    /// Moment of the peak.
    pub peak_at: Moment,
    /// Assumptions and limits that a reader must know.
    pub notes: Vec<String>,
}

/// One part that needs memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Which part it is.
    pub part: Part,
    /// Its maximum size in bytes.
    pub bytes: u64,
    /// Its size at the moment of the peak, in bytes.
    pub at_peak_bytes: u64,
    /// How the size was computed.
    pub basis: Basis,
}

/// A part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "Part::label says what each is")]
pub enum Part {
    Parameters,
    Gradients,
    OptimizerStates,
    MasterCopies,
    Activations,
    Recomputed,
    BlockGradients,
    Loss,
    LowPrecisionCopies,
    Buckets,
    GatheredUnits,
    ReducedGradients,
    OptimizerTemporaries,
    Framework,
}

/// How a size was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Computed from shapes and types.
    Exact,
    /// Computed with a published formula that was compared with PyTorch.
    Formula,
    /// An estimate that depends on versions and machines.
    Estimate,
}

/// A moment of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// All activations are in memory; the backward pass of the loss runs.
    StartOfBackward,
    /// The backward pass of the model's last block runs.
    FirstBlockBack,
    /// The backward pass of the model's first block runs; all gradients are in memory.
    LastBlockBack,
    /// The optimizer changes the parameters.
    OptimizerStep,
}

impl Moment {
    const ALL: [Self; 4] = [
        Self::StartOfBackward,
        Self::FirstBlockBack,
        Self::LastBlockBack,
        Self::OptimizerStep,
    ];

    /// Returns the text for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::StartOfBackward => "at the start of the backward pass",
            Self::FirstBlockBack => "early in the backward pass",
            Self::LastBlockBack => "at the end of the backward pass",
            Self::OptimizerStep => "in the optimizer's step",
        }
    }
}

impl Part {
    /// Returns the text for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerStates => "optimizer states",
            Self::MasterCopies => "master copies (32 bits)",
            Self::Activations => "activations",
            Self::Recomputed => "recomputed activations",
            Self::BlockGradients => "gradients inside one block",
            Self::Loss => "logits and loss",
            Self::LowPrecisionCopies => "weights cast by autocast",
            Self::Buckets => "DDP's buckets",
            Self::GatheredUnits => "all-gathered units",
            Self::ReducedGradients => "gradients being reduced",
            Self::OptimizerTemporaries => "optimizer's temporaries",
            Self::Framework => "CUDA, NCCL, kernels",
        }
    }

    fn basis(self, settings: &Settings) -> Basis {
        match self {
            Self::Parameters | Self::Gradients | Self::MasterCopies | Self::Buckets => Basis::Exact,
            Self::OptimizerStates if settings.strategy == Strategy::Zero1 => Basis::Estimate,
            Self::OptimizerStates => Basis::Exact,
            Self::Activations | Self::Recomputed | Self::Loss | Self::LowPrecisionCopies => Basis::Formula,
            Self::OptimizerTemporaries => Basis::Formula,
            Self::BlockGradients | Self::GatheredUnits | Self::ReducedGradients | Self::Framework => {
                Basis::Estimate
            }
        }
    }
}

/// Bytes of one part at each of the four moments.
struct Line {
    part: Part,
    at: [u128; 4],
}

/// Computes the plan. `framework` is the memory of the GPU's context, NCCL and loaded kernels, in bytes.
///
/// # Errors
/// Returns an error if the settings are not valid, or the result does not fit in 64 bits.
pub fn plan(settings: &Settings, framework: u64) -> Result<Plan, InvalidSettings> {
    settings.check()?;
    let lines = lines(settings, framework);
    let total = |moment: usize| lines.iter().map(|line| line.at[moment]).sum::<u128>();
    let (at, peak) = (0..Moment::ALL.len())
        .map(|moment| (moment, total(moment)))
        .rev()
        .max_by_key(|(_, total)| *total)
        .expect("a step has moments");
    let components = lines
        .iter()
        .filter(|line| {
            line.at.iter().any(|bytes| *bytes > 0) || matches!(line.part, Part::Parameters | Part::Gradients)
        })
        .map(|line| {
            Ok(Component {
                part: line.part,
                bytes: fitting(*line.at.iter().max().expect("four moments"))?,
                at_peak_bytes: fitting(line.at[at])?,
                basis: line.part.basis(settings),
            })
        })
        .collect::<Result<_, InvalidSettings>>()?;
    Ok(Plan {
        model_parameters: fitting(settings.model.parameters())?,
        components,
        peak_bytes: fitting(peak)?,
        peak_at: Moment::ALL[at],
        notes: notes(settings),
    })
}

/// Returns the bytes of the tensors that autograd keeps for the backward pass of one micro-batch. `None` if the settings are not valid, or
/// only the model's number of parameters is known.
#[must_use]
pub fn saved_for_backward(settings: &Settings) -> Option<u64> {
    settings.check().ok()?;
    let shape = settings.model.shape()?;
    let kept = activations::of(settings, shape);
    let tensors = tensors::of(&settings.model);
    let casts = communication::of(settings, &tensors, Some(shape.layers), 0).casts;
    u64::try_from(kept.kept + kept.ends + kept.loss + casts.kept).ok()
}

fn lines(settings: &Settings, framework: u64) -> Vec<Line> {
    let tensors = tensors::of(&settings.model);
    let s = states::of(settings, &tensors);
    let shape = settings.model.shape();
    let c = communication::of(settings, &tensors, shape.map(|shape| shape.layers), s.gradients);
    let line = |part, at| Line { part, at };
    let always = |part, bytes| line(part, [bytes; 4]);
    let mut lines = vec![
        always(Part::Parameters, s.parameters),
        line(
            Part::Gradients,
            gradients(settings, s.gradients, c.first_gradients),
        ),
        always(Part::OptimizerStates, s.optimizer),
        always(Part::MasterCopies, s.master),
    ];
    if let Some(shape) = shape {
        let a = activations::of(settings, shape);
        // The last blocks of the backward pass are recomputed; without checkpointing, their kept activations are what is left.
        let (left, again) = if settings.checkpointing.at_once(shape.layers) > 0 {
            (0, a.last)
        } else {
            (a.last, 0)
        };
        // The cache of casts is freed when autocast ends, before the gradients of the loss are computed.
        let cached = (c.casts.all - c.casts.kept).saturating_sub(a.loss_gradients - a.loss);
        let casts = [
            c.casts.kept + cached,
            c.casts.kept + c.casts.block,
            c.casts.block,
            0,
        ];
        lines.extend([
            line(Part::Activations, [a.kept + a.ends, a.kept, left, 0]),
            line(Part::Recomputed, [0, a.recomputed, again, 0]),
            line(Part::BlockGradients, [0, a.block_gradients, a.block_gradients, 0]),
            line(Part::Loss, [a.loss + a.loss_gradients, 0, 0, 0]),
            line(Part::LowPrecisionCopies, casts),
        ]);
    }
    lines.extend([
        always(Part::Buckets, c.buckets),
        line(
            Part::GatheredUnits,
            [c.gathered[0], c.gathered[1], c.gathered[2], 0],
        ),
        line(Part::ReducedGradients, [0, c.computed, c.reduced, 0]),
        line(Part::OptimizerTemporaries, [0, 0, 0, s.temporaries]),
        always(Part::Framework, u128::from(framework)),
    ]);
    lines
}

fn gradients(settings: &Settings, all: u128, first: u128) -> [u128; 4] {
    let ddp = matches!(settings.strategy, Strategy::Ddp | Strategy::Zero1);
    if settings.accumulate > 1 || (ddp && settings.gradient_as_bucket_view) {
        return [all; 4];
    }
    [0, first, all, all]
}

fn notes(settings: &Settings) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    let Some(shape) = settings.model.shape() else {
        note(
            "Activations, the loss and gathered units are left out: they need the model's dimensions, not only its number of parameters.",
        );
        return notes;
    };
    if settings.autocast() && settings.gathers() {
        note(
            "autocast under fully_shard keeps a cast copy of every gathered weight for the backward pass, unless blocks are recomputed; MixedPrecisionPolicy (bf16-mixed) does not.",
        );
    }
    if settings.attention == Attention::Flash && shape.kv_heads < shape.heads {
        note(
            "Grouped keys and values are counted once. Code that repeats them for each head before attention (repeat_kv) needs more.",
        );
    }
    if settings.checkpointing == super::Checkpointing::Sequential(1) {
        note("One segment recomputes nothing: checkpoint_sequential leaves its last segment as it is.");
    } else if settings.checkpointing.at_once(shape.layers) > shape.layers.div_ceil(4) {
        note("Segments this long are recomputed as a whole and save little. Checkpoint each block instead.");
    }
    if settings.sequence_parallel {
        note(
            "Under sequence parallelism the inputs of linear layers are counted whole, as autograd keeps them: an estimate.",
        );
    }
    notes
}

fn fitting(bytes: u128) -> Result<u64, InvalidSettings> {
    u64::try_from(bytes).map_err(|_| {
        InvalidSettings(
            "these settings need more than 16 EiB per GPU: one of the numbers is wrong".to_owned(),
        )
    })
}
