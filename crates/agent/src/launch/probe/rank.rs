//! The series of one rank: its steps, pooled where they come faster than samples may, and its saves.
//!
//! Which value stands for several steps: durations their mean and their longest, counts their sum over time, the loss the last (but a non-finite
//! one is never hidden by a later good one), the gradient norm the largest, NaN above all. Of a sharded gradient each rank knows a part, and
//! parts add up only within one step: so all ranks take the same step of a pool, by its number.
//!
//! On GPUs waits for other ranks may be measured in some steps only. Then only these tell the parts of a step: in the others waits hide in them.

use std::collections::BTreeMap;

use domain::ident::RunId;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::launch::probe::baseline::{BestSpeed, LossNoise};
use crate::launch::probe::flop_utilization::FlopUtilization;
use crate::launch::probe::pool::{PoolSchedule, Span};
use crate::launch::probe::record::{Checkpoint, Phase, Skips, Step};
use crate::sample::series::series;
use crate::sample::{Samples, assignment};

/// What may be not finite.
const NONFINITE_VALUES: [&str; 2] = ["loss", "gradient"];
/// A pool that no step has joined for this long is written as it is: the rank may hang, and its last step should be known.
const QUIET_MS: i64 = 2_500;

#[derive(Debug)]
pub(super) struct RankSeries {
    labels: [(&'static str, String); 2],
    names: BTreeMap<&'static str, Labels>,
    written_ms: TimestampMs,
    schedule: PoolSchedule,
    pool: Vec<Step>,
    /// When the pool was last seen to grow, by the clock of `tick`; absent when it has grown since.
    quiet_since_ms: Option<TimestampMs>,
    last_step_ms: Option<TimestampMs>,
    loss_best: f64,
    /// It has no ranks to wait for.
    is_alone: bool,
    /// The loss is the script's own word, which may be on another scale than what `backward` sees.
    loss_is_logged: bool,
    nonfinite: f64,
    /// Since which step the loss, and since which the gradient, is not finite.
    nonfinite_since: [Option<f64>; 2],
    /// Steps that a gradient scaler has skipped.
    skipped_steps: f64,
    /// It skips one step after the other.
    is_skipping: bool,
    loss_noise: LossNoise,
    best_speed: BestSpeed,
    /// Known where its parameters and its GPU are.
    utilization: Option<FlopUtilization>,
    saves: RankSaves,
    /// `train_info`, `gpu_assignment_info` and `train_note`.
    infos: Vec<Labels>,
}

/// What a rank's saves cost it.
#[derive(Debug, Default)]
struct RankSaves {
    /// Since when the rank stands still for one.
    since_ms: Option<TimestampMs>,
    blocked_s: f64,
    failures: f64,
    /// By what the system said, like `ENOSPC`; an empty name where it said nothing.
    errors: BTreeMap<String, f64>,
    any: bool,
}

impl RankSeries {
    pub(super) fn new(run: &RunId, rank: u32) -> Self {
        Self {
            labels: [("run", run.to_string()), ("rank", rank.to_string())],
            names: BTreeMap::new(),
            written_ms: 0,
            schedule: PoolSchedule::default(),
            pool: Vec::new(),
            quiet_since_ms: None,
            last_step_ms: None,
            loss_best: f64::INFINITY,
            is_alone: false,
            loss_is_logged: false,
            nonfinite: 0.0,
            nonfinite_since: [None; 2],
            skipped_steps: 0.0,
            is_skipping: false,
            loss_noise: LossNoise::default(),
            best_speed: BestSpeed::default(),
            utilization: None,
            saves: RankSaves::default(),
            infos: Vec::new(),
        }
    }

    /// What the rank is now; what it was before and is no more ends.
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
        // A counter that is there at 0 can be seen to rise to 1.
        self.push(
            "train_nonfinite_steps_total",
            at_ms,
            Some(self.nonfinite),
            samples,
        );
    }

    pub(super) fn save(&mut self, save: &Checkpoint, samples: &Samples) {
        let at_ms = save.wall_ns / 1_000_000;
        if !self.saves.any {
            // Counters that are there at 0 can be seen to rise.
            self.saves.any = true;
            self.push_save_counters(at_ms - 1, samples);
        }
        if save.phase == Phase::Begin {
            self.saves.since_ms = (!save.background).then_some(at_ms);
            return;
        }
        self.saves.since_ms = None;
        self.saves.blocked_s += save.blocked_s.unwrap_or(0.0);
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
        let RankSaves {
            blocked_s, failures, ..
        } = self.saves;
        self.push(
            "train_checkpoint_blocked_seconds_total",
            at_ms,
            Some(blocked_s),
            samples,
        );
        self.push("train_checkpoint_failures_total", at_ms, Some(failures), samples);
    }

    /// A counter that was there at 0 can be seen to rise to 1.
    fn count_save_error(&mut self, save: &Checkpoint, at_ms: TimestampMs, samples: &Samples) {
        let errno = save.errno.clone().unwrap_or_default();
        if !self.saves.errors.contains_key(&errno) {
            samples.push(&self.save_error_series(&errno), at_ms - 1, 0.0);
        }
        *self.saves.errors.entry(errno).or_default() += 1.0;
    }

    fn save_error_series(&self, errno: &str) -> Labels {
        let [(run, run_id), (rank, number)] = &self.labels;
        let mut labels = vec![(*run, run_id.as_str()), (*rank, number.as_str())];
        if !errno.is_empty() {
            labels.push(("errno", errno));
        }
        series("train_checkpoint_errors_total", &labels)
    }

    pub(super) fn step(&mut self, step: Step, samples: &Samples) {
        let at_ms = step.wall_ns / 1_000_000;
        // Whatever became of its last word: a rank that steps does not stand still for a save.
        if self.saves.since_ms.is_some_and(|since| since < at_ms) {
            self.saves.since_ms = None;
        }
        self.last_step_ms = self.last_step_ms.max(Some(at_ms));
        let is_logged = step.loss_source.as_deref() == Some("logged");
        if step.loss.is_some() && is_logged != self.loss_is_logged {
            (self.loss_is_logged, self.loss_best) = (is_logged, f64::INFINITY);
            self.loss_noise = LossNoise::default();
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

    /// Steps that do not end because a gradient scaler skips them. A step that ends later tells of the same skips.
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
            self.push(
                "train_nonfinite_steps_total",
                now_ms,
                Some(self.nonfinite),
                samples,
            );
        }
    }

    /// A scaler that skips a step because its gradients overflowed does what it is for: such a step is not counted.
    fn note_nonfinite(&mut self, step: &Step, samples: &Samples) {
        let skipped = step.skipped_steps.unwrap_or(self.skipped_steps);
        let is_skipped = skipped > self.skipped_steps;
        self.skipped_steps = skipped;
        let any = |values: [Option<f64>; 2]| values.into_iter().flatten().any(|value| !value.is_finite());
        let is_bad = [
            any([step.loss, step.loss_backward]),
            any([step.grad_norm, step.grad_norm_local_sq]) && !is_skipped,
        ];
        if is_bad.contains(&true) {
            self.nonfinite += 1.0;
        }
        let at_ms = step.wall_ns / 1_000_000;
        for (place, value) in NONFINITE_VALUES.into_iter().enumerate() {
            let was_bad = self.nonfinite_since[place].is_some();
            if is_bad[place] {
                self.nonfinite_since[place] = self.nonfinite_since[place].or(step.step);
            } else if was_bad {
                self.nonfinite_since[place] = None;
                samples.end(&self.nonfinite_series(value), at_ms);
            }
        }
    }

    fn nonfinite_series(&self, value: &str) -> Labels {
        let [(run, run_id), (rank, number)] = &self.labels;
        series(
            "train_nonfinite_since_step",
            &[(run, run_id), (rank, number), ("value", value)],
        )
    }

    /// Writes what is pooled, where it is not to wait for more.
    pub(super) fn write_pool(&mut self, samples: &Samples) {
        let span = self.schedule.close();
        self.write(span, samples);
    }

    /// Writes what is pooled as one sample a series, at the time of its last step.
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
        let tokens_per_second = rate(|step| step.tokens);
        // Where waits for other ranks are not known, they hide inside forward and backward.
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
            (
                "train_step_seconds_max",
                largest(pool.iter().filter_map(|step| step.step_s)),
            ),
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
            (
                "train_grad_norm",
                largest(pool.iter().filter_map(|step| step.grad_norm)),
            ),
            ("train_grad_norm_local_square", local_square(&pool)),
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
            (
                "train_input_nonfinite_ratio",
                largest(pool.iter().filter_map(|step| step.input_nonfinite)),
            ),
            ("train_label_mean", mean(&pool, |step| step.label_mean)),
            ("train_label_deviation", mean(&pool, |step| step.label_deviation)),
            ("train_batch_samples", mean(&pool, |step| step.samples)),
            ("train_batch_tokens", mean(&pool, |step| step.tokens)),
            (
                "train_micro_batch",
                largest(pool.iter().filter_map(|step| step.micro_batch)),
            ),
            ("train_nonfinite_steps_total", Some(self.nonfinite)),
            ("train_loss_noise", self.loss_noise.value()),
            ("train_samples_per_second_best", self.best_speed.value()),
            (
                "train_skipped_steps_total",
                latest(&pool, |step| step.skipped_steps),
            ),
            (
                "train_memory_allocated_bytes",
                largest(pool.iter().filter_map(|step| step.cuda_allocated_bytes)),
            ),
            (
                "train_memory_current_bytes",
                latest(&pool, |step| step.cuda_current_bytes),
            ),
            (
                "train_memory_reserved_bytes",
                largest(pool.iter().filter_map(|step| step.cuda_reserved_bytes)),
            ),
            (
                "train_saved_tensor_bytes",
                largest(pool.iter().filter_map(|step| step.saved_tensor_bytes)),
            ),
            (
                "train_memory_split_bytes",
                largest(pool.iter().filter_map(|step| step.cuda_split_bytes)),
            ),
            (
                "train_memory_alloc_retries_total",
                latest(&pool, |step| step.cuda_alloc_retries),
            ),
            ("train_probe_dropped_total", latest(&pool, |step| step.dropped)),
            ("train_rpc_seconds", mean(&pool, |step| step.rpc_s)),
            (
                "train_rpc_seconds_max",
                largest(pool.iter().filter_map(|step| step.rpc_s_max)),
            ),
            (
                "train_rpc_buffer_depth",
                largest(pool.iter().filter_map(|step| step.rpc_buffer_depth)),
            ),
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
        self.is_skipping = false;
        for (place, value) in NONFINITE_VALUES.into_iter().enumerate() {
            if let Some(since) = self.nonfinite_since[place] {
                samples.push(&self.nonfinite_series(value), at_ms, since);
            }
        }
    }

