//! Successful answers: Prometheus' envelope around lists, single values and query results.
//!
//! ```text
//! {"status":"success","data":…,"warnings":[…],"infos":[…]}        the last two only when there are any
//! ```

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use domain::api::prometheus::Answer;
use domain::series::Budget;
use domain::time::TimestampMs;
use query::format::{self, Points};
use query::{MatrixSeries, Value, VectorSample};
use serde::Serialize;
use serde_json::json;

use super::pages::{self, Part, Parts};
use crate::evaluator::{Answered, Cost, QueryError};
use crate::http::ApiResult;

/// Maximum number of samples in one answer, about 300 MB of text: more than any client shows. Sending it to a slow client takes minutes.
pub(super) const ANSWER_SAMPLES_MAX: usize = 10_000_000;
/// Prometheus' warning if a `limit` removed results.
const TRUNCATED: &str = "results truncated due to limit";

/// An answer with one small value.
pub(super) fn success<T: Serialize>(data: T) -> Response {
    let answer = Answer {
        status: "success".into(),
        data: Some(data),
        error_type: None,
        error: None,
        warnings: Vec::new(),
        infos: Vec::new(),
    };
    Json(answer).into_response()
}

/// A time in an answer.
pub(super) fn rfc3339(time_ms: TimestampMs) -> String {
    jiff::Timestamp::from_millisecond(time_ms).map_or_else(|_| String::new(), |time| time.to_string())
}

/// An answer with a list of any length. `held` is released when the last part is being sent.
pub(super) fn list<T: Serialize + Send + 'static>(
    items: Vec<T>,
    is_truncated: bool,
    held: Budget,
) -> Response {
    let warnings: &[String] = if is_truncated {
        &[TRUNCATED.to_owned()]
    } else {
        &[]
    };
    let head = format!("{OPENING}[");
    let tail = format!("]{}}}", notes(warnings, &[]));
    let items = each(items, NAME_BYTES, |out, item| write_json(out, &item));
    pages::respond(in_turn(head, items, tail), held)
}

/// An answer with the result of a query, at most `limit` series of it, and with statistics on request.
pub(super) fn result(answered: Answered, limit: Option<usize>, with_stats: bool) -> ApiResult<Response> {
    let Answered {
        mut output,
        cost,
        held,
    } = answered;
    if limit.is_some_and(|limit| truncated(&mut output.value, limit)) {
        output.warnings.push(TRUNCATED.to_owned());
    }
    let samples = samples(&output.value);
    if samples > ANSWER_SAMPLES_MAX {
        return Err(QueryError::Execution(format!(
            "the result has {samples} samples, more than the {ANSWER_SAMPLES_MAX} of one answer; aggregate, use a \
             larger step or a shorter range, or set a limit"
        ))
        .into());
    }
    let stats = if with_stats {
        format!(",\"stats\":{}", stats(&cost))
    } else {
        String::new()
    };
    let list = |kind: &str| format!("{OPENING}{{\"resultType\":\"{kind}\",\"result\":[");
    let (head, items, close): (_, Parts, _) = match output.value {
        Value::Vector(samples) => (
            list("vector"),
            Box::new(each(samples, LABELS_BYTES, write_sample)),
            "]",
        ),
        Value::Matrix(series) => (list("matrix"), Box::new(matrix(series)), "]"),
        single => (OPENING.to_owned(), Box::new(once(single)), ""),
    };
    let tail = format!("{close}{stats}}}{}}}", notes(&output.warnings, &output.infos));
    Ok(pages::respond(in_turn(head, items, tail), held))
}

/// The beginning of every answer of this module.
const OPENING: &str = r#"{"status":"success","data":"#;

fn notes(warnings: &[String], infos: &[String]) -> String {
    let of = |name: &str, notes: &[String]| match notes {
        [] => String::new(),
        notes => format!(",\"{name}\":{}", json!(notes)),
    };
    of("warnings", warnings) + &of("infos", infos)
}

/// Truncates a result to `limit` series. Returns true if there were more.
fn truncated(value: &mut Value, limit: usize) -> bool {
    match value {
        Value::Vector(samples) => truncated_list(samples, limit),
        Value::Matrix(series) => truncated_list(series, limit),
        Value::Scalar(..) | Value::String(..) => false,
    }
}

fn truncated_list<T>(list: &mut Vec<T>, limit: usize) -> bool {
    let is_longer = list.len() > limit;
    list.truncate(limit);
    is_longer
}

fn samples(value: &Value) -> usize {
    match value {
        Value::Vector(samples) => samples.len(),
        Value::Matrix(series) => series.iter().map(|series| series.times.len()).sum(),
        Value::Scalar(..) | Value::String(..) => 1,
    }
}

