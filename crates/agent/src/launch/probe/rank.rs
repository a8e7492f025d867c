//! The series of one rank: its steps, pooled if they are shorter than the sample interval, and its saves.
//!
//! How several steps become one value: durations give their mean and their maximum, counts their sum over time, the loss its last value
//! (but a later finite loss never hides a non-finite one), the gradient norm its maximum, or NaN if one is NaN. For a sharded gradient,
//! each rank knows only a part, and parts add up only within one step. So all ranks take the same step of a pool, by its number. The norms
//! of the ranks' own gradients are compared, so the same holds for them.
//!
//! On GPUs, waits for other ranks may be measured in some steps only. Then only these steps are used for the parts of a step: in the other
//! steps, the parts include the waits.

use std::collections::BTreeMap;

use domain::ident::RunId;
use domain::metric::LossNoise;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::launch::probe::best_speed::BestSpeed;
use crate::launch::probe::flop_utilization::FlopUtilization;
use crate::launch::probe::pool::{PoolSchedule, Span};
use crate::launch::probe::record::{Checkpoint, Phase, Skips, Step};
use crate::sample::series::Family;
use crate::sample::{Samples, assignment};

/// The values that may be non-finite.
const NONFINITE_VALUES: [&str; 3] = ["loss", "gradient", "own_gradient"];
/// If no step has joined a pool for this long, the pool is written as it is: the rank may hang, and its last step should be known.
const QUIET_MS: i64 = 2_500;
/// Maximum number of different checkpoints whose failures in a row are counted. A script that names each file at random has more.
const FAILING_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct RankSeries {
    family: Family,
    written_ms: TimestampMs,
    schedule: PoolSchedule,
    pool: Vec<Step>,
    /// When the pool was first seen unchanged, by the clock of `tick`. `None` if it has grown since the last tick.
    quiet_since_ms: Option<TimestampMs>,
    last_step_ms: Option<TimestampMs>,
    loss_best: f64,
    /// The rank has no other ranks to wait for.
    is_alone: bool,
    /// The loss is the value that the script logs. It may have another scale than the loss on which `backward` is called.
    loss_is_logged: bool,
    nonfinite: f64,
    /// The steps since which each of them is non-finite.
    nonfinite_since: [Option<f64>; 3],
    /// Number of steps that a gradient scaler has skipped.
    skipped_steps: f64,
    /// The scaler skips one step after another.
    is_skipping: bool,
    loss_noise: LossNoise,
    /// The series begin with the first step of the attempt.
    is_at_start: bool,
    best_speed: BestSpeed,
    /// `None` if the rank's parameters or its GPU are not known.
    utilization: Option<FlopUtilization>,
    saves: RankSaves,
    /// `train_info`, `gpu_assignment_info` and `train_note`.
    infos: Vec<Labels>,
}

/// The cost of a rank's saves.
#[derive(Debug, Default)]
struct RankSaves {
    /// Since when the rank is blocked by a save.
    since_ms: Option<TimestampMs>,
    blocked_s: f64,
    failures: f64,
    /// Failures by error name of the system, such as `ENOSPC`; an empty name if there is none.
    errors: BTreeMap<String, f64>,
    /// Failures in a row by the checkpoint's path without digits: a script may save several files at each step, and the success of one
    /// says nothing about another.
    in_a_row: BTreeMap<String, f64>,
    /// A save has ended, with or without success.
    any_ended: bool,
    any: bool,
}

impl RankSeries {
    /// Creates the series. `is_at_start`: they begin with the first step of the attempt.
    pub(super) fn new(run: &RunId, rank: u32, is_at_start: bool) -> Self {
        Self {
            loss_noise: LossNoise::new(is_at_start),
            is_at_start,
            family: Family::new(vec![("run", run.to_string()), ("rank", rank.to_string())]),
            loss_best: f64::INFINITY,
            ..Self::default()
        }
    }

