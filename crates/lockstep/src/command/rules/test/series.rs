//! The notation of test series: `x{a="1"}` for labels and `1+1x10 _ _x3 stale` for values.

use anyhow::{Context as _, Result, bail};
use domain::series::{Labels, MatchOp, STALE};

/// Values at a constant interval; `None` where there is no sample.
pub(super) type Points = Vec<Option<f64>>;

/// Most points of one series: about ten days at one point per second.
const POINTS_MAX: usize = 1_000_000;

/// Parses the labels of a series in PromQL notation.
pub(super) fn labels(text: &str) -> Result<Labels> {
    let text = text.trim();
    if text.is_empty() || text == "{}" {
        return Ok(Labels::empty());
    }
    let matchers = query::parse_selector(text)?;
    if let Some(other) = matchers.iter().find(|matcher| matcher.op != MatchOp::Equal) {
        bail!(
            "the label {:?} of {text:?} needs an exact value; use =",
            other.name
        );
    }
    let pairs = matchers.into_iter().map(|matcher| (matcher.name, matcher.value));
    Ok(Labels::new(pairs)?)
}

/// Parses the values of a series: `2`, `1+2x3` (four values), `1x3` (the same value four times), `_` (no sample), `_x3` (three times no
/// sample), `stale`.
pub(super) fn points(text: &str) -> Result<Points> {
    let mut points = Points::new();
    for word in text.split_whitespace() {
        read(word, &mut points).with_context(|| format!("{word:?} is not a value of a test series"))?;
        if points.len() > POINTS_MAX {
            bail!("a test series has more than {POINTS_MAX} values");
        }
    }
    Ok(points)
}

fn read(word: &str, points: &mut Points) -> Result<()> {
    let (value, times) = match word.rsplit_once('x') {
        Some((value, times)) => (value, Some(times.parse::<usize>()?)),
        None => (word, None),
    };
    if times.is_some_and(|times| times > POINTS_MAX) {
        bail!("a series has at most {POINTS_MAX} values");
    }
    match (value, times) {
        ("_", times) => points.extend(std::iter::repeat_n(None, times.unwrap_or(1))),
        ("stale", None) => points.push(Some(STALE)),
        (value, None) => points.push(Some(number(value)?)),
        (value, Some(times)) => {
            let (first, step) = sum(value)?;
            let mut next = first;
            // Add step by step, as Prometheus does, so that the last digits are the same.
            for _ in 0..=times {
                points.push(Some(next));
                next += step;
            }
        }
    }
    Ok(())
}

/// Parses `a+b`, `a-b` or `a` into the first value and the step.
fn sum(text: &str) -> Result<(f64, f64)> {
    let bytes = text.as_bytes();
    let sign = (1..bytes.len())
        .find(|&at| matches!(bytes[at], b'+' | b'-') && !matches!(bytes[at - 1], b'e' | b'E'));
    match sign {
        None => Ok((number(text)?, 0.0)),
        Some(at) => {
            let step = number(&text[at + 1..])?;
            let step = if bytes[at] == b'-' { -step } else { step };
            Ok((number(&text[..at])?, step))
        }
    }
}

fn number(text: &str) -> Result<f64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1.0, digits),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Some(hexadecimal) = digits.strip_prefix("0x") {
        return Ok(sign * u64::from_str_radix(hexadecimal, 16)? as f64);
    }
    Ok(sign * digits.parse::<f64>()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn values_are_read_as_promtool_reads_them() {
        for (text, expected) in [
            ("1 2 -3", "1 2 -3"),
            ("-2+4x3", "-2 2 6 10"),
            ("1-2x4", "1 -1 -3 -5 -7"),
            ("1x4", "1 1 1 1 1"),
            ("1 _x3 stale", "1 _ _ _ S"),
            ("_ 1e3 1e-3+1e-3x1", "_ 1000 0.001 0.002"),
            ("inf -Inf nan", "inf -inf NaN"),
            ("0x0", "0"),
            ("", ""),
        ] {
            let points = points(text).unwrap();
            let shown: Vec<String> = points
                .iter()
                .map(|point| match point {
                    None => "_".to_owned(),
                    Some(value) if domain::series::is_stale(*value) => "S".to_owned(),
                    Some(value) => value.to_string(),
                })
                .collect();
            assert_eq!(shown.join(" "), expected, "{text}");
        }
        for text in ["a", "1x", "1+x3", "stale x", "1x99999999999", "{{schema:1}}"] {
            assert!(points(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_are_read() {
        assert_eq!(
            labels(r#"x{b="2", a="1"}"#).unwrap().to_string(),
            r#"x{a="1", b="2"}"#
        );
        assert_eq!(labels("{}").unwrap(), Labels::empty());
        assert!(labels(r#"x{a=~"1"}"#).is_err());
        assert!(labels("x{").is_err());
    }
}