/// Returns Prometheus' statistics, as far as this engine has them. A query holds all its samples at once, so the peak is the sum.
fn stats(cost: &Cost) -> serde_json::Value {
    let [queued, reading, evaluating] =
        [cost.queued, cost.reading, cost.evaluating].map(|time| time.as_secs_f64());
    json!({
        "timings": {
            "evalTotalTime": reading + evaluating,
            "resultSortTime": 0.0,
            "queryPreparationTime": reading,
            "innerEvalTime": evaluating,
            "execQueueTime": queued,
            "execTotalTime": queued + reading + evaluating,
        },
        "samples": { "totalQueryableSamples": cost.samples, "peakSamples": cost.samples },
    })
}

// === writing ===

/// Returns the head, the items and the tail, in this order.
fn in_turn(head: String, items: impl Iterator<Item = Part> + Send + 'static, tail: String) -> Parts {
    let text = |text: String| part(text.len(), move |out| out.extend_from_slice(text.as_bytes()));
    Box::new(std::iter::once(text(head)).chain(items).chain([text(tail)]))
}

fn part(bytes: usize, write: impl FnOnce(&mut Vec<u8>) + Send + 'static) -> Part {
    Part {
        bytes,
        write: Box::new(write),
    }
}

/// Number of items in one part.
const ITEMS_AT_ONCE: usize = 64;
/// Approximate size of a name in a list and of a series' labels, in bytes.
const NAME_BYTES: usize = 32;
const LABELS_BYTES: usize = 256;

/// Returns parts with the items, separated by commas. Each item has about `bytes_each` bytes.
fn each<T: Send + 'static>(
    items: Vec<T>,
    bytes_each: usize,
    write: impl Fn(&mut Vec<u8>, T) + Copy + Send + 'static,
) -> impl Iterator<Item = Part> + Send {
    let (mut items, mut begins) = (items.into_iter(), true);
    std::iter::from_fn(move || {
        let some: Vec<T> = items.by_ref().take(ITEMS_AT_ONCE).collect();
        let mut is_first = std::mem::take(&mut begins);
        (!some.is_empty()).then(|| {
            part(some.len() * bytes_each, move |out| {
                for item in some {
                    if !std::mem::take(&mut is_first) {
                        out.push(b',');
                    }
                    write(out, item);
                }
            })
        })
    })
}

/// Writes a scalar or string without its closing brace, because statistics may follow.
fn once(value: Value) -> impl Iterator<Item = Part> + Send {
    std::iter::once(part(LABELS_BYTES, move |out| {
        format::write(out, &value);
        out.pop();
    }))
}

/// Number of samples in one part: a series may have millions, and a page has room for some thousands.
const SAMPLES_AT_ONCE: usize = 2_600;
/// Approximate size of a sample in bytes, and the size of a series' labels in samples.
const SAMPLE_BYTES: usize = 26;
const LABELS_IN_SAMPLES: usize = LABELS_BYTES / SAMPLE_BYTES;

/// A range of samples of a series.
struct SampleRange {
    series: Arc<MatrixSeries>,
    samples: Range<usize>,
}

/// Returns parts with the samples of each series, one series after the other.
fn matrix(series: Vec<MatrixSeries>) -> impl Iterator<Item = Part> + Send {
    let mut all = series.into_iter().map(SampleRange::whole);
    let (mut rest, mut begins) = (None, true);
    std::iter::from_fn(move || {
        let (mut some, mut room) = (Vec::new(), SAMPLES_AT_ONCE);
        while room > 0
            && let Some(mut range) = rest.take().or_else(|| all.next())
        {
            rest = range.split_off(room);
            room = room.saturating_sub(range.samples.len() + LABELS_IN_SAMPLES);
            some.push(range);
        }
        let is_first = std::mem::take(&mut begins);
        let bytes = (SAMPLES_AT_ONCE - room) * SAMPLE_BYTES;
        (!some.is_empty()).then(|| part(bytes, move |out| write_ranges(out, &some, is_first)))
    })
}

impl SampleRange {
    fn whole(series: MatrixSeries) -> Self {
        Self {
            samples: 0..series.times.len(),
            series: Arc::new(series),
        }
    }

    /// Keeps the first `count` samples, and returns the rest.
    fn split_off(&mut self, count: usize) -> Option<Self> {
        let Range { start, end } = self.samples;
        let middle = end.min(start + count);
        self.samples = start..middle;
        (middle < end).then(|| Self {
            series: Arc::clone(&self.series),
            samples: middle..end,
        })
    }
}

fn write_ranges(out: &mut Vec<u8>, ranges: &[SampleRange], mut is_first: bool) {
    let mut points = Points::default();
    for SampleRange { series, samples } in ranges {
        let begins = samples.start == 0;
        if begins {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            out.push(b'{');
            format::write_metric(out, &series.labels);
            out.extend_from_slice(b",\"values\":[");
        }
        let (times, values) = (&series.times[samples.clone()], &series.values[samples.clone()]);
        points.write(out, times, values, begins);
        if samples.end == series.times.len() {
            out.extend_from_slice(b"]}");
        }
    }
}

