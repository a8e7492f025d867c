//! Templates in labels and annotations: the part of Prometheus' template language that alerts use.
//!
//! `{{ $labels.NAME }}`, `{{ $value }}`, each optionally through `| humanize`, `| humanizePercentage`,
//! `| humanizeDuration` or `| printf "%.Nf"`. Everything else is refused when the rule is read, never at 3 a.m.

use crate::series::Labels;
use crate::time::DisplayDuration;

/// A template that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{{` without `}}`.
    #[error("a {{{{ is not closed")]
    Unclosed,
    /// Not `$labels.NAME` or `$value`.
    #[error("{0:?} is not known; write $labels.NAME or $value")]
    Source(String),
    /// Not one of the functions.
    #[error(
        "{0:?} is not known; there is humanize, humanizePercentage, humanizeDuration and printf \"%.2f\""
    )]
    Function(String),
}

/// Reads a template without using it.
///
/// # Errors
/// What is wrong with it.
pub fn check(text: &str) -> Result<(), TemplateError> {
    pieces(text).try_for_each(|piece| piece.map(drop))
}

/// Fills a template in. A label that is not there gives nothing, as in Prometheus.
///
/// # Errors
/// What is wrong with the template.
pub fn expand(text: &str, labels: &Labels, value: f64) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece? {
            Piece::Text(text) => out.push_str(text),
            Piece::Label(name, None) => out.push_str(labels.get(name).unwrap_or("")),
            Piece::Label(name, Some(function)) => {
                let number = labels
                    .get(name)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(f64::NAN);
                out.push_str(&function.apply(number));
            }
            Piece::Value(function) => {
                out.push_str(&function.map_or_else(|| plain(value), |f| f.apply(value)))
            }
        }
    }
    Ok(out)
}

enum Piece<'a> {
    Text(&'a str),
    Label(&'a str, Option<Function>),
    Value(Option<Function>),
}

fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, TemplateError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(inside) = rest.strip_prefix("{{") {
            let Some((action, tail)) = inside.split_once("}}") else {
                rest = "";
                return Some(Err(TemplateError::Unclosed));
            };
            rest = tail;
            return Some(action_piece(action.trim()));
        }
        let end = rest.find("{{").unwrap_or(rest.len());
        let (text, tail) = rest.split_at(end);
        rest = tail;
        Some(Ok(Piece::Text(text)))
    })
}

fn action_piece(action: &str) -> Result<Piece<'_>, TemplateError> {
    let (source, function) = match action.split_once('|') {
        Some((source, function)) => (source.trim(), Some(Function::read(function.trim())?)),
        None => (action, None),
    };
    match source.strip_prefix("$labels.") {
        Some(name) if crate::series::labels::is_label_name(name) => Ok(Piece::Label(name, function)),
        None if source == "$value" => Ok(Piece::Value(function)),
        _ => Err(TemplateError::Source(source.to_owned())),
    }
}

#[derive(Clone, Copy)]
enum Function {
    Humanize,
    Percentage,
    Duration,
    Decimals(usize),
}

impl Function {
    fn read(text: &str) -> Result<Self, TemplateError> {
        let decimals = || {
            text.strip_prefix("printf \"%.")?
                .strip_suffix("f\"")?
                .parse()
                .ok()
                .filter(|n| *n < 16)
        };
        match text {
            "humanize" => Ok(Self::Humanize),
            "humanizePercentage" => Ok(Self::Percentage),
            "humanizeDuration" => Ok(Self::Duration),
            _ => decimals()
                .map(Self::Decimals)
                .ok_or_else(|| TemplateError::Function(text.to_owned())),
        }
    }

    fn apply(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => plain(value),
            Self::Humanize => humanize(value),
            Self::Percentage => format!("{}%", significant(value * 100.0)),
            Self::Duration => duration(value),
            Self::Decimals(n) => format!("{value:.n$}"),
        }
    }
}

/// A number as Prometheus writes it: `NaN`, `+Inf`, `-Inf`, else the shortest text that reads back.
#[must_use]
pub fn plain(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// Four significant digits, as `%.4g` gives for ordinary sizes.
fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the logarithm of an f64 is within ±324"
    )]
    let digits = value.abs().log10().floor() as i32;
    let decimals = usize::try_from(3 - digits).unwrap_or(0).min(12);
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn humanize(value: f64) -> String {
    const LARGE: [&str; 9] = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
    const SMALL: [&str; 9] = ["", "m", "u", "n", "p", "f", "a", "z", "y"];
    let mut value = value;
    let mut power = 0;
    if value.abs() >= 1.0 {
        while value.abs() >= 1_000.0 && power + 1 < LARGE.len() {
            value /= 1_000.0;
            power += 1;
        }
        return format!("{}{}", significant(value), LARGE[power]);
    }
    while value != 0.0 && value.abs() < 1.0 && power + 1 < SMALL.len() {
        value *= 1_000.0;
        power += 1;
    }
    format!("{}{}", significant(value), SMALL[power])
}

fn duration(seconds: f64) -> String {
    if seconds.abs() < 1.0 {
        return format!("{}s", humanize(seconds));
    }
    if seconds.abs() < 60.0 {
        return format!("{}s", significant(seconds));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a saturating cast of whole seconds"
    )]
    let ms = (seconds as i64).saturating_mul(1_000);
    DisplayDuration(ms).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, value: f64) -> Result<String, TemplateError> {
        let labels = Labels::new([("gpu", "3"), ("node", "n1")]).expect("well formed");
        expand(text, &labels, value)
    }

    #[test]
    fn templates_expand_as_prometheus_expands_them() {
        for (text, value, expected) in [
            ("plain", 1.0, "plain"),
            ("GPU {{ $labels.gpu }} of {{$labels.node}}", 1.0, "GPU 3 of n1"),
            ("{{ $labels.none }}.", 1.0, "."),
            ("{{ $value }}", 0.25, "0.25"),
            ("{{ $value }}", f64::NAN, "NaN"),
            ("{{ $value | humanizePercentage }}", 0.1234, "12.34%"),
            ("{{ $value | humanize }}", 1_234_567.0, "1.235M"),
            ("{{ $value | humanize }}", 0.0123, "12.3m"),
            ("{{ $value | humanizeDuration }}", 95.0, "1m35s"),
            ("{{ $value | humanizeDuration }}", 0.25, "250ms"),
            (r#"{{ $value | printf "%.2f" }}"#, 1.0, "1.00"),
            ("{{ $value | humanize }}", f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(expanded(text, value).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(expanded("{{ $value", 1.0), Err(TemplateError::Unclosed));
        assert!(matches!(
            expanded("{{ .Value }}", 1.0),
            Err(TemplateError::Source(_))
        ));
        assert!(matches!(
            expanded("{{ $value | title }}", 1.0),
            Err(TemplateError::Function(_))
        ));
    }
}
