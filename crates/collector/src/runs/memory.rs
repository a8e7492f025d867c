//! The GPU memory of a run beside its plan. They are compared only if both are about the same: the settings that the ranks have, and what
//! PyTorch's allocator handed out to them.
//!
//! ```text
//! spec, knobs, nodes of the attempt ─▶ settings ─▶ plan without the framework ─┐
//! series of the attempt ─▶ peaks of the worst rank since it started ───────────┴▶ MemoryComparison
//! ```
//! PyTorch's peaks are those since the process started, so they may be older than the first step. Attempts for which that cannot be ruled
//! out are not compared.

use domain::api::runs::{MemoryComparison, PlannedPart, RunMemory, SavedTensors};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::plan::{Basis, Checkpointing, Plan, Settings, plan, saved_for_backward};
use domain::run::checkpoint::Checkpoint;
use domain::run::knob::{How, InPlaceChange, place};
use domain::run::recipe::Recipe;
use domain::run::spec::Spec;
use domain::run::state::{Attempt, AttemptKnobs, Machine};
use domain::time::TimestampMs;

use super::Runs;
use super::error::RunError;
use crate::clock;

/// Maximum length of the period that is read.
const WINDOW_MS: i64 = 30 * 60_000;
/// Minimum number of steps in the period. The optimizer creates its states in the first step, and the probe reads the peaks every ten steps.
const STEPS_MIN: f64 = 20.0;
/// Bytes of a parameter when the recipes create their model, before it is sharded.
const PARAMETER_BYTES: u64 = 4;
/// The setting of recipes that train with several strategies before they begin: then the peak is that of the largest.
const COMPARE_STEPS: &str = "compare-steps";
/// The setting of recipes that load a checkpoint.
const RESUME: &str = "resume";

/// Knobs that the probe applies and that do not change how much memory a step needs.
const NEUTRAL: [&str; 5] = [
    "grad_clip_norm",
    "lr_scale",
    "lr_schedule",
    "num_workers",
    "process_group_timeout_s",
];
/// Knobs that the probe applies and that the plan contains.
const PLANNED: [&str; 2] = ["activation_checkpointing", "reshard_after_forward"];

/// Why an attempt that loaded a checkpoint is not compared.
const LOADED: &str = "the attempt may have loaded a checkpoint, and the peak may be that of loading it";

/// What is measured and not planned, and what is neither.
const LEFT_OUT: [&str; 2] = [
    "The batch, the workspaces of cuBLAS and cuDNN, and the rounding of the allocator are measured, but not planned.",
    "CUDA, NCCL and loaded kernels are outside of PyTorch's allocator, so both numbers leave them out.",
];

/// What was measured.
#[derive(Debug, Clone)]
struct Measured {
    /// Allocated memory of the rank that has the most.
    allocated: RankPeak,
    /// Number of ranks that were measured.
    ranks: usize,
    /// Reserved memory of that rank.
    reserved: Option<RankPeak>,
    /// Saved tensors of the rank that has the most.
    saved: Option<RankPeak>,
}

/// The highest value of a rank.
#[derive(Debug, Clone)]
struct RankPeak {
    rank: Rank,
    node: String,
    value: f64,
}

impl Runs {
    /// Returns the measured memory of the current attempt of a run beside its plan, or why they cannot be compared.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or cannot be read.
    pub async fn memory_beside_plan(&self, run: &RunId) -> Result<RunMemory, RunError> {
        let machine = self.machine(run).await?;
        Ok(match self.compared_memory(&machine).await {
            Ok(compared) => RunMemory {
                compared: Some(compared),
                unknown: None,
            },
            Err(why) => RunMemory {
                compared: None,
                unknown: Some(why),
            },
        })
    }

