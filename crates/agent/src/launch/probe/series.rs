//! The training series of one run on this node, rank by rank.
//!
//! Which value stands for several steps: durations their mean, counts their sum over time, the loss the last (but a non-finite
//! one is never hidden by a later good one), the gradient norm the largest, NaN above all. Of a sharded gradient each rank knows a part, and
//! parts add up only within one step: so all ranks take the same step of a pool, by its number.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::ident::{AttemptNo, RunId};
use domain::run::unseen::{NOTES_MAX, one_line};
use domain::series::Labels;
use domain::time::TimestampMs;
use domain::topology::Inventory;

use crate::launch::probe::logged::LoggedSeries;
use crate::launch::probe::record::{Checkpoint, Hello, Phase, Record, Step};
use crate::sample::nccl::NcclSeries;
use crate::sample::series::series;
use crate::sample::{Samples, assignment};

/// Steps that are samples of their own before pooling begins: the first minute of a run in full detail.
const BURST: f64 = 30.0;
/// After the burst: samples a second.
const REFILL_PER_MS: f64 = 1.0 / 1_000.0;
/// How often what never changes is written again, so that it is found in any window of five minutes.
const REPEAT_MS: i64 = 15_000;

/// A probe speaks as soon as its rank has imported torch, so this long without a word there is none.
pub(crate) const SILENT_AFTER_MS: i64 = 120_000;
const SILENT: &str = "no rank on this node has imported torch where the probe can see it: Python runs with -I, -E or -S, \
                      or the command trains nothing; there are no steps and no loss";

/// All of a run's series on this node.
#[derive(Debug)]
pub(crate) struct RunSeries {
    run: RunId,
    attempt: AttemptNo,
    samples: Samples,
    ranks: BTreeMap<u32, RankSeries>,
    repeated_ms: TimestampMs,
    /// When it was looked at first.
    since_ms: Option<TimestampMs>,
    nccl: NcclSeries,
    logged: LoggedSeries,
}

