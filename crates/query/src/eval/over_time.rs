//! Functions of a range that are statistics of its values. A window is never empty here.

use super::numeric::{Mean, Sum, Variance, quantile};
use super::range::Window;
use crate::function::Function;

/// Returns the statistic for a function that needs only the window; `None` for other functions.
pub(super) fn statistic(function: Function) -> Option<fn(&Window) -> f64> {
    Some(match function {
        Function::SumOverTime => sum,
        Function::AvgOverTime => avg,
        Function::MinOverTime => |window| window.values[extreme(window.values, |new, best| new < best)],
        Function::MaxOverTime => |window| window.values[extreme(window.values, |new, best| new > best)],
        Function::CountOverTime => |window| window.values.len() as f64,
        Function::LastOverTime => |window| window.values[window.values.len() - 1],
        Function::FirstOverTime => |window| window.values[0],
        Function::PresentOverTime => |_| 1.0,
        Function::StdvarOverTime => variance,
        Function::StddevOverTime => |window| variance(window).sqrt(),
        Function::MadOverTime => median_absolute_deviation,
        Function::TsOfFirstOverTime => |window| seconds(window, 0),
        Function::TsOfLastOverTime => |window| seconds(window, window.values.len() - 1),
        Function::TsOfMinOverTime => {
            |window| seconds(window, extreme(window.values, |new, best| new <= best))
        }
        Function::TsOfMaxOverTime => {
            |window| seconds(window, extreme(window.values, |new, best| new >= best))
        }
        _ => return None,
    })
}

/// Returns true if the values keep their meaning, so that the metric's name is kept.
pub(super) fn keeps_name(function: Function) -> bool {
    matches!(function, Function::LastOverTime | Function::FirstOverTime)
}

/// `quantile_over_time`.
pub(super) fn quantile_of(window: &Window, q: f64) -> f64 {
    quantile(q, &mut window.values.to_vec())
}

fn sum(window: &Window) -> f64 {
    let mut sum = Sum::default();
    window.values.iter().for_each(|value| sum.add(*value));
    sum.total()
}

fn avg(window: &Window) -> f64 {
    let mut mean = Mean::default();
    window.values.iter().for_each(|value| mean.add(*value));
    mean.value()
}

fn variance(window: &Window) -> f64 {
    let mut variance = Variance::default();
    window.values.iter().for_each(|value| variance.add(*value));
    variance.value()
}

fn median_absolute_deviation(window: &Window) -> f64 {
    if window.values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let median = quantile_of(window, 0.5);
    let mut deviations: Vec<f64> = window.values.iter().map(|value| (value - median).abs()).collect();
    quantile(0.5, &mut deviations)
}

/// Returns the index of the best value. Any number is better than NaN.
fn extreme(values: &[f64], is_better: impl Fn(f64, f64) -> bool) -> usize {
    (1..values.len()).fold(0, |best, at| {
        if is_better(values[at], values[best]) || values[best].is_nan() {
            at
        } else {
            best
        }
    })
}

fn seconds(window: &Window, at: usize) -> f64 {
    window.times[at] as f64 / 1_000.0
}