    async fn compared_memory(&self, machine: &Machine) -> Result<MemoryComparison, String> {
        let attempt = machine.current();
        if may_have_loaded(machine) {
            return Err(LOADED.to_owned());
        }
        let settings = settings(&machine.spec, attempt)?;
        self.check_gpus(attempt)?;
        let planned = plan(&settings, 0).map_err(|error| error.to_string())?;
        let begun_ms = attempt.placement.placed_ms.unwrap_or(attempt.started_ms);
        let to_ms = attempt.ended_ms.unwrap_or_else(clock::now_ms);
        let window_ms = (to_ms - begun_ms).clamp(1, WINDOW_MS);
        let measured = self.measured(&machine.id, to_ms, window_ms).await?;
        if !is_peak_of_step(&planned, &measured) {
            return Err("the peak may be that of the creation of the model".to_owned());
        }
        Ok(compared(attempt.no, &settings, &planned, &measured))
    }

    /// Returns an error if a node of the attempt has simulated GPUs: their memory follows no plan.
    fn check_gpus(&self, attempt: &Attempt) -> Result<(), String> {
        let records = self.parts.live.records();
        let is_simulated = records.iter().any(|record| {
            record.inventory.simulated.is_some() && attempt.nodes.iter().any(|task| task.node == record.name)
        });
        if is_simulated {
            return Err("the GPUs of the run are simulated".to_owned());
        }
        Ok(())
    }

    async fn measured(&self, run: &RunId, to_ms: TimestampMs, window_ms: i64) -> Result<Measured, String> {
        let highest = |metric: &str| format!("max_over_time({metric}{{run=\"{run}\"}}[{window_ms}ms])");
        let allocated = self
            .by_rank(&highest("train_memory_allocated_bytes"), to_ms)
            .await?;
        let ranks = allocated.len();
        let allocated = worst(allocated).ok_or("no GPU memory was measured")?;
        let steps = format!(
            "train_step{{run=\"{run}\",rank=\"{}\"}}[{window_ms}ms]",
            allocated.rank
        );
        let steps = format!("max_over_time({steps}) - min_over_time({steps})");
        let steps = self.by_rank(&steps, to_ms).await?;
        if !steps.iter().any(|steps| steps.value >= STEPS_MIN) {
            return Err("too few steps were measured".to_owned());
        }
        let reserved = self
            .by_rank(&highest("train_memory_reserved_bytes"), to_ms)
            .await?;
        let saved = self.by_rank(&highest("train_saved_tensor_bytes"), to_ms).await?;
        Ok(Measured {
            reserved: reserved
                .into_iter()
                .find(|peak| peak.rank == allocated.rank && peak.node == allocated.node),
            allocated,
            ranks,
            saved: worst(saved),
        })
    }

    /// Returns the positive values of a query with one series per rank.
    async fn by_rank(&self, query: &str, at_ms: TimestampMs) -> Result<Vec<RankPeak>, String> {
        let samples = self.parts.evaluator.samples(query, at_ms).await;
        let samples = samples.map_err(|error| error.to_string())?.into_iter();
        let peaks = samples.filter_map(|(labels, _, value)| {
            Some(RankPeak {
                rank: Rank(labels.get("rank")?.parse().ok()?),
                node: labels.get("node").unwrap_or_default().to_owned(),
                value: Some(value).filter(|value| value.is_finite() && *value > 0.0)?,
            })
        });
        Ok(peaks.collect())
    }
}

/// Returns true if the program may have found a checkpoint without being told to resume: recipes load the newest one in their folder.
fn may_have_loaded(machine: &Machine) -> bool {
    let started_ms = machine.current().started_ms;
    let is_older = |checkpoint: &Checkpoint| {
        checkpoint.foreign || checkpoint.finished_ms.is_some_and(|at_ms| at_ms < started_ms)
    };
    let is_restarted = machine.attempts.len() > 1 && !machine.checkpoints.is_empty();
    is_restarted || machine.checkpoints.iter().any(is_older)
}