#[derive(Debug)]
struct RankSeries {
    labels: [(&'static str, String); 2],
    names: BTreeMap<&'static str, Labels>,
    tokens: f64,
    refilled_ms: TimestampMs,
    written_ms: TimestampMs,
    pool: Vec<Step>,
    last_step_ms: Option<TimestampMs>,
    loss_best: f64,
    /// The loss is the script's own word, which may be on another scale than what `backward` sees.
    loss_is_logged: bool,
    nonfinite: f64,
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
    any: bool,
}

impl RunSeries {
    pub(crate) fn new(run: RunId, attempt: AttemptNo, samples: Samples) -> Self {
        Self {
            nccl: NcclSeries::new(&run, samples.clone()),
            logged: LoggedSeries::default(),
            run,
            attempt,
            samples,
            ranks: BTreeMap::new(),
            repeated_ms: 0,
            since_ms: None,
        }
    }

    /// Whether nccl-probe has reported.
    pub(crate) fn hears_nccl(&self) -> bool {
        self.nccl.is_heard()
    }

    /// Takes a record.
    pub(crate) fn take(&mut self, record: Record, inventory: &Inventory) {
        match record {
            Record::Hello(hello) => self.hello(&hello, inventory),
            Record::Step(step) => {
                let samples = self.samples.clone();
                self.rank(step.rank).step(*step, &samples);
            }
            Record::Nccl(report) => self.nccl.take(&report),
            Record::Checkpoint(save) => {
                let samples = self.samples.clone();
                self.rank(save.rank).save(&save, &samples);
            }
            Record::Logged(logged) => self.logged.take(self.run.as_str(), &logged, &self.samples),
            Record::Error { .. } | Record::Bye(_) | Record::Mesh(_) | Record::Stop {} | Record::Knob(_) => {}
        }
    }

    /// Time passes: what was pooled is written when a token has come, and ages grow.
    pub(crate) fn tick(&mut self, now_ms: TimestampMs) {
        let repeat = now_ms - self.repeated_ms >= REPEAT_MS;
        if repeat {
            self.repeated_ms = now_ms;
        }
        for rank in self.ranks.values_mut() {
            rank.tick(now_ms, repeat, &self.samples);
        }
        self.note_silence(now_ms);
        self.nccl.tick(now_ms);
        let living = series("run_ranks", &[("run", self.run.as_str())]);
        #[expect(clippy::cast_precision_loss, reason = "a node has few ranks")]
        self.samples.push(&living, now_ms, self.ranks.len() as f64);
    }

    /// The attempt is over: pooled steps are written, then every series of the run ends here.
    pub(crate) fn end(&mut self, now_ms: TimestampMs) {
        for rank in self.ranks.values_mut() {
            rank.write_pool(&self.samples);
        }
        let run = self.run.as_str();
        let of_run = |labels: &Labels| labels.get("run") == Some(run);
        self.samples.end_where(now_ms, of_run);
        self.ranks.clear();
    }

    fn note_silence(&mut self, now_ms: TimestampMs) {
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        if self.ranks.is_empty() && now_ms - since_ms >= SILENT_AFTER_MS {
            self.samples.push(&self.silence(), now_ms, 1.0);
        }
    }

    fn silence(&self) -> Labels {
        series("train_note", &[("run", self.run.as_str()), ("note", SILENT)])
    }

    fn hello(&mut self, hello: &Hello, inventory: &Inventory) {
        self.samples.end(&self.silence(), hello.wall_ns / 1_000_000);
        let (run, attempt, samples) = (
            self.run.to_string(),
            self.attempt.to_string(),
            self.samples.clone(),
        );
        let number = hello.rank.to_string();
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let info = series(
            "train_info",
            &[
                ("run", &run),
                ("rank", &number),
                ("attempt", &attempt),
                ("backend", &text(&hello.backend)),
                ("device", &text(&hello.device)),
                ("torch", &text(&hello.torch)),
                ("python", &text(&hello.python)),
            ],
        );
        let mut infos = vec![info];
        if let Some(gpu) = gpu_of(hello, inventory) {
            let labels = [("gpu", gpu.to_string()), ("run", run), ("rank", number)];
            infos.push(series(
                "gpu_assignment_info",
                &labels.each_ref().map(|(name, value)| (*name, value.as_str())),
            ));
        }
        for note in hello.notes.iter().take(NOTES_MAX) {
            let (run, rank, note) = (self.run.as_str(), &hello.rank.to_string(), &one_line(note));
            infos.push(series(
                "train_note",
                &[("run", run), ("rank", rank), ("note", note)],
            ));
        }
        let at_ms = hello.wall_ns / 1_000_000;
        let rank = self.rank(hello.rank);
        for old in rank.infos.iter().filter(|old| !infos.contains(old)) {
            samples.end(old, at_ms);
        }
        infos.iter().for_each(|info| put_info(&samples, info, at_ms));
        rank.infos = infos;
        // A counter that is there at 0 can be seen to rise to 1.
        rank.push(
            "train_nonfinite_steps_total",
            at_ms,
            Some(rank.nonfinite),
            &samples,
        );
    }

    fn rank(&mut self, rank: u32) -> &mut RankSeries {
        let run = &self.run;
        self.ranks.entry(rank).or_insert_with(|| RankSeries {
            labels: [("run", run.to_string()), ("rank", rank.to_string())],
            names: BTreeMap::new(),
            tokens: BURST,
            refilled_ms: 0,
            written_ms: 0,
            pool: Vec::new(),
            last_step_ms: None,
            loss_best: f64::INFINITY,
            loss_is_logged: false,
            nonfinite: 0.0,
            saves: RankSaves::default(),
            infos: Vec::new(),
        })
    }
}

/// What NVML and `/proc` say of the same use says more; it stands alone then.
fn put_info(samples: &Samples, info: &Labels, at_ms: TimestampMs) {
    if info.metric_name() == Some("gpu_assignment_info") {
        assignment::put(samples, info, at_ms);
    } else {
        samples.push(info, at_ms, 1.0);
    }
}

impl RankSeries {
    fn save(&mut self, save: &Checkpoint, samples: &Samples) {
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
        } else {
            self.push("train_checkpoint_save_seconds", at_ms, save.seconds, samples);
            self.push("train_checkpoint_bytes", at_ms, save.bytes, samples);
        }
        self.push_save_counters(at_ms, samples);
        self.push("train_checkpoint_saving_seconds", at_ms, Some(0.0), samples);
    }

    fn push_save_counters(&mut self, at_ms: TimestampMs, samples: &Samples) {
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

    fn step(&mut self, step: Step, samples: &Samples) {
        let at_ms = step.wall_ns / 1_000_000;
        // Whatever became of its last word: a rank that steps does not stand still for a save.
        if self.saves.since_ms.is_some_and(|since| since < at_ms) {
            self.saves.since_ms = None;
        }
        self.last_step_ms = self.last_step_ms.max(Some(at_ms));
        let is_logged = step.loss_source.as_deref() == Some("logged");
        if step.loss.is_some() && is_logged != self.loss_is_logged {
            (self.loss_is_logged, self.loss_best) = (is_logged, f64::INFINITY);
        }
        if let Some(loss) = step.loss.filter(|loss| loss.is_finite()) {
            self.loss_best = self.loss_best.min(loss);
        }
        if [
            step.loss,
            step.loss_backward,
            step.grad_norm,
            step.grad_norm_local_sq,
        ]
        .into_iter()
        .flatten()
        .any(|value| !value.is_finite())
        {
            self.nonfinite += 1.0;
        }
        self.pool.push(step);
        self.refill(at_ms);
        self.write_when_allowed(samples);
    }

    fn tick(&mut self, now_ms: TimestampMs, repeat: bool, samples: &Samples) {
        if !self.pool.is_empty() {
            self.refill(now_ms);
            self.write_when_allowed(samples);
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

    fn refill(&mut self, now_ms: TimestampMs) {
        if self.refilled_ms > 0 && now_ms > self.refilled_ms {
            #[expect(clippy::cast_precision_loss, reason = "a pause in milliseconds")]
            let gained = (now_ms - self.refilled_ms) as f64 * REFILL_PER_MS;
            self.tokens = (self.tokens + gained).min(BURST);
        }
        self.refilled_ms = self.refilled_ms.max(now_ms);
    }

    fn write_when_allowed(&mut self, samples: &Samples) {
        // Two steps within a millisecond cannot be two samples.
        let later = self
            .pool
            .last()
            .is_some_and(|step| step.wall_ns / 1_000_000 > self.written_ms);
        if self.tokens >= 1.0 && later {
            self.tokens -= 1.0;
            self.write_pool(samples);
        }
    }

    /// Writes what is pooled as one sample a series, at the time of its last step.
    fn write_pool(&mut self, samples: &Samples) {
        let pool = std::mem::take(&mut self.pool);
        let Some(last) = pool.last() else { return };
        let at_ms = (last.wall_ns / 1_000_000).max(self.written_ms + 1);
        self.written_ms = at_ms;
        let step_s = mean(&pool, |step| step.step_s);
        let parts = |step: &Step| Some(step.forward_s? + step.backward_s? + step.optimizer_s.unwrap_or(0.0));
        let rate = |count: fn(&Step) -> Option<f64>| {
            let total_s: f64 = pool.iter().filter_map(|step| step.step_s).sum();
            let counted: Vec<f64> = pool.iter().filter_map(count).collect();
            (!counted.is_empty() && total_s > 0.0).then(|| counted.iter().sum::<f64>() / total_s)
        };
        let values = [
            ("train_step", last.step),
            ("train_step_seconds", step_s),
            ("train_data_seconds", mean(&pool, |step| step.data_s)),
            ("train_forward_seconds", mean(&pool, |step| step.forward_s)),
            ("train_backward_seconds", mean(&pool, |step| step.backward_s)),
            ("train_optimizer_seconds", mean(&pool, |step| step.optimizer_s)),
            ("train_sync_seconds", mean(&pool, |step| step.sync_s)),
            ("train_save_seconds", mean(&pool, |step| step.save_s)),
            ("train_compute_ratio", ratio(mean(&pool, parts), step_s)),
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
            ("train_samples_per_second", rate(|step| step.samples)),
            ("train_tokens_per_second", rate(|step| step.tokens)),
            (
                "train_micro_batch",
                largest(pool.iter().filter_map(|step| step.micro_batch)),
            ),
            ("train_nonfinite_steps_total", Some(self.nonfinite)),
            (
                "train_skipped_steps_total",
                latest(&pool, |step| step.skipped_steps),
            ),
            (
                "train_memory_allocated_bytes",
                largest(pool.iter().filter_map(|step| step.cuda_allocated_bytes)),
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

fn mean(pool: &[Step], part: impl Fn(&Step) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = pool.iter().filter_map(part).collect();
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
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of steps"
    )]
    let number = |step: &Step| step.step.unwrap_or_default() as u64;
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

/// A note as a label: the text comes from a training process.
/// The index NVML gives the rank's GPU.
fn gpu_of(hello: &Hello, inventory: &Inventory) -> Option<u32> {
    let by = |own: &Option<String>, of: fn(&domain::topology::Gpu) -> &str| {
        let own = own.as_deref()?;
        inventory
            .gpus
            .iter()
            .find(|gpu| of(gpu).eq_ignore_ascii_case(own))
            .map(|gpu| gpu.index)
    };
    by(&hello.gpu_uuid, |gpu| &gpu.uuid).or_else(|| by(&hello.gpu_pci_bus_id, |gpu| &gpu.pci_bus_id))
}

/// The inventory as readers hand it around.
pub(crate) type SharedInventory = tokio::sync::watch::Receiver<Arc<Inventory>>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::is_stale;

    use super::*;

    fn run() -> (RunSeries, Samples) {
        let samples = Samples::new();
        (
            RunSeries::new(RunId::new("ddp-1").unwrap(), AttemptNo(1), samples.clone()),
            samples,
        )
    }

    fn step(n: u32, at_ms: i64, loss: f64) -> Record {
        Record::Step(Box::new(Step {
            wall_ns: at_ms * 1_000_000,
            step: Some(n.into()),
            step_s: Some(0.1),
            forward_s: Some(0.03),
            backward_s: Some(0.04),
            optimizer_s: Some(0.01),
            loss: Some(loss),
            grad_norm: Some(n.into()),
            samples: Some(8.0),
            ..Step::default()
        }))
    }

    fn values(samples: &Samples, metric: &str) -> Vec<(i64, f64)> {
        let of_metric = samples
            .latest()
            .into_iter()
            .filter(|sample| sample.series.metric_name() == Some(metric));
        of_metric.map(|sample| (sample.at_ms, sample.value)).collect()
    }

    #[test]
    fn the_first_steps_are_samples_of_their_own_then_one_a_second() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        for n in 0..130 {
            series.take(step(n, 1_000_000 + i64::from(n) * 100, 1.0), &none);
        }
        let all = samples.drain();
        let times: Vec<i64> = all
            .iter()
            .filter(|s| s.series.metric_name() == Some("train_step"))
            .map(|s| s.at_ms)
            .collect();
        // 30 at once, and 12.9 s of refill.
        assert_eq!(times.len(), 42);
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
        let ratio = values(&samples, "train_compute_ratio")[0].1;
        assert!((ratio - 0.8).abs() < 1e-9, "{ratio}");
        let rate = values(&samples, "train_samples_per_second")[0].1;
        assert!((rate - 80.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn a_bad_loss_is_not_hidden_by_the_good_ones_around_it() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        for n in 0..40 {
            let loss = if n == 35 {
                f64::NAN
            } else {
                2.0 - f64::from(n) / 100.0
            };
            series.take(step(n, 1_000_000 + i64::from(n), loss), &none);
        }
        series.tick(1_001_100);
        assert!(values(&samples, "train_loss")[0].1.is_nan());
        assert_eq!(values(&samples, "train_nonfinite_steps_total")[0].1, 1.0);
        assert!((values(&samples, "train_loss_best")[0].1 - 1.61).abs() < 1e-9);
        assert_eq!(values(&samples, "train_grad_norm")[0].1, 39.0);
        assert_eq!(
            values(&samples, "train_last_step_age_seconds"),
            [(1_001_100, 1.061)]
        );
    }

    #[test]
    fn what_the_script_reports_is_pooled_with_its_steps() {
        let (mut series, samples) = run();
        for n in 0..40 {
            series.take(
                Record::Step(Box::new(Step {
                    wall_ns: (1_000_000 + n) * 1_000_000,
                    rpc_s: Some(if n == 35 { 0.3 } else { 0.1 }),
                    rpc_s_max: Some(if n == 35 { 5.0 } else { 0.2 }),
                    staleness_steps: Some(if n % 2 == 0 { 0.0 } else { 2.0 }),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        series.tick(1_001_100);
        let value = |metric: &str| values(&samples, metric)[0].1;
        // The last ten of the steps are one sample.
        assert!((value("train_rpc_seconds") - 0.12).abs() < 1e-9);
        assert_eq!(value("train_rpc_seconds_max"), 5.0);
        assert!((value("train_gradient_staleness_steps") - 1.0).abs() < 1e-9);
        assert!(values(&samples, "train_pipeline_bubble_ratio").is_empty());
    }

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

    #[test]
    fn a_logged_loss_is_not_measured_against_what_backward_saw() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        let best = || values(&samples, "train_loss_best")[0].1;
        series.take(step(1, 1_000, 0.2), &none);
        assert_eq!(best(), 0.2);
        let logged = |at_ms: i64, loss: Option<f64>, backward: f64| {
            Record::Step(Box::new(Step {
                wall_ns: at_ms * 1_000_000,
                loss,
                loss_backward: Some(backward),
                loss_source: Some("logged".into()),
                ..Step::default()
            }))
        };
        series.take(logged(2_000, Some(3.2), 0.2), &none);
        assert_eq!((best(), values(&samples, "train_loss")[0].1), (3.2, 3.2));
        series.take(logged(3_000, None, f64::NAN), &none);
        assert_eq!(best(), 3.2, "nothing is logged at this step");
        assert_eq!(values(&samples, "train_nonfinite_steps_total")[0].1, 1.0);
    }

    fn save(phase: Phase, at_ms: i64, background: bool) -> Record {
        Record::Checkpoint(Box::new(Checkpoint {
            wall_ns: at_ms * 1_000_000,
            phase,
            background,
            seconds: Some(8.0),
            blocked_s: Some(if background { 0.5 } else { 8.0 }),
            bytes: Some(1e9),
            ..Checkpoint::default()
        }))
    }

    #[test]
    fn a_rank_stands_still_for_a_save_until_it_is_over_or_the_next_step_is() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        let value = |metric: &str| values(&samples, metric)[0].1;
        series.take(save(Phase::Begin, 10_000, false), &none);
        series.tick(13_000);
        assert_eq!(value("train_checkpoint_saving_seconds"), 3.0);
        series.take(save(Phase::End, 18_000, false), &none);
        assert_eq!(value("train_checkpoint_saving_seconds"), 0.0);
        assert_eq!(
            (
                value("train_checkpoint_save_seconds"),
                value("train_checkpoint_bytes")
            ),
            (8.0, 1e9)
        );
        series.take(save(Phase::Begin, 20_000, true), &none);
        series.tick(25_000);
        assert_eq!(value("train_checkpoint_saving_seconds"), 0.0, "training goes on");
        series.take(save(Phase::Failure, 26_000, true), &none);
        assert_eq!(value("train_checkpoint_blocked_seconds_total"), 8.5);
        assert_eq!(value("train_checkpoint_failures_total"), 1.0);
        series.take(save(Phase::Begin, 30_000, false), &none);
        series.take(step(7, 31_000, 1.0), &none);
        series.tick(33_000);
        assert_eq!(value("train_checkpoint_saving_seconds"), 0.0, "its end was lost");
    }

    #[test]
    fn what_a_rank_cannot_see_is_said_until_it_says_otherwise() {
        let (mut series, samples) = run();
        let mut hello = |at_ms: i64, notes: &[String]| {
            let hello = Hello {
                wall_ns: at_ms * 1_000_000,
                notes: notes.to_vec(),
                ..Hello::default()
            };
            series.take(Record::Hello(Box::new(hello)), &Inventory::default());
        };
        hello(1_000, &["blind\nhere".to_owned(), "x".repeat(1_000)]);
        let notes = || {
            let notes = samples.latest().into_iter();
            let texts = notes.filter_map(|sample| sample.series.get("note").map(str::to_owned));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(notes(), ["blind here".to_owned(), "x".repeat(200)]);
        hello(2_000, &["blind\nhere".to_owned()]);
        assert_eq!(notes(), ["blind here"]);
    }

    #[test]
    fn a_run_of_which_no_rank_speaks_says_so_until_one_does() {
        let (mut series, samples) = run();
        let said = || values(&samples, "train_note").len();
        series.tick(1_000_000);
        series.tick(1_119_000);
        assert_eq!(said(), 0);
        series.tick(1_120_000);
        assert_eq!(said(), 1);
        let hello = Hello {
            wall_ns: 1_121_000 * 1_000_000,
            ..Hello::default()
        };
        series.take(Record::Hello(Box::new(hello)), &Inventory::default());
        series.tick(1_122_000);
        assert_eq!(said(), 0);
    }

    #[test]
    fn an_ended_attempt_leaves_no_series_behind() {
        let (mut series, samples) = run();
        let gpu = domain::topology::Gpu {
            index: 3,
            uuid: "GPU-a".into(),
            ..domain::topology::Gpu::default()
        };
        let inventory = Inventory {
            gpus: vec![gpu],
            ..Inventory::default()
        };
        let hello = Hello {
            wall_ns: 1_000_000,
            gpu_uuid: Some("GPU-a".into()),
            ..Hello::default()
        };
        series.take(Record::Hello(Box::new(hello)), &inventory);
        series.take(step(1, 1_000, 1.0), &inventory);
        series.tick(2_000);
        let assigned = samples
            .latest()
            .into_iter()
            .find(|s| s.series.metric_name() == Some("gpu_assignment_info"));
        assert_eq!(
            assigned.unwrap().series.to_string(),
            r#"gpu_assignment_info{gpu="3", rank="0", run="ddp-1"}"#
        );
        series.end(3_000);
        assert!(samples.latest().is_empty());
        assert!(
            samples
                .drain()
                .iter()
                .rev()
                .take(3)
                .all(|sample| is_stale(sample.value))
        );
    }
}