fn write_sample(out: &mut Vec<u8>, (labels, at, value): VectorSample) {
    out.push(b'{');
    format::write_metric(out, &labels);
    out.extend_from_slice(b",\"value\":");
    format::write_point(out, at, value);
    out.push(b'}');
}

fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("memory takes all that is written");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use domain::series::Labels;
    use query::Output;

    async fn body(response: Response) -> serde_json::Value {
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn answered(value: Value) -> Answered {
        let output = Output {
            value,
            warnings: vec!["careful".into()],
            infos: vec!["by the way".into()],
        };
        Answered {
            output,
            cost: Cost {
                samples: 7,
                ..Cost::default()
            },
            held: Budget::unlimited(),
        }
    }

    fn labels(name: &str) -> Labels {
        Labels::new([("__name__", name)]).unwrap()
    }

    #[tokio::test]
    async fn each_type_has_prometheus_shape() {
        let series = MatrixSeries {
            labels: labels("x"),
            times: vec![1_000, 2_050, -500],
            values: vec![1.5, f64::NAN, f64::INFINITY],
        };
        let matrix = Value::Matrix(vec![series.clone(), series]);
        let one =
            json!({ "metric": { "__name__": "x" }, "values": [[1, "1.5"], [2.05, "NaN"], [-0.5, "+Inf"]] });
        let vector = Value::Vector(vec![(labels("a"), 1_500, 2.0), (Labels::empty(), 0, 0.5)]);
        for (value, kind, expected) in [
            (matrix, "matrix", json!([one, one])),
            (Value::Matrix(vec![]), "matrix", json!([])),
            (
                vector,
                "vector",
                json!([{ "metric": { "__name__": "a" }, "value": [1.5, "2"] }, { "metric": {}, "value": [0, "0.5"] }]),
            ),
            (
                Value::Scalar(1_435_781_430_781, 3.0),
                "scalar",
                json!([1_435_781_430.781, "3"]),
            ),
            (
                Value::String(60_000, "a\"b".into()),
                "string",
                json!([60, "a\"b"]),
            ),
        ] {
            let body = body(result(answered(value), None, false).unwrap()).await;
            let expected = json!({
                "status": "success",
                "data": { "resultType": kind, "result": expected },
                "warnings": ["careful"],
                "infos": ["by the way"],
            });
            assert_eq!(body, expected);
        }
    }

    #[tokio::test]
    async fn limits_and_stats_are_shown() {
        let vector = Value::Vector(vec![(labels("a"), 0, 2.0), (labels("b"), 0, 0.5)]);
        let cut = body(result(answered(vector.clone()), Some(1), true).unwrap()).await;
        assert_eq!(cut["data"]["result"].as_array().unwrap().len(), 1);
        assert_eq!(cut["warnings"][1], TRUNCATED);
        assert_eq!(cut["data"]["stats"]["samples"]["totalQueryableSamples"], 7);
        assert!(cut["data"]["stats"]["timings"]["execTotalTime"].is_number());
        let whole = body(result(answered(vector), Some(2), false).unwrap()).await;
        assert_eq!(
            (&whole["warnings"], &whole["data"]["stats"]),
            (&json!(["careful"]), &json!(null))
        );
        let listed = body(list(vec!["a", "b"], true, Budget::unlimited())).await;
        assert_eq!(
            listed,
            json!({ "status": "success", "data": ["a", "b"], "warnings": [TRUNCATED] })
        );
    }

    #[tokio::test]
    async fn an_answer_of_many_pages_is_one_text() {
        let series = |n: usize| MatrixSeries {
            labels: labels(&format!("x{n}")),
            times: (0..3_000).collect(),
            values: (0..3_000).map(f64::from).collect(),
        };
        let all: Vec<_> = (0..10).map(series).collect();
        let body = body(result(answered(Value::Matrix(all)), None, false).unwrap()).await;
        let series = body["data"]["result"].as_array().unwrap();
        assert_eq!(series.len(), 10);
        assert!(
            series
                .iter()
                .all(|one| one["values"].as_array().unwrap().len() == 3_000)
        );
        assert_eq!(series[9]["values"][2_999], json!([2.999, "2999"]));
    }

    #[test]
    fn an_answer_that_is_too_large_is_refused() {
        let series = MatrixSeries {
            labels: Labels::empty(),
            times: vec![0; ANSWER_SAMPLES_MAX / 2 + 1],
            values: vec![0.0; ANSWER_SAMPLES_MAX / 2 + 1],
        };
        let large = Value::Matrix(vec![series.clone(), series]);
        let error = result(answered(large), None, false).unwrap_err();
        assert_eq!(error.status(), axum::http::StatusCode::UNPROCESSABLE_ENTITY);
    }
}
