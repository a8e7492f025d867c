//! Tests of the built-in rules on recorded runs: loss and gradient norm of the recipe `ddp`, one line per step, as the probe recorded them
//! (`crates/torch-probe/tests/data`). An explosion must be detected within some steps; a warm-up spike must not fire.

use std::sync::Arc;

use domain::metric::LossNoise;
use domain::rule::alert::{Change, step};
use domain::rule::shipped;
use domain::series::{Budget, Labels, SelectError, Selection, Series, SeriesSet, SeriesSource};
use query::{Params, Value};

/// The approximate duration of a step of these runs.
const STEP_MS: i64 = 50;
/// Both ranks of data parallel training have the same values.
const RANKS: [&str; 2] = ["0", "1"];

struct Recorded(Vec<Series>);

impl Recorded {
    fn read(csv: &str) -> Self {
        let rows: Vec<(i64, f64, f64)> = csv.lines().skip(1).map(row).collect();
        let times_ms: Arc<[i64]> = rows.iter().map(|(step, ..)| step * STEP_MS).collect();
        let best = rows.iter().scan(f64::INFINITY, |best, (_, loss, _)| {
            *best = best.min(*loss);
            Some(*best)
        });
        // NaN stands for no value: a comparison with it is false.
        let noise = rows.iter().scan(LossNoise::new(true), |noise, (_, loss, _)| {
            noise.take(*loss);
            Some(noise.value().unwrap_or(f64::NAN))
        });
        let columns: [(&str, Arc<[f64]>); 5] = [
            ("train_loss", rows.iter().map(|(_, loss, _)| *loss).collect()),
            ("train_loss_best", best.collect()),
            ("train_loss_noise", noise.collect()),
            ("train_grad_norm", rows.iter().map(|(.., norm)| *norm).collect()),
            ("train_step", rows.iter().map(|(step, ..)| *step as f64).collect()),
        ];
        let one = |rank: &str, (name, values): &(&str, Arc<[f64]>)| Series {
            labels: Labels::new([("__name__", *name), ("run", "r"), ("rank", rank), ("node", "n")])
                .expect("well formed"),
            times_ms: Arc::clone(&times_ms),
            values: Arc::clone(values),
        };
        Self(
            RANKS
                .iter()
                .flat_map(|rank| columns.iter().map(|column| one(rank, column)).collect::<Vec<_>>())
                .collect(),
        )
    }

    /// Returns the step at which `alert` first fires if it is evaluated at every step.
    fn first_firing_step(&self, alert: &str) -> Option<i64> {
        let rule = shipped::alerts().find(|rule| rule.name == alert);
        let rule = rule.expect("a shipped rule");
        let query = query::parse(&rule.expr).expect("well formed");
        let alert_times = rule.alert_times();
        let mut active = Vec::new();
        let times = Arc::clone(&self.0[0].times_ms);
        times.iter().find_map(|&now_ms| {
            let params = Params {
                start_ms: now_ms,
                end_ms: now_ms,
                step_ms: 0,
                lookback_ms: query::LOOKBACK_DEFAULT_MS,
            };
            let output = query
                .evaluate(self, &params, &Budget::unlimited())
                .expect("evaluates");
            let Value::Vector(samples) = output.value else {
                panic!("not a vector")
            };
            let samples = samples
                .into_iter()
                .map(|(labels, _, value)| (labels, value))
                .collect();
            let changes = step(&mut active, samples, alert_times, now_ms);
            changes
                .iter()
                .any(|change| matches!(change, Change::Firing(_)))
                .then_some(now_ms / STEP_MS)
        })
    }
}

fn row(line: &str) -> (i64, f64, f64) {
    let cells: Vec<&str> = line.split(',').collect();
    let number = |n: usize| cells[n].parse::<f64>().expect("a number");
    (cells[0].parse().expect("a step"), number(1), number(2))
}

impl SeriesSource for Recorded {
    fn select(&self, selection: &Selection, _: &Budget) -> Result<SeriesSet, SelectError> {
        let matchers: Vec<_> = selection
            .matchers
            .iter()
            .map(|matcher| domain::series::matcher::CompiledMatcher::new(matcher).expect("a good matcher"))
            .collect();
        let selected = self.0.iter().filter(|series| {
            matchers
                .iter()
                .all(|matcher| matcher.matches(series.labels.get(matcher.name()).unwrap_or("")))
        });
        Ok(SeriesSet {
            series: selected.filter_map(|series| within(series, selection)).collect(),
            ..SeriesSet::default()
        })
    }
}

fn within(series: &Series, selection: &Selection) -> Option<Series> {
    let from = series.times_ms.partition_point(|time| *time < selection.start_ms);
    let to = series.times_ms.partition_point(|time| *time <= selection.end_ms);
    (from < to).then(|| Series {
        labels: series.labels.clone(),
        times_ms: series.times_ms[from..to].into(),
        values: series.values[from..to].into(),
    })
}

macro_rules! recorded {
    ($name:literal) => {
        Recorded::read(include_str!(concat!(
            "../../../torch-probe/tests/data/",
            $name,
            ".csv"
        )))
    };
}

#[test]
fn an_explosion_in_the_first_steps_is_seen_when_it_lasts() {
    assert_eq!(
        recorded!("lr1000").first_firing_step("GradientExplosion"),
        Some(5)
    );
    assert_eq!(recorded!("lr10").first_firing_step("GradientExplosion"), Some(9));
}

#[test]
fn a_healthy_run_and_a_warm_up_spike_stay_silent() {
    assert_eq!(recorded!("healthy").first_firing_step("GradientExplosion"), None);
    assert_eq!(
        recorded!("warmup-spike").first_firing_step("GradientExplosion"),
        None
    );
}
