//! Converts the result of a query to the columns that a chart shows.

use domain::api::frames::Frame;
use domain::api::stream::Column;
use domain::series::Labels;
use domain::time::TimestampMs;
use query::{Output, Params, Value};

/// Maximum number of columns in one frame: a grid of 10,000 GPUs with room to spare.
const COLUMNS_MAX: usize = 20_000;
/// Maximum number of values in one frame, about 10 MB of JSON or 4 MB of binary: less than a tab's outbox holds.
const CELLS_MAX: usize = 500_000;

/// Returns the frame, or a sentence that says why there is none.
pub(super) fn frame(reset: bool, when: &Params, output: &Output) -> Result<Frame, String> {
    let times_ms: Vec<TimestampMs> = match when.step_ms {
        0 => vec![when.start_ms],
        step_ms => (0..=(when.end_ms - when.start_ms) / step_ms)
            .map(|n| when.start_ms + n * step_ms)
            .collect(),
    };
    let columns = match &output.value {
        Value::Vector(samples) => samples.len(),
        Value::Matrix(series) => series.len(),
        Value::Scalar(..) => 1,
        Value::String(..) => return Err("the query returns a string, not numbers".into()),
    };
    if columns > COLUMNS_MAX || columns.saturating_mul(times_ms.len()) > CELLS_MAX {
        return Err(format!(
            "the query returns {columns} series, more than can be shown; aggregate them, or use topk()"
        ));
    }
    let series = match &output.value {
        Value::Vector(samples) => samples
            .iter()
            .map(|(labels, _, value)| one(labels.clone(), *value))
            .collect(),
        Value::Scalar(_, value) => vec![one(Labels::empty(), *value)],
        Value::Matrix(series) => series
            .iter()
            .map(|series| {
                let places = series.times.iter().map(|time| place(when, *time));
                column(
                    series.labels.clone(),
                    times_ms.len(),
                    places.zip(series.values.iter().copied()),
                )
            })
            .collect(),
        Value::String(..) => vec![],
    };
    Ok(Frame {
        reset,
        times_ms,
        series,
    })
}

fn one(labels: Labels, value: f64) -> Column {
    column(labels, 1, std::iter::once((0, value)))
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use query::MatrixSeries;

    fn output(value: Value) -> Output {
        Output {
            value,
            warnings: vec![],
            infos: vec![],
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
            &output(Value::Matrix(vec![series])),
        );
        let Frame { times_ms, series, .. } = frame.expect("numbers");
        assert_eq!(times_ms, [10, 20, 30, 40]);
        assert_eq!(series[0].values, [None, Some(2.0), None, None]);
        assert_eq!(series[0].not_finite, [3]);
    }

    #[test]
    fn too_many_columns_are_refused() {
        let many = (0..=COLUMNS_MAX).map(|_| (Labels::empty(), 0, 1.0)).collect();
        let refused =
            frame(true, &Params::instant(0), &output(Value::Vector(many))).expect_err("too many");
        assert!(refused.contains("aggregate"), "{refused}");
        assert!(
            frame(
                true,
                &Params::instant(0),
                &output(Value::String(0, "x".into()))
            )
            .is_err()
        );
    }
}