/// Returns the settings of the plan for the ranks of an attempt, or why the plan would be for something else.
fn settings(spec: &Spec, attempt: &Attempt) -> Result<Settings, String> {
    if attempt.placement.resumed_from.is_some() || spec.set.contains_key(RESUME) {
        return Err(LOADED.to_owned());
    }
    let nodes = u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX);
    let spec = Spec {
        nodes: Some(nodes.max(1)),
        ..planned_spec(spec, &attempt.knobs)?
    };
    let nproc = attempt.nproc(&spec).filter(|_| nodes > 0);
    let nproc = nproc.ok_or("the number of ranks is not known yet")?;
    Settings::of_run(&spec, nproc).map_err(|error| error.to_string())
}

/// Returns the specification with the knobs that the ranks have.
fn planned_spec(spec: &Spec, knobs: &AttemptKnobs) -> Result<Spec, String> {
    if !spec.args.is_empty() || !spec.knobs.is_empty() {
        return Err("the run has arguments or knobs of its own, which the plan does not read".to_owned());
    }
    if compares_strategies(spec) {
        return Err(format!(
            "the recipe trains with several strategies before it begins; set {COMPARE_STEPS} to 0"
        ));
    }
    let mut injected = knobs
        .values
        .keys()
        .filter(|name| place(spec, name) == Ok(How::Injected));
    if let Some(name) = injected.find(|name| !is_planned(knobs, name)) {
        return Err(format!(
            "the plan does not know what the ranks have made of the knob {name}"
        ));
    }
    if knobs.live.iter().any(changes_memory) {
        return Err("a knob was changed while the attempt ran".to_owned());
    }
    let mut spec = spec.clone();
    spec.set.extend(knobs.values.clone());
    Ok(spec)
}

/// Returns true if the plan is right for ranks in which the probe applies this knob.
fn is_planned(knobs: &AttemptKnobs, name: &str) -> bool {
    let answers = knobs.answers.iter().filter(|answer| answer.knob == name);
    let applied: Vec<bool> = answers.map(|answer| answer.applied).collect();
    let is_applied = !applied.is_empty() && !applied.contains(&false);
    NEUTRAL.contains(&name) || (PLANNED.contains(&name) && is_applied)
}

fn changes_memory(live: &InPlaceChange) -> bool {
    let mut changed = live.change.set.iter();
    live.is_made() && changed.any(|diff| !NEUTRAL.contains(&diff.knob.as_str()))
}

fn compares_strategies(spec: &Spec) -> bool {
    let recipe = spec.recipe.as_deref().and_then(Recipe::named);
    let settings = recipe.map_or(&[][..], Recipe::settings);
    let mut given = spec.set.iter();
    let given = given.rfind(|(name, _)| name.replace('_', "-") == COMPARE_STEPS);
    settings.iter().any(|setting| setting.name == COMPARE_STEPS)
        && given.is_none_or(|(_, value)| value.trim() != "0")
}

/// Returns true if the measured peak is that of a step. To create a model takes at most twice its size: the whole model, and its shards or
/// the buffers with which DDP sends it.
fn is_peak_of_step(planned: &Plan, measured: &Measured) -> bool {
    let whole = planned.model_parameters.saturating_mul(PARAMETER_BYTES);
    measured.allocated.bytes() > whole.saturating_mul(2)
}

fn worst(peaks: Vec<RankPeak>) -> Option<RankPeak> {
    peaks.into_iter().max_by(|a, b| a.value.total_cmp(&b.value))
}

fn compared(
    attempt: AttemptNo,
    settings: &Settings,
    planned: &Plan,
    measured: &Measured,
) -> MemoryComparison {
    let left_out = LEFT_OUT.map(str::to_owned).into_iter();
    MemoryComparison {
        attempt,
        rank: measured.allocated.rank,
        node: measured.allocated.node.clone(),
        ranks: u32::try_from(measured.ranks).unwrap_or(u32::MAX),
        allocated_bytes: measured.allocated.bytes(),
        reserved_bytes: measured.reserved.as_ref().map(RankPeak::bytes),
        planned_bytes: planned.peak_bytes,
        peak_at: planned.peak_at.label().to_owned(),
        parts: parts(planned),
        saved: measured
            .saved
            .as_ref()
            .and_then(|saved| saved_tensors(settings, saved)),
        left_out: left_out.chain(planned.notes.iter().cloned()).collect(),
    }
}