    /// Sets the info series of the rank. Series that no longer apply end.
    pub(super) fn introduce(
        &mut self,
        infos: Vec<Labels>,
        is_alone: bool,
        utilization: Option<FlopUtilization>,
        at_ms: TimestampMs,
        samples: &Samples,
    ) {
        (self.is_alone, self.utilization) = (is_alone, utilization);
        for old in self.infos.iter().filter(|old| !infos.contains(old)) {
            samples.end(old, at_ms);
        }
        infos.iter().for_each(|info| put_info(samples, info, at_ms));
        self.infos = infos;
        // The counter is written at 0 first, so that the rise to 1 is visible.
        let nonfinite = Some(self.nonfinite);
        self.push("train_nonfinite_steps_total", at_ms, nonfinite, samples);
    }

    pub(super) fn save(&mut self, save: &Checkpoint, samples: &Samples) {
        let at_ms = save.wall_ns / 1_000_000;
        if !self.saves.any {
            // The counters are written at 0 first, so that a rise is visible.
            self.saves.any = true;
            self.push_save_counters(at_ms - 1, samples);
        }
        if save.phase == Phase::Begin {
            self.saves.since_ms = (!save.background).then_some(at_ms);
            return;
        }
        self.saves.since_ms = None;
        self.saves.blocked_s += save.blocked_s.unwrap_or(0.0);
        self.saves.count_in_a_row(save);
        if save.phase == Phase::Failure {
            self.saves.failures += 1.0;
            self.count_save_error(save, at_ms, samples);
        } else {
            self.push("train_checkpoint_save_seconds", at_ms, save.seconds, samples);
            self.push("train_checkpoint_bytes", at_ms, save.bytes, samples);
        }
        self.push_save_counters(at_ms, samples);
        self.push("train_checkpoint_saving_seconds", at_ms, Some(0.0), samples);
    }

    fn push_save_counters(&mut self, at_ms: TimestampMs, samples: &Samples) {
        for (errno, count) in &self.saves.errors {
            samples.push(&self.save_error_series(errno), at_ms, *count);
        }
        let (blocked, failures) = (Some(self.saves.blocked_s), Some(self.saves.failures));
        self.push("train_checkpoint_blocked_seconds_total", at_ms, blocked, samples);
        self.push("train_checkpoint_failures_total", at_ms, failures, samples);
        let in_a_row = self.saves.failures_in_a_row();
        self.push("train_checkpoint_failures_in_a_row", at_ms, in_a_row, samples);
    }

    /// Writes the counter at 0 first, so that the rise to 1 is visible.
    fn count_save_error(&mut self, save: &Checkpoint, at_ms: TimestampMs, samples: &Samples) {
        let errno = save.errno.clone().unwrap_or_default();
        if !self.saves.errors.contains_key(&errno) {
            samples.push(&self.save_error_series(&errno), at_ms - 1, 0.0);
        }
        *self.saves.errors.entry(errno).or_default() += 1.0;
    }

    fn save_error_series(&self, errno: &str) -> Labels {
        self.family
            .series_with("train_checkpoint_errors_total", "errno", errno)
    }

    pub(super) fn step(&mut self, step: Step, samples: &Samples) {
        let at_ms = step.wall_ns / 1_000_000;
        // Even if the end record of the save was lost: a rank that makes a step is not blocked by a save.
        if self.saves.since_ms.is_some_and(|since| since < at_ms) {
            self.saves.since_ms = None;
        }
        self.last_step_ms = self.last_step_ms.max(Some(at_ms));
        let is_logged = step.loss_source.as_deref() == Some("logged");
        if step.loss.is_some() && is_logged != self.loss_is_logged {
            (self.loss_is_logged, self.loss_best) = (is_logged, f64::INFINITY);
            self.loss_noise = LossNoise::new(self.is_at_start);
        }
        if let Some(loss) = step.loss.filter(|loss| loss.is_finite()) {
            self.loss_best = self.loss_best.min(loss);
            self.loss_noise.take(loss);
        }
        if let (Some(samples), Some(step_s)) = (step.samples, step.step_s.filter(|step_s| *step_s > 0.0)) {
            self.best_speed.take(at_ms, samples / step_s);
        }
        self.note_nonfinite(&step, samples);
        self.quiet_since_ms = None;
        let cut = self.schedule.take(number(&step), step.step_s);
        self.write(cut.before, samples);
        self.pool.push(step);
        self.write(cut.after, samples);
    }

