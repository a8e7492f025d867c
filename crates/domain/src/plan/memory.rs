//! A plan: what takes how much, and how much there is at once.
//!
//! Not everything lives at the same time. A step has four moments at which memory can peak:
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
//! Between the second and the third, activations fall while gradients rise, block by block: the larger of both ends is the most.
//! With several micro-batches a step, and where gradients are views into buckets, gradients are there always.

use serde::Serialize;

use super::settings::{Attention, Refusal, Settings, Strategy};
use super::{activations, communication, states, tensors};

/// What a training takes on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Parameters of the model, all GPUs together, each once.
    pub model_parameters: u64,
    /// What takes memory, states first.
    pub components: Vec<Component>,
    /// The most that is alive at once, bytes.
    pub peak_bytes: u64,
    /// When that is.
    pub peak_at: Moment,
    /// What a reader must know to believe the figures.
    pub notes: Vec<String>,
}

/// One thing that takes memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Which.
    pub part: Part,
    /// Its size at its largest, bytes.
    pub bytes: u64,
    /// What of it is alive when the peak is reached, bytes.
    pub at_peak_bytes: u64,
    /// How the figure came about.
    pub basis: Basis,
}

/// What takes memory.
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

/// How a figure came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Follows from shapes and types.
    Exact,
    /// A published formula, held against PyTorch.
    Formula,
    /// A figure that depends on versions and machines.
    Estimate,
}

/// A moment of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// All activations are kept, the loss is differentiated.
    StartOfBackward,
    /// The last block of the model computes its gradients.
    FirstBlockBack,
    /// The first block of the model does; all gradients are there.
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

    /// For a person.
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
    /// For a person.
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

/// Makes the plan. `framework` is what the GPU's context, NCCL and loaded kernels take, bytes.
///
/// # Errors
/// When the settings make no sense, or the answer is beyond 64 bits.
pub fn plan(settings: &Settings, framework: u64) -> Result<Plan, Refusal> {
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
        .collect::<Result<_, Refusal>>()?;
    Ok(Plan {
        model_parameters: fitting(settings.model.parameters())?,
        components,
        peak_bytes: fitting(peak)?,
        peak_at: Moment::ALL[at],
        notes: notes(settings),
    })
}

fn lines(settings: &Settings, framework: u64) -> Vec<Line> {
    let tensors = tensors::of(&settings.model);
    let s = states::of(settings, &tensors);
    let shape = settings.model.shape();
    let c = communication::of(settings, &tensors, shape.map(|shape| shape.layers), s.gradients);
    let always = |part, bytes| Line { part, at: [bytes; 4] };
    let mut lines = vec![
        always(Part::Parameters, s.parameters),
        Line {
            part: Part::Gradients,
            at: gradients(settings, s.gradients, c.first_gradients),
        },
        always(Part::OptimizerStates, s.optimizer),
        always(Part::MasterCopies, s.master),
    ];
    if let Some(shape) = shape {
        let a = activations::of(settings, shape);
        // The last blocks to go back are recomputed or, without checkpointing, what is left of all.
        let (left, again) = if settings.checkpointing.at_once(shape.layers) > 0 {
            (0, a.last)
        } else {
            (a.last, 0)
        };
        // The cache of casts ends with autocast, before the loss's gradients come.
        let cached = (c.casts.all - c.casts.kept).saturating_sub(a.loss_gradients - a.loss);
        let casts = [
            c.casts.kept + cached,
            c.casts.kept + c.casts.block,
            c.casts.block,
            0,
        ];
        lines.extend([
            Line {
                part: Part::Activations,
                at: [a.kept + a.ends, a.kept, left, 0],
            },
            Line {
                part: Part::Recomputed,
                at: [0, a.recomputed, again, 0],
            },
            Line {
                part: Part::BlockGradients,
                at: [0, a.block_gradients, a.block_gradients, 0],
            },
            Line {
                part: Part::Loss,
                at: [a.loss + a.loss_gradients, 0, 0, 0],
            },
            Line {
                part: Part::LowPrecisionCopies,
                at: casts,
            },
        ]);
    }
    lines.extend([
        always(Part::Buckets, c.buckets),
        Line {
            part: Part::GatheredUnits,
            at: [c.gathered[0], c.gathered[1], c.gathered[2], 0],
        },
        Line {
            part: Part::ReducedGradients,
            at: [0, c.computed, c.reduced, 0],
        },
        Line {
            part: Part::OptimizerTemporaries,
            at: [0, 0, 0, s.temporaries],
        },
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
            "Grouped keys and values are counted once. Code that repeats them for each head before attention (repeat_kv) keeps more.",
        );
    }
    if settings.checkpointing == super::Checkpointing::Sequential(1) {
        note("One segment recomputes nothing: checkpoint_sequential leaves its last segment as it is.");
    } else if settings.checkpointing.at_once(shape.layers) > shape.layers.div_ceil(4) {
        note("Segments this long come back as a whole: they save little. Checkpoint each block.");
    }
    if settings.sequence_parallel {
        note(
            "Under sequence parallelism the inputs of linear layers are counted whole, as autograd keeps them: an estimate.",
        );
    }
    notes
}

fn fitting(bytes: u128) -> Result<u64, Refusal> {
    u64::try_from(bytes).map_err(|_| {
        Refusal("these settings need more than 16 EiB a GPU: one of the numbers is wrong".to_owned())
    })
}
