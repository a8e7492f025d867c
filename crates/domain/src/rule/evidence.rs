//! Evidence queries: templates that insert label values into PromQL.
//!
//! Only `{{ $labels.NAME }}` and `{{ $value }}` are supported. A label is allowed only inside a quoted string, and its value is escaped.
//! Therefore no label value can change the query.

use crate::api::alerts::Evidence;
use crate::api::prometheus::float;
use crate::series::Labels;

/// Label that names the phase of a step in which a rank loses time.
const PHASE_LABEL: &str = "phase";
/// Values of that label for which the series `train_PHASE_seconds` always exists.
const PHASES: [&str; 5] = ["data", "forward", "backward", "optimizer", "host"];

/// Why the template of a query is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    /// `{{` without `}}`.
    #[error("a {{{{ is not closed")]
    Unclosed,
    /// Neither `$labels.NAME` nor `$value`.
    #[error("{0:?} is not supported in a query; use $labels.NAME or $value")]
    Source(String),
    /// A label outside of a string, where its value would be parsed as part of the query.
    #[error(
        "$labels.{0} stands outside of a string, where a label's value would be read as PromQL; write \"{{{{ $labels.{0} }}}}\" in \
         double or single quotes"
    )]
    Unquoted(String),
}

/// Checks the template of a query without expanding it.
///
/// # Errors
/// Returns what is wrong with the template.
pub fn check(text: &str) -> Result<(), EvidenceError> {
    expand(text, &Labels::empty(), 0.0).map(drop)
}

/// Expands the template of a query. Each label value stays inside its string; after `=~` and `!~` it matches only itself.
///
/// # Errors
/// Returns what is wrong with the template.
pub fn expand(text: &str, labels: &Labels, value: f64) -> Result<String, EvidenceError> {
    let mut out = String::with_capacity(text.len());
    let mut place = Place::default();
    for piece in pieces(text) {
        match piece? {
            Piece::Text(text) => {
                text.chars().for_each(|c| place.pass(c));
                out.push_str(text);
            }
            Piece::Label(name) => {
                let quoted = place
                    .quoted()
                    .ok_or_else(|| EvidenceError::Unquoted(name.to_owned()))?;
                quoted.write(labels.get(name).unwrap_or(""), &mut out);
            }
            Piece::Value => out.push_str(&float(value)),
        }
    }
    Ok(out)
}

/// Puts the evidence about the alert's phase first, and removes the evidence about other phases. Does nothing if the alert names no phase,
/// or if there are no values of this phase.
pub fn select_phase(all: &mut Vec<Evidence>, labels: &Labels) {
    let Some(phase) = labels.get(PHASE_LABEL) else {
        return;
    };
    let is_own = |one: &Evidence| phase_of(&one.query) == Some(phase) && !one.values.is_empty();
    let Some(at) = all.iter().position(is_own) else {
        return;
    };
    let own = all.remove(at);
    all.retain(|one| phase_of(&one.query).is_none());
    all.insert(0, own);
}

/// Returns the phase whose time a query reads: `forward` for `train_forward_seconds{run="r"}`.
fn phase_of(query: &str) -> Option<&str> {
    let (phase, _) = query.strip_prefix("train_")?.split_once("_seconds{")?;
    PHASES.contains(&phase).then_some(phase)
}

/// Position in a query.
#[derive(Clone, Copy, Default)]
enum Place {
    /// Outside of strings, with the last character that is not a space.
    Code(char),
    Quoted(Quoted),
    /// After a backslash in a string.
    Escaped(Quoted),
    /// In backquotes, where there are no escapes.
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
    Label(&'a str),
    Value,
}

fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, EvidenceError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(inside) = rest.strip_prefix("{{") {
            let Some((action, tail)) = inside.split_once("}}") else {
                rest = "";
                return Some(Err(EvidenceError::Unclosed));
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

fn action_piece(source: &str) -> Result<Piece<'_>, EvidenceError> {
    match source.strip_prefix("$labels.") {
        Some(name) if crate::series::labels::is_label_name(name) => Ok(Piece::Label(name)),
        None if source == "$value" => Ok(Piece::Value),
        _ => Err(EvidenceError::Source(source.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::alerts::EvidenceValue;

    #[test]
    fn the_evidence_of_a_slow_rank_begins_with_its_phase() {
        let evidence = |metric: &str| Evidence {
            title: metric.to_owned(),
            query: format!("{metric}{{run=\"r\"}}"),
            values: vec![EvidenceValue {
                labels: Labels::empty(),
                value: "1".to_owned(),
            }],
            lines: Vec::new(),
        };
        let metrics = [
            "train_backward_seconds",
            "train_forward_seconds",
            "train_optimizer_seconds",
            "diagnosis_straggler_ratio",
            "train_sync_seconds",
        ];
        let all: Vec<Evidence> = metrics.into_iter().map(evidence).collect();
        let selected = |phase: &str, mut all: Vec<Evidence>| {
            let labels = Labels::new([("run", "r"), ("phase", phase)]).expect("well formed");
            select_phase(&mut all, &labels);
            all.into_iter().map(|one| one.title).collect::<Vec<_>>()
        };
        assert_eq!(
            selected("optimizer", all.clone()),
            [
                "train_optimizer_seconds",
                "diagnosis_straggler_ratio",
                "train_sync_seconds"
            ]
        );
        assert_eq!(selected("save", all.clone()), metrics);
        assert_eq!(selected("", all.clone()), metrics);
        let mut empty = all;
        empty[2].values.clear();
        assert_eq!(selected("optimizer", empty), metrics);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(check("x > {{ $value"), Err(EvidenceError::Unclosed));
        for text in ["x > {{ .Value }}", "x > {{ $value | humanize }}"] {
            assert!(matches!(check(text), Err(EvidenceError::Source(_))), "{text}");
        }
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
                expand(template, &labels, 0.5).as_deref(),
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
                check(template),
                Err(EvidenceError::Unquoted("run".into())),
                "{template}"
            );
        }
    }
}