    /// Records steps that do not end because a gradient scaler skips them. A later step that ends reports the same skips.
    pub(super) fn skips(&mut self, skips: &Skips, samples: &Samples) {
        let at_ms = skips.wall_ns / 1_000_000;
        self.push("train_skipped_steps_total", at_ms, skips.skipped_steps, samples);
        self.push("train_skipped_steps_in_a_row", at_ms, skips.in_a_row, samples);
        self.is_skipping = true;
    }

    pub(super) fn tick(&mut self, now_ms: TimestampMs, repeat: bool, samples: &Samples) {
        if now_ms - *self.quiet_since_ms.get_or_insert(now_ms) >= QUIET_MS {
            self.write_pool(samples);
        }
        #[expect(clippy::cast_precision_loss, reason = "an age in milliseconds")]
        let age_s = self
            .last_step_ms
            .map(|last| (now_ms - last).max(0) as f64 / 1_000.0);
        self.push("train_last_step_age_seconds", now_ms, age_s, samples);
        if self.saves.any {
            #[expect(clippy::cast_precision_loss, reason = "an age in milliseconds")]
            let saving_s = self
                .saves
                .since_ms
                .map_or(0.0, |since| (now_ms - since).max(0) as f64 / 1_000.0);
            self.push("train_checkpoint_saving_seconds", now_ms, Some(saving_s), samples);
        }
        if repeat {
            if self.saves.any {
                self.push_save_counters(now_ms, samples);
            }
            self.infos.iter().for_each(|info| put_info(samples, info, now_ms));
            let nonfinite = Some(self.nonfinite);
            self.push("train_nonfinite_steps_total", now_ms, nonfinite, samples);
        }
    }

    /// Counts non-finite steps. A step that a scaler skips because its gradients overflowed is normal and is not counted.
    fn note_nonfinite(&mut self, step: &Step, samples: &Samples) {
        let skipped = step.skipped_steps.unwrap_or(self.skipped_steps);
        let is_skipped = skipped > self.skipped_steps;
        self.skipped_steps = skipped;
        let any = |values: [Option<f64>; 2]| values.into_iter().flatten().any(|value| !value.is_finite());
        let loss_is_bad = any([step.loss, step.loss_backward]);
        let gradient_is_bad = any([step.grad_norm, step.grad_norm_local_sq]) && !is_skipped;
        if loss_is_bad || gradient_is_bad {
            self.nonfinite += 1.0;
        }
        let are_bad = [
            Some(loss_is_bad),
            Some(gradient_is_bad),
            own_gradient_is_source(step, is_skipped),
        ];
        let at_ms = step.wall_ns / 1_000_000;
        for (place, value) in NONFINITE_VALUES.into_iter().enumerate() {
            let Some(is_bad) = are_bad[place] else { continue };
            let was_bad = self.nonfinite_since[place].is_some();
            if is_bad {
                self.nonfinite_since[place] = self.nonfinite_since[place].or(step.step);
            } else if was_bad {
                self.nonfinite_since[place] = None;
                samples.end(&self.nonfinite_series(value), at_ms);
            }
        }
    }

    fn nonfinite_series(&self, value: &str) -> Labels {
        self.family
            .series_with("train_nonfinite_since_step", "value", value)
    }

    /// Writes the open pool, without waiting for more steps.
    pub(super) fn write_pool(&mut self, samples: &Samples) {
        let span = self.schedule.close();
        self.write(span, samples);
    }

