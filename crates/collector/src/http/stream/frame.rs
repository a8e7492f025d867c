//! Converts the result of a query to the columns that a chart shows.

use std::collections::HashMap;

use domain::api::frames::Frame;
use domain::api::stream::Column;
use domain::series::{Labels, METRIC_NAME};
use domain::time::TimestampMs;
use query::{MatrixSeries, Output, Params, Value};

use super::coalesce::Evaluated;

/// Maximum number of columns in one frame: a grid of 10,000 GPUs with room to spare.
const COLUMNS_MAX: usize = 20_000;
/// Maximum number of values in one frame, about 10 MB of JSON or 4 MB of binary: less than a tab's outbox holds.
const CELLS_MAX: usize = 500_000;

/// Returns the frame, or a sentence that says why there is none.
pub(super) fn frame(reset: bool, when: &Params, evaluated: &Evaluated) -> Result<Frame, String> {
    let times_ms: Vec<TimestampMs> = match when.step_ms {
        0 => vec![when.start_ms],
        step_ms => (0..=(when.end_ms - when.start_ms) / step_ms)
            .map(|n| when.start_ms + n * step_ms)
            .collect(),
    };
    let value = &evaluated.output.value;
    let columns = match value {
        Value::Vector(samples) => samples.len(),
        Value::Matrix(series) => series.len(),
        Value::Scalar(..) => 1,
        Value::String(..) => return Err("the query returns a string, not numbers".into()),
    };
    let cells = columns.saturating_mul(times_ms.len());
    if columns > COLUMNS_MAX || cells > CELLS_MAX {
        return Err(format!(
            "the query returns {columns} series, more than can be shown; aggregate them, or use topk()"
        ));
    }
    let mut series: Vec<Column> = match value {
        Value::Vector(samples) => samples
            .iter()
            .map(|(labels, _, value)| one(labels.clone(), *value))
            .collect(),
        Value::Scalar(_, value) => vec![one(Labels::empty(), *value)],
        Value::Matrix(series) => series
            .iter()
            .map(|series| of_series(series, when, times_ms.len()))
            .collect(),
        Value::String(..) => vec![],
    };
    if let Some(extremes) = &evaluated.extremes {
        add_extremes(&mut series, extremes, when, times_ms.len());
    }
    Ok(Frame {
        reset,
        times_ms,
        series,
    })
}

/// Returns true if a frame of this result has room for the extremes within each step: with so many lines, a chart does not show them.
pub(super) fn has_room_for_extremes(value: &Value, when: &Params) -> bool {
    let (Value::Matrix(series), 1..) = (value, when.step_ms) else {
        return false;
    };
    let times = (when.end_ms - when.start_ms) / when.step_ms + 1;
    let times = usize::try_from(times).unwrap_or(usize::MAX);
    // The values, the least and the greatest.
    series.len().saturating_mul(times).saturating_mul(3) <= CELLS_MAX
}

fn one(labels: Labels, value: f64) -> Column {
    column(labels, 1, std::iter::once((0, value)))
}

/// Adds the extremes to their columns. They have no metric name, because functions over time drop it.
fn add_extremes(columns: &mut [Column], extremes: &[Output; 2], when: &Params, length: usize) {
    let [mut min, mut max] = extremes.each_ref().map(|output| by_labels(output, when, length));
    for column in columns {
        let labels = column.labels.filtered(|name| name != METRIC_NAME);
        if let (Some(min), Some(max)) = (min.remove(&labels), max.remove(&labels)) {
            (column.min, column.max) = (min, max);
            widen(&mut column.min, &column.values, f64::min);
            widen(&mut column.max, &column.values, f64::max);
        }
    }
}

/// Includes the value at the end of each step in its extremes. An expression is evaluated at whole seconds for them, and a step may end
/// between two.
fn widen(extremes: &mut [Option<f64>], values: &[Option<f64>], pick: fn(f64, f64) -> f64) {
    for (extreme, value) in extremes.iter_mut().zip(values) {
        if let (Some(extreme), Some(value)) = (extreme, value) {
            *extreme = pick(*extreme, *value);
        }
    }
}

fn by_labels(output: &Output, when: &Params, length: usize) -> HashMap<Labels, Vec<Option<f64>>> {
    let Value::Matrix(series) = &output.value else {
        return HashMap::new();
    };
    let values = |series: &MatrixSeries| (series.labels.clone(), of_series(series, when, length).values);
    series.iter().map(values).collect()
}

fn of_series(series: &MatrixSeries, when: &Params, length: usize) -> Column {
    let places = series.times.iter().map(|time| place(when, *time));
    column(
        series.labels.clone(),
        length,
        places.zip(series.values.iter().copied()),
    )
}

