//! The training series of one run on this node, by rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::ident::{AttemptNo, RunId};
use domain::run::unobserved::{NOTES_MAX, one_line};
use domain::series::Labels;
use domain::time::TimestampMs;
use domain::topology::{Gpu, Inventory};

use crate::launch::probe::flop_utilization::FlopUtilization;
use crate::launch::probe::logged::LoggedSeries;
use crate::launch::probe::rank::RankSeries;
use crate::launch::probe::record::{Hello, Record};
use crate::sample::Samples;
use crate::sample::nccl::NcclSeries;
use crate::sample::series::series;

/// Interval at which constant series are written again, so that any window of five minutes contains them.
const REPEAT_MS: i64 = 15_000;

/// A probe sends its first record as soon as its rank has imported torch. After this time without a record, there is no probe.
pub(crate) const SILENT_AFTER_MS: i64 = 120_000;
const SILENT: &str = "no rank on this node has imported torch where the probe can see it: Python runs with -I, -E or -S, \
                      or the command trains nothing; there are no steps and no loss";

/// All series of a run on this node.
#[derive(Debug)]
pub(crate) struct RunSeries {
    run: RunId,
    attempt: AttemptNo,
    samples: Samples,
    ranks: BTreeMap<u32, RankSeries>,
    repeated_ms: TimestampMs,
    /// When the first tick was.
    since_ms: Option<TimestampMs>,
    nccl: NcclSeries,
    logged: LoggedSeries,
    /// The records are read from the start of the attempt.
    is_at_start: bool,
}

impl RunSeries {
    /// Creates the series. `is_at_start`: no earlier agent has read records of the attempt.
    pub(crate) fn new(run: RunId, attempt: AttemptNo, samples: Samples, is_at_start: bool) -> Self {
        Self {
            is_at_start,
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

    /// Returns true if nccl-probe has sent a report.
    pub(crate) fn hears_nccl(&self) -> bool {
        self.nccl.has_reports()
    }

    /// Takes one record.
    pub(crate) fn take(&mut self, record: Record, inventory: &Inventory) {
        let samples = self.samples.clone();
        match record {
            Record::Hello(hello) => self.hello(&hello, inventory),
            Record::Step(step) => self.rank(step.rank).step(*step, &samples),
            Record::Nccl(report) => self.nccl.take(&report),
            Record::Checkpoint(save) => self.rank(save.rank).save(&save, &samples),
            Record::Skips(skips) => self.rank(skips.rank).skips(&skips, &samples),
            Record::Logged(logged) => self.logged.take(self.run.as_str(), &logged, &samples),
            Record::Error { .. } | Record::Bye(_) | Record::Mesh(_) | Record::Stop {} | Record::Knob(_) => {}
        }
    }

    /// Advances the time: writes pools that get no more steps, and updates ages.
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

    /// Ends the attempt: writes the open pools, then ends every series of the run.
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
        let (run, attempt) = (self.run.to_string(), self.attempt.to_string());
        let (rank, samples) = (hello.rank.to_string(), self.samples.clone());
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let info = series(
            "train_info",
            &[
                ("run", &run),
                ("rank", &rank),
                ("attempt", &attempt),
                ("backend", &text(&hello.backend)),
                ("device", &text(&hello.device)),
                ("torch", &text(&hello.torch)),
                ("python", &text(&hello.python)),
            ],
        );
        let mut infos = vec![info];
        let gpu = gpu_of(hello, inventory);
        let utilization = gpu.and_then(|gpu| FlopUtilization::new(hello.parameters?, &gpu.name));
        if let Some(gpu) = gpu {
            let labels = [
                ("run", run.as_str()),
                ("rank", &rank),
                ("gpu", &gpu.index.to_string()),
            ];
            infos.push(series("gpu_assignment_info", &labels));
        }
        for note in hello.notes.iter().take(NOTES_MAX) {
            let labels = [("run", run.as_str()), ("rank", &rank), ("note", &one_line(note))];
            infos.push(series("train_note", &labels));
        }
        let at_ms = hello.wall_ns / 1_000_000;
        let is_alone = hello.world_size == Some(1);
        self.rank(hello.rank)
            .introduce(infos, is_alone, utilization, at_ms, &samples);
    }

    fn rank(&mut self, rank: u32) -> &mut RankSeries {
        let (run, is_at_start) = (&self.run, self.is_at_start);
        let new = || RankSeries::new(run, rank, is_at_start);
        self.ranks.entry(rank).or_insert_with(new)
    }
}

/// Returns the rank's GPU.
fn gpu_of<'a>(hello: &Hello, inventory: &'a Inventory) -> Option<&'a Gpu> {
    let by = |own: &Option<String>, of: fn(&Gpu) -> &str| {
        let own = own.as_deref()?;
        inventory
            .gpus
            .iter()
            .find(|gpu| of(gpu).eq_ignore_ascii_case(own))
    };
    by(&hello.gpu_uuid, |gpu| &gpu.uuid).or_else(|| by(&hello.gpu_pci_bus_id, |gpu| &gpu.pci_bus_id))
}