    /// Writes the pool as one sample per series, at the time of its last step.
    fn write(&mut self, span: Option<Span>, samples: &Samples) {
        let Some(span) = span else { return };
        let pool = std::mem::take(&mut self.pool);
        let Some(last) = pool.last() else { return };
        let at_ms = (last.wall_ns / 1_000_000).max(self.written_ms + 1);
        self.written_ms = at_ms;
        let step_s = mean(&pool, |step| step.step_s);
        let rate = |count: fn(&Step) -> Option<f64>| {
            let total_s: f64 = pool.iter().filter_map(|step| step.step_s).sum();
            let counted: Vec<f64> = pool.iter().filter_map(count).collect();
            (!counted.is_empty() && total_s > 0.0).then(|| counted.iter().sum::<f64>() / total_s)
        };
        let most = |of: fn(&Step) -> Option<f64>| largest(pool.iter().filter_map(of));
        let tokens_per_second = rate(|step| step.tokens);
        // If waits for other ranks are unknown, they are included in forward and backward.
        let knows_waits = pool.iter().any(|step| step.sync_s.is_some());
        let timed = || pool.iter().filter(|step| step.sync_s.is_some() || !knows_waits);
        let compute = ratio(mean(timed(), computing_s), mean(timed(), |step| step.step_s));
        for (part, mean_name, max_name) in PARTS {
            self.push(mean_name, at_ms, mean(timed(), part), samples);
            self.push(max_name, at_ms, largest(timed().filter_map(part)), samples);
        }
        #[expect(clippy::cast_precision_loss, reason = "a pool holds a second of steps")]
        let steps = span.steps as f64;
        let values = [
            ("train_step", last.step),
            ("train_pool_steps", Some(steps)),
            ("train_step_seconds", step_s),
            ("train_step_seconds_max", most(|step| step.step_s)),
            ("train_bubble_seconds", mean(timed(), |step| step.bubble_s)),
            ("train_save_seconds", mean(&pool, |step| step.save_s)),
            (
                "train_compute_ratio",
                compute.filter(|_| knows_waits || self.is_alone),
            ),
            ("train_loss", loss(&pool)),
            (
                "train_loss_best",
                Some(self.loss_best).filter(|best| best.is_finite()),
            ),
            ("train_grad_norm", most(|step| step.grad_norm)),
            (
                "train_grad_norm_local_square",
                of_common_step(&pool, |step| step.grad_norm_local_sq),
            ),
            (
                "train_grad_norm_own",
                of_common_step(&pool, |step| step.grad_norm_own),
            ),
            ("train_loss_own", mean(&pool, Step::own_loss)),
            ("train_learning_rate", latest(&pool, |step| step.lr_max)),
            (
                "train_learning_rate_min",
                latest(&pool, |step| step.lr_min.filter(|_| step.lr_min != step.lr_max)),
            ),
            ("train_loss_scale", latest(&pool, |step| step.loss_scale)),
            ("train_skipped_steps_in_a_row", self.is_skipping.then_some(0.0)),
            ("train_samples_per_second", rate(|step| step.samples)),
            ("train_tokens_per_second", tokens_per_second),
            (
                "train_mfu_ratio",
                tokens_per_second.and_then(|rate| self.utilization.as_ref()?.ratio(rate)),
            ),
            ("train_input_mean", mean(&pool, |step| step.input_mean)),
            ("train_input_deviation", mean(&pool, |step| step.input_deviation)),
            ("train_input_nonfinite_ratio", most(|step| step.input_nonfinite)),
            ("train_label_mean", mean(&pool, |step| step.label_mean)),
            ("train_label_deviation", mean(&pool, |step| step.label_deviation)),
            ("train_label_top_ratio", mean(&pool, |step| step.label_top_ratio)),
            ("train_padding_ratio", mean(&pool, |step| step.padding_ratio)),
            ("train_batch_samples", mean(&pool, |step| step.samples)),
            ("train_batch_tokens", mean(&pool, |step| step.tokens)),
            ("train_micro_batch", most(|step| step.micro_batch)),
            ("train_nonfinite_steps_total", Some(self.nonfinite)),
            ("train_loss_noise", self.loss_noise.value()),
            ("train_samples_per_second_best", self.best_speed.value()),
            (
                "train_skipped_steps_total",
                latest(&pool, |step| step.skipped_steps),
            ),
            (
                "train_memory_allocated_bytes",
                most(|step| step.cuda_allocated_bytes),
            ),
            (
                "train_memory_current_bytes",
                latest(&pool, |step| step.cuda_current_bytes),
            ),
            (
                "train_memory_reserved_bytes",
                most(|step| step.cuda_reserved_bytes),
            ),
            ("train_saved_tensor_bytes", most(|step| step.saved_tensor_bytes)),
            ("train_memory_split_bytes", most(|step| step.cuda_split_bytes)),
            (
                "train_memory_alloc_retries_total",
                latest(&pool, |step| step.cuda_alloc_retries),
            ),
            ("train_probe_dropped_total", latest(&pool, |step| step.dropped)),
            ("train_rpc_seconds", mean(&pool, |step| step.rpc_s)),
            ("train_rpc_seconds_max", most(|step| step.rpc_s_max)),
            ("train_rpc_buffer_depth", most(|step| step.rpc_buffer_depth)),
            (
                "train_gradient_staleness_steps",
                mean(&pool, |step| step.staleness_steps),
            ),
            (
                "train_pipeline_bubble_ratio",
                mean(&pool, |step| step.bubble_ratio),
            ),
        ];
        for (metric, value) in values {
            self.push(metric, at_ms, value, samples);
        }
        self.push_checksum(last, at_ms, samples);
        self.is_skipping = false;
        for (place, value) in NONFINITE_VALUES.into_iter().enumerate() {
            if let Some(since) = self.nonfinite_since[place] {
                samples.push(&self.nonfinite_series(value), at_ms, since);
            }
        }
    }

