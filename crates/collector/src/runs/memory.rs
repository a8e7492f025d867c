//! The GPU memory of a run beside its plan. They are compared only if both are about the same: the settings that the ranks have, and what
//! PyTorch's allocator handed out to them.
//!
//! ```text
//! spec, knobs, nodes of the attempt ─▶ settings ─▶ plan without the framework ─┐
//! series of the second half of the attempt ─▶ peaks of the worst rank ─────────┴▶ MemoryComparison
//! ```

use domain::api::runs::{MemoryComparison, PlannedPart, RunMemory, SavedTensors};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::plan::{Basis, Checkpointing, Plan, Settings, plan, saved_for_backward};
use domain::run::knob::{How, InPlaceChange, place};
use domain::run::spec::Spec;
use domain::run::state::{Attempt, AttemptKnobs, Machine};
use domain::time::TimestampMs;
use query::Value;

use super::Runs;
use super::error::RunError;
use crate::clock;

/// Maximum length of the period that is read.
const WINDOW_MS: i64 = 30 * 60_000;
/// Minimum length of an attempt.
const LASTED_MS: i64 = 60_000;
/// Minimum number of steps in the period. The optimizer creates its states in the first step.
const STEPS_MIN: f64 = 2.0;

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

/// What is measured and not planned, and what is neither.
const LEFT_OUT: [&str; 2] = [
    "The batch, the workspaces of cuBLAS and cuDNN, and the rounding of the allocator are measured, but not planned.",
    "CUDA, NCCL and loaded kernels are outside of PyTorch's allocator, so both numbers leave them out.",
];

/// What was measured in the period.
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

/// The highest value of a rank in the period.
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
        let settings = settings(&machine.spec, attempt)?;
        self.check_gpus(attempt)?;
        let planned = plan(&settings, 0).map_err(|error| error.to_string())?;
        let begun_ms = attempt.placement.placed_ms.unwrap_or(attempt.started_ms);
        let to_ms = attempt.ended_ms.unwrap_or_else(clock::now_ms);
        let window_ms = window_ms(to_ms - begun_ms).ok_or("the attempt has not run for a minute")?;
        let measured = self.measured(&machine.id, to_ms, window_ms).await?;
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
        let output = self.parts.evaluator.instant(query, at_ms).await;
        let Value::Vector(samples) = output.map_err(|error| error.to_string())?.value else {
            return Ok(Vec::new());
        };
        let peaks = samples.into_iter().filter_map(|(labels, _, value)| {
            Some(RankPeak {
                rank: Rank(labels.get("rank")?.parse().ok()?),
                node: labels.get("node").unwrap_or_default().to_owned(),
                value: Some(value).filter(|value| value.is_finite() && *value > 0.0)?,
            })
        });
        Ok(peaks.collect())
    }
}

/// Returns the settings of the plan for the ranks of an attempt, or why the plan would be for something else.
fn settings(spec: &Spec, attempt: &Attempt) -> Result<Settings, String> {
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

/// Returns the length of the period that is read: the second half of the attempt. In the first half, recipes compare strategies before they
/// train.
fn window_ms(lasted_ms: i64) -> Option<i64> {
    (lasted_ms >= LASTED_MS).then(|| (lasted_ms / 2).min(WINDOW_MS))
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
        asked.set.insert("micro_batch".to_owned(), "2".to_owned());
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
                spec("fsdp"),
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
    fn the_second_half_of_an_attempt_is_read() {
        for (lasted_ms, expected) in [
            (59_999, None),
            (60_000, Some(30_000)),
            (7 * 3_600_000, Some(30 * 60_000)),
        ] {
            assert_eq!(window_ms(lasted_ms), expected, "{lasted_ms}");
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
