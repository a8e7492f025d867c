//! The same model with other settings: a table of strategies, and the smallest changes with which it fits.

use schemars::JsonSchema;
use serde::Serialize;

use super::checkpointing::Checkpointing;
use super::fit::{Fit, Verdict};
use super::memory::plan;
use super::settings::{Attention, Precision, Settings, Strategy};

/// Maximum number of ways to fit that are shown. More are too many to compare.
const WAYS_SHOWN: usize = 6;
/// Maximum price of a way to fit. A more expensive change would be a different training.
const PRICE_MAX: u32 = 24;

/// The same model with another strategy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// Name of the strategy, with its important settings.
    pub name: String,
    /// Activation checkpointing.
    pub checkpointing: Checkpointing,
    /// True if these are the requested settings.
    pub asked: bool,
    /// Peak memory of a GPU in bytes.
    pub peak_bytes: u64,
}

/// Changes that together make a training fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Change {
    /// The changes, as text.
    pub steps: Vec<String>,
    /// Peak memory after the changes, in bytes.
    pub peak_bytes: u64,
    /// Comparison with the GPU's memory.
    pub fit: Fit,
}

/// Returns every strategy with and without recomputed blocks, and the requested settings.
#[must_use]
pub fn alternatives(settings: &Settings, framework: u64) -> Vec<Alternative> {
    let mut checkpointings = vec![Checkpointing::None];
    if settings.model.shape().is_some() {
        checkpointings.push(Checkpointing::Block);
    }
    if !checkpointings.contains(&settings.checkpointing) {
        checkpointings.push(settings.checkpointing);
    }
    let mut found = Vec::new();
    for (strategy, reshard) in strategies(settings) {
        for &checkpointing in &checkpointings {
            let other = Settings {
                strategy,
                reshard_after_forward: reshard,
                checkpointing,
                ..settings.clone()
            };
            let Ok(plan) = plan(&other, framework) else {
                continue;
            };
            found.push(Alternative {
                name: strategy_name(&other),
                checkpointing,
                asked: strategy_name(&other) == strategy_name(settings)
                    && checkpointing == settings.checkpointing,
                peak_bytes: plan.peak_bytes,
            });
        }
    }
    found
}

/// Returns the cheapest changes that make the training fit, cheapest first. None contains an unnecessary change. Returns an empty list if
/// the training already fits or cannot fit.
#[must_use]
pub fn ways_to_fit(settings: &Settings, framework: u64, gpu_memory: u64) -> Vec<Change> {
    let fits = |settings: &Settings| {
        let peak = plan(settings, framework).ok()?.peak_bytes;
        let fit = Fit::of(peak, gpu_memory);
        (fit.verdict == Verdict::Fits).then_some((peak, fit))
    };
    if fits(settings).is_some() {
        return Vec::new();
    }
    let mut all = Vec::new();
    collect(&dimensions(settings), &mut Vec::new(), &mut all);
    all.sort_by_key(|steps| (price(steps), steps.len()));
    let mut taken: Vec<Vec<Step>> = Vec::new();
    let mut ways = Vec::new();
    for steps in all {
        if ways.len() == WAYS_SHOWN || price(&steps) > PRICE_MAX {
            break;
        }
        if taken.iter().any(|less| {
            less.iter()
                .all(|step| steps.iter().any(|other| other.includes(*step)))
        }) {
            continue;
        }
        let changed = steps
            .iter()
            .fold(settings.clone(), |settings, step| step.apply(settings));
        if let Some((peak_bytes, fit)) = fits(&changed) {
            ways.push(Change {
                steps: steps.iter().map(|step| step.label(settings)).collect(),
                peak_bytes,
                fit,
            });
            taken.push(steps);
        }
    }
    ways
}

fn strategies(settings: &Settings) -> Vec<(Strategy, bool)> {
    let copies = settings.data_parallel();
    if copies == 1 {
        return vec![(settings.strategy, settings.reshard_after_forward)];
    }
    let mut all = vec![
        (Strategy::Ddp, true),
        (Strategy::Zero1, true),
        (Strategy::Fsdp, false),
        (Strategy::Fsdp, true),
    ];
    if settings.shard_group > 1
        && settings.shard_group < copies
        && copies.is_multiple_of(settings.shard_group)
    {
        all.splice(2..2, [(Strategy::Hsdp, false), (Strategy::Hsdp, true)]);
    }
    all
}

fn strategy_name(settings: &Settings) -> String {
    let sharded = match settings.strategy {
        Strategy::Ddp => return "ddp".to_owned(),
        Strategy::Zero1 => return "zero1".to_owned(),
        Strategy::Fsdp => "fsdp".to_owned(),
        Strategy::Hsdp => format!("hsdp, groups of {}", settings.shard_group),
    };
    if settings.reshard_after_forward {
        sharded
    } else {
        format!("{sharded}, reshard_after_forward=false")
    }
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    BucketView,
    Fused,
    Flash,
    Mixed,
    Strategy(Strategy, bool),
    Checkpointing(Checkpointing),
    MicroBatch(u64),
    TensorParallel(u64),
    Gpus(u64, u32),
}

