//! Templates in labels and annotations: the part of Prometheus' template language that alerts use.
//!
//! `{{ $labels.NAME }}`, `{{ $value }}`, each optionally through `| humanize`, `| humanizePercentage`,
//! `| humanizeDuration` or `| printf "%.Nf"`. Everything else is refused when the rule is read, never at 3 a.m.
//!
//! Evidence queries are templates too, but their label values go into PromQL: there a label may stand only inside a quoted
//! string, and its value is escaped, so that whatever a series is called the query stays the query that was written.

use crate::api::prometheus::float;
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
    /// A label where its value would become part of the query.
    #[error(
        "$labels.{0} stands outside of a string, where a label's value would be read as PromQL; write \"{{{{ $labels.{0} }}}}\" in \
         double or single quotes"
    )]
    Unquoted(String),
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
        out.push_str(&piece?.text(labels, value));
    }
    Ok(out)
}

/// Reads the template of a query without using it.
///
/// # Errors
/// What is wrong with it.
pub fn check_query(text: &str) -> Result<(), TemplateError> {
    expand_query(text, &Labels::empty(), 0.0).map(drop)
}

/// Fills the template of a query in, so that each label's value stays within the string it stands in; within `=~` and `!~`
/// it matches itself only.
///
/// # Errors
/// What is wrong with the template.
pub fn expand_query(text: &str, labels: &Labels, value: f64) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(text.len());
    let mut place = Place::default();
    for piece in pieces(text) {
        match piece? {
            Piece::Text(text) => {
                text.chars().for_each(|c| place.pass(c));
                out.push_str(text);
            }
            Piece::Label(name, None) => {
                let quoted = place
                    .quoted()
                    .ok_or_else(|| TemplateError::Unquoted(name.to_owned()))?;
                quoted.write(labels.get(name).unwrap_or(""), &mut out);
            }
            number => out.push_str(&number.text(labels, value)),
        }
    }
    Ok(out)
}

/// Where in a query one stands.
#[derive(Clone, Copy, Default)]
enum Place {
    /// Between strings; the last character but spaces.
    Code(char),
    Quoted(Quoted),
    /// Behind a backslash in a string.
    Escaped(Quoted),
    /// In backquotes, where nothing can be escaped.
    Raw,
    Comment,
    #[default]
    Start,
}

#[derive(Clone, Copy)]
struct Quoted {
    quote: char,
    regex: bool,
}

impl Place {
    fn pass(&mut self, c: char) {
        *self = match (*self, c) {
            (Self::Quoted(quoted), '\\') => Self::Escaped(quoted),
            (Self::Quoted(quoted), c) if c == quoted.quote => Self::Code(c),
            (Self::Quoted(quoted) | Self::Escaped(quoted), _) => Self::Quoted(quoted),
            (Self::Raw, '`') | (Self::Comment, '\n') => Self::Code(c),
            (Self::Raw, _) => Self::Raw,
            (Self::Comment, _) => Self::Comment,
            (Self::Code(_) | Self::Start, '`') => Self::Raw,
            (Self::Code(_) | Self::Start, '#') => Self::Comment,
            (Self::Code(last), quote @ ('"' | '\'')) => Self::Quoted(Quoted {
                quote,
                regex: last == '~',
            }),
            (Self::Start, quote @ ('"' | '\'')) => Self::Quoted(Quoted { quote, regex: false }),
            (code, c) if c.is_whitespace() => code,
            (Self::Code(_) | Self::Start, c) => Self::Code(c),
        };
    }

    fn quoted(self) -> Option<Quoted> {
        match self {
            Self::Quoted(quoted) => Some(quoted),
            _ => None,
        }
    }
}

impl Quoted {
    fn write(self, value: &str, out: &mut String) {
        for c in value.chars() {
            if self.regex && r"\.+*?()|[]{}^$".contains(c) {
                out.push_str(r"\\");
            }
            match c {
                '\n' => out.push_str(r"\n"),
                '\r' => out.push_str(r"\r"),
                c if c == '\\' || c == self.quote => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
    }
}

enum Piece<'a> {
    Text(&'a str),
    Label(&'a str, Option<Function>),
    Value(Option<Function>),
}

impl Piece<'_> {
    fn text(&self, labels: &Labels, value: f64) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Label(name, None) => labels.get(name).unwrap_or("").to_owned(),
            Self::Label(name, Some(function)) => {
                let number = labels.get(name).and_then(|text| text.parse().ok());
                function.apply(number.unwrap_or(f64::NAN))
            }
            Self::Value(function) => function.map_or_else(|| float(value), |f| f.apply(value)),
        }
    }
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
            _ if !value.is_finite() => float(value),
            Self::Humanize => humanize(value),
            Self::Percentage => format!("{}%", significant(value * 100.0)),
            Self::Duration => duration(value),
            Self::Decimals(n) => format!("{value:.n$}"),
        }
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

    #[test]
    fn a_label_in_a_query_stays_within_its_string() {
        let hostile = r#"a"} or vector(1) # \ 'x' `y` .*"#;
        let labels = Labels::new([("run", hostile)]).expect("well formed");
        for (template, expected) in [
            (
                r#"m{run="{{ $labels.run }}"}"#,
                r#"m{run="a\"} or vector(1) # \\ 'x' `y` .*"}"#,
            ),
            (
                r#"m{run='{{ $labels.run }}'}"#,
                r#"m{run='a"} or vector(1) # \\ \'x\' `y` .*'}"#,
            ),
            (
                r#"m{run=~ "{{ $labels.run }}|b"}"#,
                r#"m{run=~ "a\"\\} or vector\\(1\\) # \\\\ 'x' `y` \\.\\*|b"}"#,
            ),
            (r#"m{run="a\"b"} > {{ $value }}"#, r#"m{run="a\"b"} > 0.5"#),
        ] {
            assert_eq!(
                expand_query(template, &labels, 0.5).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn a_label_outside_of_a_string_is_refused_in_a_query() {
        for template in [
            "{{ $labels.run }}",
            "m{run=`{{ $labels.run }}`}",
            r#"m{run="a"} {{ $labels.run }}"#,
            r#"m{run="\{{ $labels.run }}"}"#,
            "m # \"{{ $labels.run }}\"",
        ] {
            assert_eq!(
                check_query(template),
                Err(TemplateError::Unquoted("run".into())),
                "{template}"
            );
        }
    }
}