    /// Writes the checksum of a pool's last step, so that `train_step` of the same sample says which step it is. Checked steps are multiples of
    /// a large power of two, as are the ends of pools. A checksum in the middle of a pool is dropped.
    fn push_checksum(&self, last: &Step, at_ms: TimestampMs, samples: &Samples) {
        let (Some(checksum), Some(group)) = (last.parameters_checksum, last.replica_group) else {
            return;
        };
        let group = group.to_string();
        let series = self
            .family
            .series_with("train_parameters_checksum", "replica_group", &group);
        samples.push(&series, at_ms, checksum);
    }

    fn push(&mut self, metric: &'static str, at_ms: TimestampMs, value: Option<f64>, samples: &Samples) {
        if let Some(value) = value {
            self.family.at(samples, at_ms).put(metric, value);
        }
    }
}

impl RankSaves {
    fn count_in_a_row(&mut self, save: &Checkpoint) {
        self.any_ended = true;
        let name: String = save.path.chars().filter(|char| !char.is_ascii_digit()).collect();
        if save.phase != Phase::Failure {
            self.in_a_row.remove(&name);
        } else if self.in_a_row.len() < FAILING_MAX || self.in_a_row.contains_key(&name) {
            *self.in_a_row.entry(name).or_default() += 1.0;
        }
    }

    /// Returns the most failures in a row; `None` before the end of the first save.
    fn failures_in_a_row(&self) -> Option<f64> {
        let most = self.in_a_row.values().copied().fold(0.0, f64::max);
        self.any_ended.then_some(most)
    }
}

/// A part of a step, and the names of its mean and its maximum.
type Part = (fn(&Step) -> Option<f64>, &'static str, &'static str);

const PARTS: [Part; 6] = [
    (|step| step.data_s, "train_data_seconds", "train_data_seconds_max"),
    (
        |step| step.forward_s,
        "train_forward_seconds",
        "train_forward_seconds_max",
    ),
    (
        |step| step.backward_s,
        "train_backward_seconds",
        "train_backward_seconds_max",
    ),
    (
        |step| step.optimizer_s,
        "train_optimizer_seconds",
        "train_optimizer_seconds_max",
    ),
    (|step| step.sync_s, "train_sync_seconds", "train_sync_seconds_max"),
    (host_s, "train_host_seconds", "train_host_seconds_max"),
];