/// The current inventory, as readers share it.
pub(crate) type SharedInventory = tokio::sync::watch::Receiver<Arc<Inventory>>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::is_stale;

    use crate::launch::probe::record::{Checkpoint, Phase, Step};

    use super::*;

    fn run() -> (RunSeries, Samples) {
        let samples = Samples::new();
        (
            RunSeries::new(RunId::new("ddp-1").unwrap(), AttemptNo(1), samples.clone(), true),
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
            sync_s: Some(0.0),
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
    fn the_first_steps_are_samples_of_their_own_then_about_one_a_second() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        for n in 1..=134 {
            series.take(step(n, 1_000_000 + i64::from(n) * 100, 1.0), &none);
        }
        let all = samples.drain();
        let of = |metric: &str| -> Vec<f64> {
            let of_metric = all.iter().filter(|s| s.series.metric_name() == Some(metric));
            of_metric.map(|s| s.value).collect()
        };
        let steps = of("train_step");
        assert_eq!(steps[..30], (1..=30).map(f64::from).collect::<Vec<_>>());
        assert_eq!(
            steps[30..],
            [
                32.0, 40.0, 48.0, 56.0, 64.0, 72.0, 80.0, 88.0, 96.0, 104.0, 112.0, 120.0, 128.0
            ]
        );
        assert_eq!(of("train_pool_steps")[30..32], [2.0, 8.0]);
        let at = |n: i64| 1_000_000 + n * 100;
        assert_eq!(
            values(&samples, "train_step"),
            [(at(128), 128.0)],
            "the time is that of the last step"
        );
        let ratio = values(&samples, "train_compute_ratio")[0].1;
        assert!((ratio - 0.8).abs() < 1e-9, "{ratio}");
        let host = values(&samples, "train_host_seconds")[0].1;
        assert!((host - 0.02).abs() < 1e-9, "{host}");
        let rate = values(&samples, "train_samples_per_second")[0].1;
        assert!((rate - 80.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn a_pool_has_the_mean_and_the_longest_of_each_part() {
        let (mut series, samples) = run();
        for n in 1..=40_u32 {
            let slow = if n == 37 { 0.08 } else { 0.0 };
            series.take(
                Record::Step(Box::new(Step {
                    wall_ns: i64::from(n) * 125_000_000,
                    step: Some(n.into()),
                    step_s: Some(0.125 + slow),
                    data_s: Some(0.01 + slow),
                    forward_s: Some(0.02),
                    backward_s: Some(0.03),
                    optimizer_s: Some(0.01),
                    sync_s: Some(0.005),
                    bubble_s: Some(0.01),
                    save_s: Some(0.015),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        let told = |metric: &str, expected: f64| {
            let value = values(&samples, metric)[0].1;
            assert!((value - expected).abs() < 1e-9, "{metric}: {value}");
        };
        told("train_pool_steps", 8.0);
        for (part, mean, max) in [
            ("step", 0.135, 0.205),
            ("data", 0.02, 0.09),
            ("forward", 0.02, 0.02),
            ("backward", 0.03, 0.03),
            ("optimizer", 0.01, 0.01),
            ("sync", 0.005, 0.005),
            ("host", 0.025, 0.025),
        ] {
            told(&format!("train_{part}_seconds"), mean);
            told(&format!("train_{part}_seconds_max"), max);
        }
        told("train_bubble_seconds", 0.01);
    }

    #[test]
    fn a_checksum_of_parameters_is_in_the_sample_with_its_step() {
        let (mut series, samples) = run();
        for n in 1..=264_u32 {
            series.take(
                Record::Step(Box::new(Step {
                    rank: 3,
                    wall_ns: i64::from(n) * 125_000_000,
                    step: Some(n.into()),
                    step_s: Some(0.125),
                    parameters_checksum: n.is_multiple_of(256).then_some(4_503_599_627_370_495.0),
                    replica_group: n.is_multiple_of(256).then_some(1),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        let all = samples.drain();
        let checksums: Vec<_> = all
            .iter()
            .filter(|sample| sample.series.metric_name() == Some("train_parameters_checksum"))
            .map(|sample| (sample.series.to_string(), sample.at_ms, sample.value))
            .collect();
        let name = r#"train_parameters_checksum{rank="3", replica_group="1", run="ddp-1"}"#;
        assert_eq!(checksums, [(name.to_owned(), 256 * 125, 4_503_599_627_370_495.0)]);
        let of_step = all
            .iter()
            .find(|sample| sample.at_ms == 256 * 125 && sample.series.metric_name() == Some("train_step"));
        assert_eq!(of_step.map(|sample| sample.value), Some(256.0));
    }

    #[test]
    fn the_parts_of_a_step_are_reported_only_if_its_waits_are_known() {
        let (mut series, samples) = run();
        for n in 1..=32_u32 {
            let is_sampled = n % 4 == 0;
            series.take(
                Record::Step(Box::new(Step {
                    wall_ns: i64::from(n) * 250_000_000,
                    step: Some(n.into()),
                    step_s: Some(0.25),
                    forward_s: Some(if is_sampled { 0.05 } else { 0.1 }),
                    backward_s: Some(0.1),
                    sync_s: is_sampled.then_some(0.05),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        let value = |metric: &str| values(&samples, metric)[0].1;
        assert_eq!(
            (value("train_pool_steps"), value("train_forward_seconds")),
            (2.0, 0.05)
        );
        assert!((value("train_compute_ratio") - 0.6).abs() < 1e-9);
    }

    #[test]
    fn the_last_step_of_a_silent_rank_is_reported() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        for n in 1..=37 {
            series.take(step(n, 1_000_000 + i64::from(n) * 125, 1.0), &none);
        }
        let last = || values(&samples, "train_step")[0].1;
        series.tick(1_005_000);
        series.tick(1_007_400);
        assert_eq!(last(), 32.0);
        series.tick(1_007_500);
        assert_eq!((last(), values(&samples, "train_pool_steps")[0].1), (37.0, 5.0));
        series.take(step(38, 1_010_000, 1.0), &none);
        series.take(step(40, 1_010_200, 1.0), &none);
        assert_eq!((last(), values(&samples, "train_pool_steps")[0].1), (40.0, 3.0));
    }

    #[test]
    fn a_compute_share_with_hidden_waits_is_not_reported() {
        let told = |sync_s: Option<f64>, world_size: u32| {
            let (mut series, samples) = run();
            let none = Inventory::default();
            let hello = Hello {
                world_size: Some(world_size),
                wall_ns: 1_000_000,
                ..Hello::default()
            };
            series.take(Record::Hello(Box::new(hello)), &none);
            let Record::Step(mut first) = step(1, 1_000, 1.0) else {
                panic!("a step")
            };
            first.sync_s = sync_s;
            series.take(Record::Step(first), &none);
            !values(&samples, "train_compute_ratio").is_empty()
        };
        assert!(told(Some(0.01), 4) && told(None, 1));
        assert!(!told(None, 4), "as under FSDP");
    }

    #[test]
    fn a_non_finite_value_is_reported_with_its_start_until_it_is_finite() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        let mut take = |n: u32, loss: f64, grad_norm: f64, skipped: f64| {
            let Record::Step(mut one) = step(n, 1_000_000 + i64::from(n) * 2_000, loss) else {
                panic!("a step")
            };
            (one.grad_norm, one.skipped_steps) = (Some(grad_norm), Some(skipped));
            series.take(Record::Step(one), &none);
            let since = samples.latest().into_iter().filter(|sample| {
                sample.series.metric_name() == Some("train_nonfinite_since_step") && !is_stale(sample.value)
            });
            let since: Vec<(String, f64)> = since
                .map(|sample| {
                    (
                        sample.series.get("value").unwrap_or_default().to_owned(),
                        sample.value,
                    )
                })
                .collect();
            (since, values(&samples, "train_nonfinite_steps_total")[0].1)
        };
        assert_eq!(take(1, 2.0, 1.0, 0.0), (vec![], 0.0));
        // A gradient scaler lowers its scale: this is normal.
        assert_eq!(take(2, 2.0, f64::INFINITY, 1.0), (vec![], 0.0));
        assert_eq!(
            take(3, 2.0, f64::NAN, 1.0),
            (vec![("gradient".to_owned(), 3.0)], 1.0)
        );
        let both = vec![("gradient".to_owned(), 3.0), ("loss".to_owned(), 4.0)];
        let mut found = take(4, f64::NAN, f64::NAN, 1.0);
        found.0.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, (both, 2.0));
        assert_eq!(take(5, 2.0, 1.0, 1.0), (vec![], 2.0));
    }

    #[test]
    fn an_own_gradient_that_becomes_non_finite_before_the_loss_does_is_reported_with_its_start() {
        let (mut series, samples) = run();
        let none = Inventory::default();
        let mut since = |n: u32, loss: f64, own: Option<f64>| {
            let Record::Step(mut one) = step(n, 1_000_000 + i64::from(n) * 2_000, loss) else {
                panic!("a step")
            };
            one.grad_norm_own = own;
            series.take(Record::Step(one), &none);
            let mut of_own = samples.latest().into_iter().filter(|sample| {
                sample.series.get("value") == Some("own_gradient") && !is_stale(sample.value)
            });
            of_own.next().map(|sample| sample.value)
        };
        assert_eq!(since(1, 2.0, Some(1.0)), None);
        assert_eq!(since(2, 2.0, Some(f64::NAN)), Some(2.0));
        assert_eq!(since(3, f64::NAN, Some(f64::NAN)), Some(2.0));
        assert_eq!(since(4, 2.0, None), Some(2.0), "it is not measured");
        assert_eq!(since(5, 2.0, Some(1.0)), None);
        assert_eq!(
            since(6, f64::NAN, Some(f64::NAN)),
            None,
            "its parameters were bad before"
        );
    }

    #[test]
    fn own_gradients_are_of_one_step_of_a_pool_and_batches_of_all() {
        let (mut series, samples) = run();
        for n in 1..=40_u32 {
            series.take(
                Record::Step(Box::new(Step {
                    wall_ns: i64::from(n) * 125_000_000,
                    step: Some(n.into()),
                    step_s: Some(0.125),
                    grad_norm_own: n.is_multiple_of(4).then_some(n.into()),
                    label_top_ratio: Some(if n.is_multiple_of(2) { 0.25 } else { 0.75 }),
                    padding_ratio: (n == 36).then_some(0.5),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        let value = |metric: &str| values(&samples, metric)[0].1;
        assert_eq!(
            [
                "train_grad_norm_own",
                "train_label_top_ratio",
                "train_padding_ratio"
            ]
            .map(value),
            [40.0, 0.5, 0.5]
        );
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
        series.tick(998_600);
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
        for n in 0..40_u32 {
            series.take(
                Record::Step(Box::new(Step {
                    wall_ns: (1_000_000 + i64::from(n)) * 1_000_000,
                    step: Some(n.into()),
                    step_s: Some(0.001),
                    rpc_s: Some(if n == 35 { 0.3 } else { 0.1 }),
                    rpc_s_max: Some(if n == 35 { 5.0 } else { 0.2 }),
                    staleness_steps: Some(if n % 2 == 0 { 0.0 } else { 2.0 }),
                    ..Step::default()
                })),
                &Inventory::default(),
            );
        }
        series.tick(998_600);
        series.tick(1_001_100);
        let value = |metric: &str| values(&samples, metric)[0].1;
        // The last ten of the steps are one sample.
        assert!((value("train_rpc_seconds") - 0.12).abs() < 1e-9);
        assert_eq!(value("train_rpc_seconds_max"), 5.0);
        assert!((value("train_gradient_staleness_steps") - 1.0).abs() < 1e-9);
        assert!(values(&samples, "train_pipeline_bubble_ratio").is_empty());
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
    fn failures_in_a_row_end_with_the_next_success_of_the_same_checkpoint() {
        let (mut series, samples) = run();
        let mut take = |phase: Phase, at_ms: i64, path: &str| {
            let Record::Checkpoint(mut record) = save(phase, at_ms, false) else {
                panic!("a save");
            };
            path.clone_into(&mut record.path);
            series.take(Record::Checkpoint(record), &Inventory::default());
            values(&samples, "train_checkpoint_failures_in_a_row")
                .first()
                .map(|value| value.1)
        };
        assert_eq!(take(Phase::Begin, 1_000, "/c/step-1.pt"), None, "none has ended");
        assert_eq!(take(Phase::Failure, 2_000, "/c/step-1.pt"), Some(1.0));
        assert_eq!(take(Phase::Failure, 3_000, "/c/step-2.pt"), Some(2.0));
        assert_eq!(take(Phase::End, 4_000, "/c/best.pt"), Some(2.0), "another one");
        assert_eq!(take(Phase::End, 5_000, "/c/step-13.pt"), Some(0.0));
    }

    #[test]
    fn failed_saves_are_counted_by_the_error_of_the_system_if_there_is_one() {
        let (mut series, samples) = run();
        for (at_ms, errno) in [(1_000, Some("ENOSPC")), (2_000, None), (3_000, Some("ENOSPC"))] {
            let Record::Checkpoint(mut record) = save(Phase::Failure, at_ms, false) else {
                panic!("a save");
            };
            record.errno = errno.map(str::to_owned);
            series.take(Record::Checkpoint(record), &Inventory::default());
        }
        let all = samples.drain();
        let counts = |name: &str| -> Vec<(i64, f64)> {
            let of_series = all.iter().filter(|sample| sample.series.to_string() == name);
            of_series.map(|sample| (sample.at_ms, sample.value)).collect()
        };
        assert_eq!(
            counts(r#"train_checkpoint_errors_total{errno="ENOSPC", rank="0", run="ddp-1"}"#),
            [(999, 0.0), (1_000, 1.0), (2_000, 1.0), (3_000, 2.0)]
        );
        assert_eq!(
            counts(r#"train_checkpoint_errors_total{rank="0", run="ddp-1"}"#),
            [(1_999, 0.0), (2_000, 1.0), (3_000, 1.0)]
        );
    }

    #[test]
    fn notes_of_a_rank_are_reported_until_it_sends_others() {
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
    fn a_run_without_a_record_of_any_rank_is_marked_until_the_first() {
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