    fn push(&mut self, metric: &'static str, at_ms: TimestampMs, value: Option<f64>, samples: &Samples) {
        let Some(value) = value else { return };
        let labels = &self.labels;
        let name = self.names.entry(metric).or_insert_with(|| {
            series(
                metric,
                &labels.each_ref().map(|(name, value)| (*name, value.as_str())),
            )
        });
        samples.push(name, at_ms, value);
    }
}

/// A part of a step, and the names of its mean and its longest.
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

/// What no part of a step explains: the script's own code between them. Unknown where a part hides, as forward and backward in compiled code.
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

/// As the probe counts; 0 without a number, which makes each step a pool of its own.
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

fn latest(pool: &[Step], counter: impl Fn(&Step) -> Option<f64>) -> Option<f64> {
    pool.iter().rev().find_map(counter)
}

/// Of the step that is a multiple of the highest power of two: ranks whose pools differ by a step or two agree on it without a word.
fn local_square(pool: &[Step]) -> Option<f64> {
    let known = pool.iter().filter(|step| step.grad_norm_local_sq.is_some());
    known
        .max_by_key(|step| (number(step).trailing_zeros(), number(step)))?
        .grad_norm_local_sq
}

/// The largest; NaN when one is NaN.
fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(|a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.max(b)
        }
    })
}

/// What NVML and `/proc` say of the same use says more; it stands alone then.
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
            local_square(&steps.map(part).collect::<Vec<_>>())
        };
        assert_eq!(
            (square_of(99..110), square_of(101..111)),
            (Some(10_400.0), Some(10_400.0))
        );
        assert_eq!((square_of(7..8), square_of(5..5)), (Some(700.0), None));
    }
}
