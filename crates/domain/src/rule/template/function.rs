//! Template functions: those of Prometheus, and those of Go that rule files use.

use std::cmp::Ordering;
use std::sync::Arc;

use regex::Regex;

use super::value::Value;
use super::{Data, number, print, text, time};
use crate::series::Labels;
use crate::time::parse_duration_ms;

/// Maximum size of a regular expression, and of its compiled program, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 10;
const REGEX_PROGRAM_BYTES_MAX: usize = 1 << 20;
/// Steps counted for compiling a regular expression.
const REGEX_STEPS: usize = 200;

macro_rules! functions {
    ($($variant:ident = $name:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function {
            $($variant,)*
        }

        impl Function {
            pub(super) fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

functions! {
    // Queries and their results.
    Query = "query", First = "first", LabelOf = "label", ValueOf = "value", StringValue = "strvalue",
    SortByLabel = "sortByLabel",
    // Formatting of numbers.
    Humanize = "humanize", Humanize1024 = "humanize1024", HumanizeDuration = "humanizeDuration",
    HumanizePercentage = "humanizePercentage", HumanizeTimestamp = "humanizeTimestamp", ToTime = "toTime",
    ToDuration = "toDuration", Now = "now", ParseDuration = "parseDuration",
    // Texts.
    Title = "title", ToUpper = "toUpper", ToLower = "toLower", Match = "match", ReplaceAll = "reReplaceAll",
    StripPort = "stripPort", StripDomain = "stripDomain", GraphLink = "graphLink", TableLink = "tableLink",
    SafeHtml = "safeHtml", UrlQueryEscape = "urlQueryEscape", UrlQuery = "urlquery", PathPrefix = "pathPrefix",
    ExternalUrl = "externalURL", Args = "args",
    // Functions of Go.
    Print = "print", Printf = "printf", Println = "println", Html = "html", Len = "len", Index = "index",
    Slice = "slice", And = "and", Or = "or", Not = "not", Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt",
    Ge = "ge",
}

impl Function {
    /// Returns the steps counted for a call, in addition to those of its arguments.
    pub(super) fn extra_steps(self) -> usize {
        match self {
            Self::Match | Self::ReplaceAll => REGEX_STEPS,
            _ => 0,
        }
    }
}

type Result<T> = std::result::Result<T, String>;

/// Calls a function. `and` and `or` are not called here, because they evaluate their arguments one by one.
pub(super) fn call(function: Function, arguments: &[Value], data: &Data<'_>) -> Result<Value> {
    use Function as F;
    match function {
        F::Query => query(data, text_of(one(arguments)?)?),
        F::First => first(one(arguments)?),
        F::LabelOf => two(arguments).and_then(|(name, sample)| {
            Ok(Value::text(
                sample_of(sample)?.0.get(text_of(name)?).unwrap_or_default(),
            ))
        }),
        F::ValueOf => Ok(Value::Float(sample_of(one(arguments)?)?.1)),
        F::StringValue => Ok(Value::text(
            sample_of(one(arguments)?)?.0.get("__value__").unwrap_or_default(),
        )),
        F::SortByLabel => two(arguments).and_then(|(label, samples)| sort_by_label(label, samples)),
        F::Humanize => number_text(arguments, number::humanize),
        F::Humanize1024 => number_text(arguments, number::humanize_1024),
        F::HumanizeDuration => number_text(arguments, number::humanize_duration),
        F::HumanizePercentage => number_text(arguments, number::humanize_percentage),
        F::HumanizeTimestamp => time::humanized(one(arguments)?.number()?).map(Value::text),
        F::ToTime => time::at_seconds(one(arguments)?.number()?).map(Value::Time),
        F::ToDuration => Ok(Value::Duration(one(arguments)?.number()?)),
        F::Now => Ok(Value::Float(data.context.now_ms as f64 / 1_000.0)),
        F::ParseDuration => parse_duration_ms(text_of(one(arguments)?)?)
            .map(|ms| Value::Float(ms as f64 / 1_000.0))
            .map_err(|error| error.to_string()),
        F::Title => changed(arguments, text::title),
        F::ToUpper => changed(arguments, str::to_uppercase),
        F::ToLower => changed(arguments, str::to_lowercase),
        F::Match => {
            let (pattern, text) = two(arguments)?;
            Ok(Value::Bool(regex(text_of(pattern)?)?.is_match(text_of(text)?)))
        }
        F::ReplaceAll => replace_all(arguments),
        F::StripPort => changed(arguments, |text| text::strip_port(text).to_owned()),
        F::StripDomain => changed(arguments, text::strip_domain),
        F::GraphLink => changed(arguments, |expr| text::link(expr, 0)),
        F::TableLink => changed(arguments, |expr| text::link(expr, 1)),
        F::SafeHtml => changed(arguments, str::to_owned),
        F::UrlQueryEscape | F::UrlQuery => Ok(Value::text(text::query_escape(&print::print(arguments)))),
        F::PathPrefix => Ok(Value::text(text::path(data.context.external_url))),
        F::ExternalUrl => Ok(Value::text(data.context.external_url)),
        F::Args => Ok(Value::Args(arguments.into())),
        F::Print => Ok(Value::text(print::print(arguments))),
        F::Println => Ok(Value::text(print::println(arguments))),
        F::Printf => {
            let (format, rest) = arguments.split_first().ok_or_else(|| counted("at least 1", 0))?;
            print::printf(text_of(format)?, rest).map(Value::text)
        }
        F::Html => Ok(Value::text(text::html_escape(&print::print(arguments)))),
        F::Len => length(one(arguments)?).map(Value::Int),
        F::Index => index(arguments),
        F::Slice => slice(arguments),
        F::Not => Ok(Value::Bool(!one(arguments)?.is_true())),
        F::Eq => equal_to_any(arguments).map(Value::Bool),
        F::Ne => two(arguments).and_then(|(a, b)| Ok(Value::Bool(!is_equal(a, b)?))),
        F::Lt => ordered(arguments, &[Ordering::Less]),
        F::Le => ordered(arguments, &[Ordering::Less, Ordering::Equal]),
        F::Gt => ordered(arguments, &[Ordering::Greater]),
        F::Ge => ordered(arguments, &[Ordering::Greater, Ordering::Equal]),
        F::And | F::Or => Err("it is evaluated elsewhere".to_owned()),
    }
}

// === arguments ===

fn counted(want: &str, got: usize) -> String {
    format!("wrong number of args: want {want} got {got}")
}

fn one(arguments: &[Value]) -> Result<&Value> {
    match arguments {
        [argument] => Ok(argument),
        _ => Err(counted("1", arguments.len())),
    }
}

fn two(arguments: &[Value]) -> Result<(&Value, &Value)> {
    match arguments {
        [first, second] => Ok((first, second)),
        _ => Err(counted("2", arguments.len())),
    }
}

fn wrong(value: &Value, expected: &str) -> String {
    format!(
        "wrong type for value; expected {expected}; got {}",
        value.type_name()
    )
}

fn text_of(value: &Value) -> Result<&str> {
    match value {
        Value::Text(text) => Ok(text),
        other => Err(wrong(other, "string")),
    }
}

fn sample_of(value: &Value) -> Result<(&Labels, f64)> {
    match value {
        Value::Sample(labels, value) => Ok((labels, *value)),
        other => Err(wrong(other, "*template.sample")),
    }
}

fn number_text(arguments: &[Value], write: impl Fn(f64) -> String) -> Result<Value> {
    Ok(Value::text(write(one(arguments)?.number()?)))
}

fn changed(arguments: &[Value], change: impl Fn(&str) -> String) -> Result<Value> {
    Ok(Value::text(change(text_of(one(arguments)?)?)))
}

// === queries ===

fn query(data: &Data<'_>, text: &str) -> Result<Value> {
    (data.context.query)(text).map(|samples| Value::Samples(samples.into()))
}

fn first(value: &Value) -> Result<Value> {
    match value {
        Value::Samples(samples) => match samples.first() {
            Some((labels, value)) => Ok(Value::Sample(labels.clone(), *value)),
            None => Err("first() called on vector with no elements".to_owned()),
        },
        other => Err(wrong(other, "template.queryResult")),
    }
}

fn sort_by_label(label: &Value, samples: &Value) -> Result<Value> {
    let (label, Value::Samples(samples)) = (text_of(label)?, samples) else {
        return Err(wrong(samples, "template.queryResult"));
    };
    let mut sorted = samples.to_vec();
    sorted.sort_by(|a, b| a.0.get(label).unwrap_or("").cmp(b.0.get(label).unwrap_or("")));
    Ok(Value::Samples(sorted.into()))
}

// === texts ===

fn regex(pattern: &str) -> Result<Regex> {
    if pattern.len() > REGEX_BYTES_MAX {
        return Err(format!(
            "the regular expression has more than {REGEX_BYTES_MAX} bytes"
        ));
    }
    regex::RegexBuilder::new(pattern)
        .size_limit(REGEX_PROGRAM_BYTES_MAX)
        .build()
        .map_err(|error| format!("error parsing regexp: {error}"))
}

fn replace_all(arguments: &[Value]) -> Result<Value> {
    let [pattern, replacement, text] = arguments else {
        return Err(counted("3", arguments.len()));
    };
    let (replacement, text) = (text_of(replacement)?, text_of(text)?);
    // Each match can be replaced by a text as long as `replacement` or, with references, the text itself.
    if replacement.len().saturating_mul(text.len() + 1) > super::TEXT_BYTES_MAX * 64 {
        return Err("the text is too long".to_owned());
    }
    let replaced = regex(text_of(pattern)?)?.replace_all(text, replacement);
    Ok(Value::text(replaced))
}

fn length(value: &Value) -> Result<i64> {
    let length = match value {
        Value::Text(text) => text.len(),
        Value::Labels(labels) => labels.len(),
        Value::Samples(samples) => samples.len(),
        Value::Args(args) => args.len(),
        other => return Err(format!("len of type {}", other.type_name())),
    };
    Ok(i64::try_from(length).unwrap_or(i64::MAX))
}

fn index(arguments: &[Value]) -> Result<Value> {
    let (value, keys) = arguments.split_first().ok_or_else(|| counted("at least 1", 0))?;
    let mut value = value.clone();
    for key in keys {
        value = match (&value, key) {
            (Value::Labels(labels), Value::Text(name)) => Value::text(labels.get(name).unwrap_or_default()),
            (Value::Samples(samples), Value::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| samples.get(at))
                .map(|(labels, value)| Value::Sample(labels.clone(), *value))
                .ok_or_else(|| format!("index out of range: {at}"))?,
            (Value::Text(text), Value::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| text.as_bytes().get(at))
                .map(|byte| Value::Int(i64::from(*byte)))
                .ok_or_else(|| format!("index out of range: {at}"))?,
            (other, _) => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(value)
}

fn slice(arguments: &[Value]) -> Result<Value> {
    let (text, bounds) = arguments.split_first().ok_or_else(|| counted("at least 1", 0))?;
    let text = text_of(text)?;
    let at = |n: usize, otherwise: usize| match bounds.get(n) {
        None => Ok(otherwise),
        Some(Value::Int(at)) => usize::try_from(*at).map_err(|_| format!("index out of range: {at}")),
        Some(other) => Err(format!(
            "cannot index slice/array with type {}",
            other.type_name()
        )),
    };
    let (from, to) = (at(0, 0)?, at(1, text.len())?);
    let part = text
        .get(from..to)
        .ok_or_else(|| format!("index out of range: {from}:{to}"))?;
    Ok(Value::text(part))
}

// === comparisons ===

fn equal_to_any(arguments: &[Value]) -> Result<bool> {
    let [first, rest @ ..] = arguments else {
        return Err("missing argument for comparison".to_owned());
    };
    if rest.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in rest {
        if is_equal(first, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares as in Go: integers and floats cannot be compared with each other.
fn is_equal(a: &Value, b: &Value) -> Result<bool> {
    match (a, b) {
        (Value::Nil, _) | (_, Value::Nil) => Ok(a == b),
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        (Value::Int(a), Value::Int(b)) => Ok(a == b),
        (Value::Float(a), Value::Float(b)) => Ok(a == b),
        (Value::Text(a), Value::Text(b)) => Ok(a == b),
        _ => Err("incompatible types for comparison".to_owned()),
    }
}

fn ordered(arguments: &[Value], wanted: &[Ordering]) -> Result<Value> {
    let (a, b) = two(arguments)?;
    let order = match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Bool(_), Value::Bool(_)) => return Err("invalid type for comparison".to_owned()),
        _ => return Err("incompatible types for comparison".to_owned()),
    };
    Ok(Value::Bool(order.is_some_and(|order| wanted.contains(&order))))
}

/// Returns the arguments with their names, for `print`.
pub(super) fn named(args: &Arc<[Value]>) -> impl Iterator<Item = (String, &Value)> {
    args.iter()
        .enumerate()
        .map(|(n, value)| (format!("arg{n}"), value))
}