/// Returns the index of a time on the grid of steps.
fn place(when: &Params, time: TimestampMs) -> i64 {
    if when.step_ms == 0 {
        0
    } else {
        (time - when.start_ms) / when.step_ms
    }
}

/// Puts values at their positions. JSON has neither NaN nor infinities, so their positions are listed separately.
fn column(labels: Labels, length: usize, placed: impl Iterator<Item = (i64, f64)>) -> Column {
    let mut values = vec![None; length];
    let mut not_finite = Vec::new();
    for (at, value) in placed {
        let Some((at, cell)) = usize::try_from(at)
            .ok()
            .and_then(|at| Some((at, values.get_mut(at)?)))
        else {
            continue;
        };
        if value.is_finite() {
            *cell = Some(value);
        } else {
            not_finite.extend(u32::try_from(at));
        }
    }
    Column {
        labels,
        values,
        not_finite,
        min: vec![],
        max: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(value: Value) -> Output {
        Output {
            value,
            warnings: vec![],
            infos: vec![],
        }
    }

    fn evaluated(value: Value) -> Evaluated {
        Evaluated {
            output: output(value),
            extremes: None,
        }
    }

    #[test]
    fn values_are_at_their_steps() {
        let series = MatrixSeries {
            labels: Labels::empty(),
            times: vec![20, 40],
            values: vec![2.0, f64::NAN],
        };
        let frame = frame(
            true,
            &Params::range(10, 40, 10),
            &evaluated(Value::Matrix(vec![series])),
        );
        let Frame { times_ms, series, .. } = frame.expect("numbers");
        assert_eq!(times_ms, [10, 20, 30, 40]);
        assert_eq!(series[0].values, [None, Some(2.0), None, None]);
        assert_eq!(series[0].not_finite, [3]);
    }

    #[test]
    fn extremes_are_joined_by_labels_without_the_name() {
        let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied()).expect("labels");
        let matrix = |of: Vec<(Labels, f64)>| {
            let series = of.into_iter().map(|(labels, value)| MatrixSeries {
                labels,
                times: vec![20],
                values: vec![value],
            });
            output(Value::Matrix(series.collect()))
        };
        let [a, b] = ["a", "b"].map(|node| labels(&[("node", node)]));
        let named = ["a", "b"].map(|node| (labels(&[(METRIC_NAME, "x"), ("node", node)]), 5.0));
        let evaluated = Evaluated {
            output: matrix(named.to_vec()),
            extremes: Some([
                matrix(vec![(b.clone(), 4.0), (a.clone(), 1.0)]),
                matrix(vec![(a, 9.0), (b, f64::INFINITY)]),
            ]),
        };
        let frame = frame(true, &Params::range(10, 20, 10), &evaluated).expect("numbers");
        assert_eq!(frame.series[0].min, [None, Some(1.0)]);
        assert_eq!(frame.series[0].max, [None, Some(9.0)]);
        assert_eq!(frame.series[1].min, [None, Some(4.0)]);
        assert_eq!(frame.series[1].max, [None, None], "infinite");
    }

    #[test]
    fn extremes_include_the_value_and_leave_gaps() {
        let (mut min, mut max) = ([Some(2.0), Some(2.0), None], [Some(3.0), None, Some(3.0)]);
        let values = [Some(1.0), Some(4.0), None];
        widen(&mut min, &values, f64::min);
        widen(&mut max, &values, f64::max);
        assert_eq!(min, [Some(1.0), Some(2.0), None]);
        assert_eq!(max, [Some(3.0), None, Some(3.0)]);
    }

    #[test]
    fn a_frame_of_many_lines_has_no_room_for_extremes() {
        let matrix = |count: usize| {
            let series = MatrixSeries {
                labels: Labels::empty(),
                times: vec![],
                values: vec![],
            };
            Value::Matrix(vec![series; count])
        };
        let hour = Params::range(0, 3_600_000, 6_000);
        assert!(has_room_for_extremes(&matrix(277), &hour));
        assert!(!has_room_for_extremes(&matrix(278), &hour));
        assert!(has_room_for_extremes(
            &matrix(278),
            &Params::range(0, 6_000, 6_000)
        ));
        assert!(!has_room_for_extremes(
            &Value::Vector(vec![]),
            &Params::instant(0)
        ));
    }

    #[test]
    fn too_many_columns_are_refused() {
        let many = (0..=COLUMNS_MAX).map(|_| (Labels::empty(), 0, 1.0)).collect();
        let refused =
            frame(true, &Params::instant(0), &evaluated(Value::Vector(many))).expect_err("too many");
        assert!(refused.contains("aggregate"), "{refused}");
        assert!(
            frame(
                true,
                &Params::instant(0),
                &evaluated(Value::String(0, "x".into()))
            )
            .is_err()
        );
    }
}