fn computing_s(step: &Step) -> Option<f64> {
    Some(step.forward_s? + step.backward_s? + step.optimizer_s.unwrap_or(0.0))
}

/// The time that no part of a step explains: the script's own code between them. Unknown if a part is not measured, such as forward and
/// backward in compiled code.
fn host_s(step: &Step) -> Option<f64> {
    let others = [
        step.data_s,
        step.optimizer_s,
        step.sync_s,
        step.bubble_s,
        step.save_s,
    ];
    let explained_s =
        computing_s(step)? - step.optimizer_s.unwrap_or(0.0) + others.into_iter().flatten().sum::<f64>();
    Some((step.step_s? - explained_s).max(0.0))
}

/// The step number in the probe's count. 0 if it is absent, which makes each step a pool of its own.
fn number(step: &Step) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of steps"
    )]
    let number = step.step.unwrap_or_default() as u64;
    number
}

fn mean<'a>(pool: impl IntoIterator<Item = &'a Step>, part: impl Fn(&Step) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = pool.into_iter().filter_map(part).collect();
    #[expect(clippy::cast_precision_loss, reason = "a pool holds a second of steps")]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)
}

fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    let whole = whole.filter(|whole| *whole > 0.0)?;
    Some((part? / whole).clamp(0.0, 1.0))
}

fn loss(pool: &[Step]) -> Option<f64> {
    let mut losses = pool.iter().rev().filter_map(|step| step.loss);
    let last = losses.clone().next();
    losses.find(|loss| !loss.is_finite()).or(last)
}

/// Returns true if the gradients became non-finite in the backward pass of this rank: its own gradients are non-finite, and its loss is finite.
/// `None` if it is unknown: the own gradients are not measured in this step, or the loss is non-finite too.
fn own_gradient_is_source(step: &Step, is_skipped: bool) -> Option<bool> {
    let is_finite = step.grad_norm_own?.is_finite();
    let has_loss = step.own_loss().is_some_and(f64::is_finite);
    (is_finite || has_loss).then_some(!is_finite && !is_skipped)
}

fn latest(pool: &[Step], counter: impl Fn(&Step) -> Option<f64>) -> Option<f64> {
    pool.iter().rev().find_map(counter)
}

/// Returns the value of the step that is a multiple of the highest power of two: ranks whose pools differ by a step or two choose the same
/// step without communication.
fn of_common_step(pool: &[Step], value: impl Fn(&Step) -> Option<f64>) -> Option<f64> {
    let known = pool.iter().filter_map(|step| Some((step, value(step)?)));
    known
        .max_by_key(|(step, _)| (number(step).trailing_zeros(), number(step)))
        .map(|(_, known)| known)
}

/// Returns the largest value, or NaN if one is NaN.
fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(|a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.max(b)
        }
    })
}

/// Writes an info series. A GPU assignment is suppressed if NVML and `/proc` report the same use, because their series has more details.
fn put_info(samples: &Samples, info: &Labels, at_ms: TimestampMs) {
    if info.metric_name() == Some("gpu_assignment_info") {
        assignment::put(samples, info, at_ms);
    } else {
        samples.push(info, at_ms, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_sharded_norm_are_of_one_step_on_all_ranks() {
        let square_of = |steps: std::ops::Range<u32>| {
            let part = |n: u32| Step {
                step: Some(n.into()),
                grad_norm_local_sq: Some(f64::from(n) * 100.0),
                ..Step::default()
            };
            of_common_step(&steps.map(part).collect::<Vec<_>>(), |step| {
                step.grad_norm_local_sq
            })
        };
        assert_eq!(
            (square_of(99..110), square_of(101..111)),
            (Some(10_400.0), Some(10_400.0))
        );
        assert_eq!((square_of(7..8), square_of(5..5)), (Some(700.0), None));
    }
}
