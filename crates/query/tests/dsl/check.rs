//! Runs an evaluation and compares the result with the expected one.

use domain::series::{Budget, Labels, is_absent};
use query::{MatrixSeries, Output, Params, Value};
use regex::Regex;

use super::Eval;
use super::series::{Expected, Line, Message};
use super::source::{Layout, Storage};

/// Relative difference up to which numbers count as equal, as in Prometheus' test runner.
const EPSILON: f64 = 1e-6;
const MINUTE_MS: i64 = 60_000;

/// Returns an error that says in one sentence what is wrong.
pub(crate) fn check(storage: &Storage, eval: &Eval) -> Result<(), String> {
    for layout in [Layout::Own, Layout::Shared] {
        check_in(storage, eval, layout).map_err(|error| format!("{error} ({layout:?} axis)"))?;
    }
    Ok(())
}

fn check_in(storage: &Storage, eval: &Eval, layout: Layout) -> Result<(), String> {
    let output = run(storage, &eval.query, &eval.params, layout);
    let expected = &eval.expected;
    let output = match (&expected.fail, output) {
        (None, Err(error)) => return Err(format!("failed: {error}")),
        (None, Ok(output)) => output,
        (Some(_), Ok(_)) => return Err("succeeded, but must fail".to_owned()),
        (Some(message), Err(error)) => return says(message, &[error]),
    };
    check_notes(expected, &output)?;
    check_value(&eval.params, expected, &output.value)?;
    if let (Value::Vector(_), false) = (&output.value, expected.ordered) {
        check_middle_of_range(storage, eval, layout)?;
    }
    Ok(())
}

fn run(storage: &Storage, query: &str, params: &Params, layout: Layout) -> Result<Output, String> {
    let query = query::parse(query).map_err(|error| error.to_string())?;
    let source = storage.prefetch(&query, params, layout);
    query
        .evaluate(&source, params, &Budget::unlimited())
        .map_err(|error| error.to_string())
}

/// The result of an instant query must equal the middle step of a range query around it.
fn check_middle_of_range(storage: &Storage, eval: &Eval, layout: Layout) -> Result<(), String> {
    let middle = eval.params.start_ms;
    if eval.query.contains("start()") || eval.query.contains("end()") {
        return Ok(());
    }
    let params = Params {
        step_ms: MINUTE_MS,
        ..Params::range(middle - MINUTE_MS, middle + MINUTE_MS, MINUTE_MS)
    };
    let output = run(storage, &eval.query, &params, layout)
        .map_err(|error| format!("as a range query failed: {error}"))?;
    let Value::Matrix(matrix) = output.value else {
        return Err("a range query did not give a matrix".to_owned());
    };
    let at_middle = |series: MatrixSeries| {
        let at = series.times.iter().position(|time| *time == middle)?;
        Some((series.labels, middle, series.values[at]))
    };
    let vector = Value::Vector(matrix.into_iter().filter_map(at_middle).collect());
    check_value(&eval.params, &eval.expected, &vector).map_err(|error| format!("as a range query: {error}"))
}

// === notes ===

fn check_notes(expected: &Expected, output: &Output) -> Result<(), String> {
    for (what, wanted, unwanted, notes) in [
        ("warning", &expected.warn, expected.no_warn, &output.warnings),
        ("info", &expected.info, expected.no_info, &output.infos),
    ] {
        if unwanted && !notes.is_empty() {
            return Err(format!("unexpected {what}: {notes:?}"));
        }
        if let Some(message) = wanted {
            says(message, notes).map_err(|error| format!("{what}: {error}"))?;
        }
    }
    Ok(())
}

/// Checks that one of the texts is as expected. Positions such as `(1:7)` are ignored, because the parser keeps none.
fn says(message: &Message, texts: &[String]) -> Result<(), String> {
    let position = Regex::new(r" ?\(\d+:\d+\)$").expect("a good expression");
    let found = match message {
        Message::Any => !texts.is_empty(),
        Message::Is(wanted) => {
            let wanted = position.replace(wanted, "").replace('\\', "");
            texts
                .iter()
                .any(|text| text.contains(&wanted) || text.replace('\\', "").contains(&wanted))
        }
        Message::Matches(pattern) => {
            let positions = [r" \([0-9]+:[0-9]+\)", r" \(1:\d+\)", r" \(1:[0-9]+\)"];
            let mut pattern = pattern.clone();
            for suffix in [r" \([0-9]+:[0-9]+\)", r" \(1:25\)", r" \(1:21\)"]
                .iter()
                .chain(&positions)
            {
                pattern = pattern.replace(suffix, "");
            }
            let regex = Regex::new(&pattern).map_err(|error| error.to_string())?;
            texts.iter().any(|text| regex.is_match(text))
        }
    };
    let wanted = match message {
        Message::Any => "anything",
        Message::Is(text) | Message::Matches(text) => text,
    };
    if found {
        Ok(())
    } else {
        Err(format!("expected {wanted:?}, got {texts:?}"))
    }
}

