//! The results of functions for the samples of a window, and of aggregations for the values of a group.

use super::tree::Over;

/// `end` is the end of the window, `now` the time of the query. Returns `None` if the function has no result.
pub(crate) fn value(over: &Over, samples: &[(i64, f64)], end: i64, now: i64) -> Option<f64> {
    let values: Vec<f64> = samples.iter().map(|(_, value)| *value).collect();
    let time = |at: usize| samples[at].0 as f64 / 1_000.0;
    let last = values.len() - 1;
    let lowest = over_nan(&values, |new, best| new < best);
    let highest = over_nan(&values, |new, best| new > best);
    Some(match over.function {
        "rate" => extrapolated(over, samples, end, true)? / (over.range_ms as f64 / 1_000.0),
        "increase" => extrapolated(over, samples, end, true)?,
        "delta" => extrapolated(over, samples, end, false)?,
        "irate" | "idelta" | "deriv" | "predict_linear" if values.len() < 2 => return None,
        "irate" => {
            let rise = if values[last] < values[last - 1] {
                values[last]
            } else {
                values[last] - values[last - 1]
            };
            rise / (time(last) - time(last - 1))
        }
        "idelta" => values[last] - values[last - 1],
        "deriv" => line(samples, 0).1,
        "predict_linear" => {
            let (at_now, slope) = line(samples, now);
            at_now + slope * over.param.expect("a generated parameter")
        }
        "changes" => values
            .windows(2)
            .filter(|pair| pair[0] != pair[1] && !(pair[0].is_nan() && pair[1].is_nan()))
            .count() as f64,
        "resets" => values.windows(2).filter(|pair| pair[1] < pair[0]).count() as f64,
        "last_over_time" => values[last],
        "first_over_time" => values[0],
        "present_over_time" => 1.0,
        "mad_over_time" => {
            let median = statistic("quantile", Some(0.5), &values);
            let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
            if values.iter().any(|value| value.is_nan()) {
                f64::NAN
            } else {
                statistic("quantile", Some(0.5), &distances)
            }
        }
        "ts_of_first_over_time" => time(0),
        "ts_of_last_over_time" => time(last),
        // The last of equal values.
        "ts_of_min_over_time" => time(last_of(&values, lowest)),
        "ts_of_max_over_time" => time(last_of(&values, highest)),
        other => statistic(
            other.strip_suffix("_over_time").expect("a statistic"),
            over.param,
            &values,
        ),
    })
}

/// Returns a statistic of at least one value.
pub(crate) fn statistic(name: &str, param: Option<f64>, values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = || values.iter().map(|value| value / count).sum::<f64>();
    let variance = || values.iter().map(|value| (value - mean()).powi(2)).sum::<f64>() / count;
    match name {
        "sum" => values.iter().sum(),
        "avg" => mean(),
        "min" => over_nan(values, |new, best| new < best),
        "max" => over_nan(values, |new, best| new > best),
        "count" | "count_values" => count,
        "group" => 1.0,
        "stdvar" => variance(),
        "stddev" => variance().sqrt(),
        "quantile" => quantile(param.expect("a generated parameter"), values),
        other => panic!("{other} is no statistic"),
    }
}

/// Returns the best of the numbers; NaN only if there are no numbers.
fn over_nan(values: &[f64], is_better: fn(f64, f64) -> bool) -> f64 {
    let mut numbers = values.iter().copied().filter(|value| !value.is_nan());
    let Some(first) = numbers.next() else {
        return f64::NAN;
    };
    numbers.fold(first, |best, new| if is_better(new, best) { new } else { best })
}

fn last_of(values: &[f64], wanted: f64) -> usize {
    let is_it = |value: &f64| *value == wanted || (value.is_nan() && wanted.is_nan());
    values.iter().rposition(is_it).expect("one of the values")
}

/// Interpolates linearly between a rank and the next. The next one is included even if its weight is 0: with an infinity the result is then
/// NaN, as in Prometheus. NaN counts as the smallest value.
fn quantile(q: f64, values: &[f64]) -> f64 {
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_nan()).collect();
    let mut numbers: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    numbers.sort_by(f64::total_cmp);
    sorted.append(&mut numbers);
    let rank = q * (sorted.len() - 1) as f64;
    let share = rank - rank.floor();
    let (rank, last) = (rank.floor() as usize, sorted.len() - 1);
    sorted[rank] * (1.0 - share) + sorted[last.min(rank + 1)] * share
}

/// Returns the difference between first and last sample, extrapolated to the ends of the window: completely if the gap is less than 1.1
/// times the mean distance of samples, otherwise by half that distance. A counter is never extrapolated to below zero.
fn extrapolated(over: &Over, samples: &[(i64, f64)], end: i64, is_counter: bool) -> Option<f64> {
    if samples.len() < 2 {
        return None;
    }
    let ((first_t, first), (last_t, last)) = (samples[0], samples[samples.len() - 1]);
    let mut difference = last - first;
    if is_counter {
        for pair in samples.windows(2).filter(|pair| pair[1].1 < pair[0].1) {
            difference += pair[0].1;
        }
    }
    let sampled = (last_t - first_t) as f64;
    let distance = sampled / (samples.len() - 1) as f64;
    let stretch = |gap: f64| if gap < 1.1 * distance { gap } else { distance / 2.0 };
    let mut before = stretch((first_t - (end - over.range_ms)) as f64);
    let behind = stretch((end - last_t) as f64);
    if is_counter && difference > 0.0 && first >= 0.0 {
        let to_zero = sampled * first / difference;
        before = if to_zero < before { to_zero } else { before };
    }
    Some(difference * (before + sampled + behind) / sampled)
}

/// Returns the least-squares line: its value at `origin`, and its slope per second.
fn line(samples: &[(i64, f64)], origin: i64) -> (f64, f64) {
    let first = samples[0].1;
    if samples.iter().all(|(_, value)| *value == first) {
        return if first.is_infinite() {
            (f64::NAN, f64::NAN)
        } else {
            (first, 0.0)
        };
    }
    let count = samples.len() as f64;
    let x = |time: i64| (time - origin) as f64 / 1_000.0;
    let x_mean = samples.iter().map(|(time, _)| x(*time)).sum::<f64>() / count;
    let y_mean = samples.iter().map(|(_, value)| value).sum::<f64>() / count;
    let covariance: f64 = samples
        .iter()
        .map(|(time, value)| (x(*time) - x_mean) * (value - y_mean))
        .sum();
    let variance: f64 = samples.iter().map(|(time, _)| (x(*time) - x_mean).powi(2)).sum();
    // The result for infinities depends on the form of the sums; this is the form that Prometheus uses.
    let covariance = if y_mean.is_finite() {
        covariance
    } else {
        let products = samples.iter().map(|(time, value)| x(*time) * value);
        products.sum::<f64>() - x_mean * count * (y_mean * count) / count
    };
    let slope = covariance / variance;
    (y_mean - slope * x_mean, slope)
}