/// Returns what can be changed; for each dimension, the possible changes.
fn dimensions(settings: &Settings) -> Vec<Vec<Step>> {
    let mut dimensions = vec![vec![Step::BucketView], vec![Step::Fused]];
    if settings.precision == Precision::Fp32 {
        dimensions.push(vec![Step::Mixed]);
    }
    let strategies = strategies(settings);
    dimensions.push(
        strategies
            .into_iter()
            .map(|(strategy, reshard)| Step::Strategy(strategy, reshard))
            .collect(),
    );
    if let Some(shape) = settings.model.shape() {
        if settings.attention == Attention::Materialised {
            dimensions.push(vec![Step::Flash]);
        }
        if settings.checkpointing != Checkpointing::Block {
            dimensions.push(vec![
                Step::Checkpointing(Checkpointing::Every(2)),
                Step::Checkpointing(Checkpointing::Block),
            ]);
        }
        let halves = std::iter::successors(Some(settings.micro_batch / 2), |half| Some(half / 2));
        dimensions.push(
            halves
                .take_while(|half| *half > 0)
                .take(4)
                .map(Step::MicroBatch)
                .collect(),
        );
        let degrees = [2, 4, 8].into_iter().filter(|t| *t > settings.tensor_parallel);
        dimensions.push(
            degrees
                .filter(|t| shape.kv_heads.is_multiple_of(*t))
                .map(Step::TensorParallel)
                .collect(),
        );
    }
    let more = (1..=4).map(|doublings| Step::Gpus(settings.gpus << doublings, doublings));
    dimensions.push(more.collect());
    dimensions
}

/// Collects every combination with at most one change per dimension.
fn collect(dimensions: &[Vec<Step>], chosen: &mut Vec<Step>, all: &mut Vec<Vec<Step>>) {
    let Some((first, rest)) = dimensions.split_first() else {
        if !chosen.is_empty() {
            all.push(chosen.clone());
        }
        return;
    };
    collect(rest, chosen, all);
    for step in first {
        chosen.push(*step);
        if price(chosen) <= PRICE_MAX {
            collect(rest, chosen, all);
        }
        chosen.pop();
    }
}

fn price(steps: &[Step]) -> u32 {
    steps.iter().map(|step| step.price()).sum()
}

impl Step {
    /// Returns the price of a change: an estimate of its cost in speed, work or money, only for ordering. A price of one does not change
    /// the training. Recomputation costs at most a third of the computation (one more forward pass). More machines cost most.
    fn price(self) -> u32 {
        match self {
            Self::BucketView | Self::Fused => 1,
            Self::Flash => 1,
            Self::Strategy(Strategy::Zero1, _) | Self::Mixed => 2,
            Self::Strategy(Strategy::Ddp, _) => 2,
            Self::Strategy(Strategy::Hsdp, reshard) => 3 + u32::from(reshard),
            Self::Strategy(Strategy::Fsdp, reshard) => 3 + 2 * u32::from(reshard),
            Self::Checkpointing(Checkpointing::Every(_)) => 4,
            Self::Checkpointing(_) => 6,
            Self::MicroBatch(_) => 5,
            Self::TensorParallel(_) => 9,
            Self::Gpus(_, doublings) => 10 * doublings,
        }
    }

    /// Returns true if this change is the same as `less`, or goes further.
    fn includes(self, less: Self) -> bool {
        match (self, less) {
            (Self::MicroBatch(size), Self::MicroBatch(larger)) => size <= larger,
            (Self::TensorParallel(degree), Self::TensorParallel(smaller)) => degree >= smaller,
            (Self::Gpus(gpus, _), Self::Gpus(fewer, _)) => gpus >= fewer,
            _ => self == less,
        }
    }

    fn apply(self, mut settings: Settings) -> Settings {
        match self {
            Self::BucketView => settings.gradient_as_bucket_view = true,
            Self::Fused => settings.foreach = false,
            Self::Flash => settings.attention = Attention::Flash,
            Self::Mixed => settings.precision = Precision::Bf16Mixed,
            Self::Strategy(strategy, reshard) => {
                settings.strategy = strategy;
                settings.reshard_after_forward = reshard;
            }
            Self::Checkpointing(checkpointing) => settings.checkpointing = checkpointing,
            Self::MicroBatch(size) => {
                settings.accumulate = settings.accumulate.saturating_mul(settings.micro_batch / size);
                settings.micro_batch = size;
            }
            Self::TensorParallel(degree) => settings.tensor_parallel = degree,
            Self::Gpus(gpus, _) => settings.gpus = gpus,
        }
        settings
    }

    fn label(self, from: &Settings) -> String {
        match self {
            Self::BucketView => "gradient_as_bucket_view=True".to_owned(),
            Self::Fused => "fused=True in the optimizer".to_owned(),
            Self::Flash => "flash attention".to_owned(),
            Self::Mixed => "bf16-mixed precision".to_owned(),
            Self::Strategy(strategy, reshard) => strategy_name(&Settings {
                strategy,
                reshard_after_forward: reshard,
                ..from.clone()
            }),
            Self::Checkpointing(checkpointing) => format!("activation_checkpointing={checkpointing}"),
            Self::MicroBatch(size) => format!(
                "micro_batch={size}, accumulated {} times",
                from.micro_batch / size
            ),
            Self::TensorParallel(degree) => format!("tensor parallelism over {degree} GPUs"),
            Self::Gpus(gpus, _) => format!("{gpus} GPUs"),
        }
    }
}