// === values ===

fn check_value(params: &Params, expected: &Expected, value: &Value) -> Result<(), String> {
    if let Some(line) = expected.lines.iter().find(|line| line.has_histograms) {
        return Err(format!("expects a native histogram: {}", line.text));
    }
    if let Some(text) = &expected.string {
        return match value {
            Value::String(_, found) if found == text => Ok(()),
            other => Err(format!("expected {text:?}, got {other:?}")),
        };
    }
    match value {
        Value::Scalar(_, found) => match &expected.lines[..] {
            [
                Line {
                    labels: None, values, ..
                },
            ] if values.len() == 1 && is_equal(values[0], *found) => Ok(()),
            lines => Err(format!("got the scalar {found}, expected {:?}", texts(lines))),
        },
        Value::String(_, text) => Err(format!("got the string {text:?}")),
        Value::Vector(samples) => {
            let found = samples
                .iter()
                .map(|(labels, _, value)| (labels.clone(), vec![*value]));
            same_series(expected, found.collect(), 1)
        }
        Value::Matrix(matrix) => {
            let (start, end, step) =
                expected
                    .range
                    .unwrap_or((params.start_ms, params.end_ms, params.step_ms.max(1)));
            let steps = ((end - start) / step + 1) as usize;
            let found = matrix
                .iter()
                .map(|series| on_steps(series, start, step, steps))
                .collect::<Result<_, _>>()?;
            same_series(expected, found, steps)
        }
    }
}

/// Returns the samples of a series, one for each expected step.
fn on_steps(
    series: &MatrixSeries,
    start: i64,
    step: i64,
    steps: usize,
) -> Result<(Labels, Vec<f64>), String> {
    let mut values = vec![domain::series::ABSENT; steps];
    for (time, value) in series.times.iter().zip(&series.values) {
        let at = (time - start) / step;
        if (time - start) % step != 0 || at < 0 || at as usize >= steps {
            return Err(format!("{} has a sample at {time} ms", series.labels));
        }
        values[at as usize] = *value;
    }
    Ok((series.labels.clone(), values))
}

fn same_series(expected: &Expected, found: Vec<(Labels, Vec<f64>)>, steps: usize) -> Result<(), String> {
    if found.len() != expected.lines.len() {
        return Err(format!(
            "{} series instead of {}: {}",
            found.len(),
            expected.lines.len(),
            shown(&found)
        ));
    }
    for (n, line) in expected.lines.iter().enumerate() {
        let labels = line.labels.clone().unwrap_or_else(Labels::empty);
        let place = found.iter().position(|(found, _)| *found == labels);
        let Some(place) = place else {
            return Err(format!("{labels} is missing: {}", shown(&found)));
        };
        if expected.ordered && place != n {
            return Err(format!(
                "{labels} is at place {place}, not {n}: {}",
                shown(&found)
            ));
        }
        let mut wanted = line.values.clone();
        wanted.resize(wanted.len().max(steps), domain::series::ABSENT);
        let values = &found[place].1;
        let is_same =
            wanted.len() == values.len() && wanted.iter().zip(values).all(|(a, b)| is_equal(*a, *b));
        if !is_same {
            return Err(format!("{labels} is {values:?}, expected {wanted:?}"));
        }
    }
    Ok(())
}

fn is_equal(a: f64, b: f64) -> bool {
    if is_absent(a) || is_absent(b) {
        return is_absent(a) && is_absent(b);
    }
    if a == b || (a.is_nan() && b.is_nan()) {
        return true;
    }
    let (difference, size) = ((a - b).abs(), a.abs() + b.abs());
    if a == 0.0 || b == 0.0 || size < f64::MIN_POSITIVE {
        return difference < EPSILON * f64::MIN_POSITIVE;
    }
    difference / size.min(f64::MAX) < EPSILON
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

fn shown(found: &[(Labels, Vec<f64>)]) -> String {
    found
        .iter()
        .take(6)
        .map(|(labels, values)| format!("{labels} {values:?}"))
        .collect::<Vec<_>>()
        .join("; ")
}