impl RankPeak {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a number of bytes"
    )]
    fn bytes(&self) -> u64 {
        self.value as u64
    }
}

fn parts(planned: &Plan) -> Vec<PlannedPart> {
    let used = planned
        .components
        .iter()
        .filter(|component| component.at_peak_bytes > 0);
    let mut parts: Vec<PlannedPart> = used
        .map(|component| PlannedPart {
            name: component.part.label().to_owned(),
            bytes: component.at_peak_bytes,
            is_estimate: component.basis == Basis::Estimate,
        })
        .collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// Returns both numbers, if they count the same tensors: the probe does not see what the blocks that are recomputed keep, and the shares of
/// tensor-parallel layers were never compared with a measurement.
fn saved_tensors(settings: &Settings, measured: &RankPeak) -> Option<SavedTensors> {
    if settings.checkpointing != Checkpointing::None || settings.tensor_parallel > 1 {
        return None;
    }
    Some(SavedTensors {
        planned_bytes: saved_for_backward(settings)?,
        measured_bytes: measured.bytes(),
    })
}

#[cfg(test)]
mod tests {
    use domain::run::knob::{Change, KnobAnswer, KnobDiff, KnobTarget};

    use super::*;

    fn spec(recipe: &str) -> Spec {
        Spec {
            recipe: Some(recipe.to_owned()),
            ..Spec::default()
        }
    }

    fn knobs(values: &[(&str, &str)], answers: Vec<KnobAnswer>) -> AttemptKnobs {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        AttemptKnobs {
            values: values.collect(),
            answers,
            ..AttemptKnobs::default()
        }
    }

    fn answer(knob: &str, applied: bool) -> KnobAnswer {
        KnobAnswer {
            knob: knob.to_owned(),
            value: "block".to_owned(),
            applied,
            detail: String::new(),
            rank: Rank(0),
            live: None,
        }
    }

    fn planned(spec: &Spec, knobs: &AttemptKnobs) -> Settings {
        let spec = planned_spec(spec, knobs).expect("a plan");
        Settings::of_run(&spec, 4).expect("settings")
    }

    fn peak(value: f64) -> RankPeak {
        RankPeak {
            rank: Rank(3),
            node: "node-a".to_owned(),
            value,
        }
    }

    #[test]
    fn the_plan_is_made_with_the_knobs_that_the_ranks_have() {
        let mut asked = spec("fsdp");
        let set = [("micro_batch", "2"), ("compare-steps", "0")];
        asked
            .set
            .extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            planned(&asked, &knobs(&[("micro_batch", "6")], vec![])).micro_batch,
            6
        );
        let block = knobs(
            &[("activation_checkpointing", "block"), ("lr_scale", "2")],
            vec![answer("activation_checkpointing", true)],
        );
        assert_eq!(planned(&spec("ddp"), &block).checkpointing, Checkpointing::Block);
    }

    #[test]
    fn what_the_plan_cannot_know_is_not_compared() {
        let set = [("activation_checkpointing", "block")];
        let name = "activation_checkpointing";
        let diff = KnobDiff {
            knob: "micro_batch".to_owned(),
            old: None,
            new: Some("4".to_owned()),
            how: How::Injected,
        };
        let live = InPlaceChange {
            change: Change {
                set: vec![diff],
                ..Change::default()
            },
            ..InPlaceChange::default()
        };
        let live = AttemptKnobs {
            live: vec![live],
            ..AttemptKnobs::default()
        };
        let with_args = Spec {
            args: vec!["--width".to_owned(), "512".to_owned()],
            ..spec("ddp")
        };
        let mut with_knobs = spec("ddp");
        with_knobs
            .knobs
            .insert("micro_batch".to_owned(), KnobTarget::Text("--batch".to_owned()));
        for (spec, knobs) in [
            (spec("ddp"), knobs(&set, vec![])),
            (
                spec("ddp"),
                knobs(&set, vec![answer(name, true), answer(name, false)]),
            ),
            (
                spec("hsdp"),
                knobs(
                    &[("fsdp_sharding", "no_shard")],
                    vec![answer("fsdp_sharding", true)],
                ),
            ),
            (spec("ddp"), live),
            (with_args, AttemptKnobs::default()),
            (with_knobs, AttemptKnobs::default()),
        ] {
            assert!(planned_spec(&spec, &knobs).is_err(), "{spec:?} {knobs:?}");
        }
    }

    #[test]
    fn an_attempt_that_may_have_loaded_a_checkpoint_is_not_compared() {
        let checkpoint = |finished_ms, foreign| Checkpoint {
            finished_ms,
            foreign,
            ..Checkpoint::default()
        };
        for (checkpoints, attempts, expected) in [
            (vec![], 1, false),
            (vec![], 2, false),
            (vec![checkpoint(Some(2_000), false)], 1, false),
            (vec![checkpoint(Some(2_000), false)], 2, true),
            (vec![checkpoint(Some(500), false)], 1, true),
            (vec![checkpoint(None, true)], 1, true),
        ] {
            let id = RunId::new("r").expect("a name");
            let (mut machine, _) = Machine::submit(id, spec("ddp"), 1_000);
            machine.checkpoints = checkpoints;
            let first = machine.attempts[0].clone();
            machine.attempts = vec![first; attempts];
            assert_eq!(may_have_loaded(&machine), expected, "{machine:?}");
        }
    }

    #[test]
    fn a_recipe_that_compares_strategies_first_has_another_peak() {
        let off = |name: &str, value: &str| {
            let mut spec = spec("fsdp");
            spec.set.insert(name.to_owned(), value.to_owned());
            spec
        };
        for (spec, expected) in [
            (spec("fsdp"), true),
            (off("compare-steps", "2"), true),
            (off("compare-steps", "0"), false),
            (off("compare_steps", "0"), false),
            (spec("ddp"), false),
        ] {
            assert_eq!(compares_strategies(&spec), expected, "{spec:?}");
        }
    }

    #[test]
    fn a_peak_that_may_be_older_than_the_first_step_is_not_compared() {
        let planned = plan(&planned(&spec("ddp"), &knobs(&[], vec![])), 0).expect("a plan");
        let whole = planned.model_parameters as f64 * 4.0;
        for (allocated, expected) in [(whole * 1.9, false), (whole * 2.1, true)] {
            let measured = Measured {
                allocated: peak(allocated),
                ranks: 1,
                reserved: None,
                saved: None,
            };
            assert_eq!(is_peak_of_step(&planned, &measured), expected, "{allocated}");
        }
    }

    #[test]
    fn plan_and_measurement_count_the_same() {
        let settings = planned(&spec("ddp"), &knobs(&[], vec![]));
        let plan = plan(&settings, 0).expect("a plan");
        let measured = Measured {
            allocated: peak(9e6),
            ranks: 4,
            reserved: Some(peak(20e6)),
            saved: Some(peak(5e6)),
        };
        let found = compared(AttemptNo(2), &settings, &plan, &measured);
        assert_eq!((found.rank, found.ranks), (Rank(3), 4));
        assert_eq!(
            (found.allocated_bytes, found.reserved_bytes),
            (9_000_000, Some(20_000_000))
        );
        let sum: u64 = found.parts.iter().map(|part| part.bytes).sum();
        assert_eq!(sum, found.planned_bytes);
        assert!(
            found.parts.iter().all(|part| part.name != "CUDA, NCCL, kernels"),
            "it is outside of the allocator: {found:?}"
        );
        assert_eq!(
            found.saved.expect("tensors").planned_bytes,
            saved_for_backward(&settings).expect("a shape")
        );
        let recomputed = Settings {
            checkpointing: Checkpointing::Block,
            ..settings
        };
        let found = compared(AttemptNo(2), &recomputed, &plan, &measured);
        assert_eq!(found.saved, None, "the probe does not see what blocks keep");
    }
}
