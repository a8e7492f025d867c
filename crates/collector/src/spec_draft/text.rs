//! A specification as TOML.

use std::fmt::Write as _;

use domain::api::runs::SpecProblem;
use domain::run::secret::REDACTED;
use domain::run::spec::Spec;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Read, at_field, shortened};

/// The fields at the top, in this order; the others follow by name.
const FIRST: [&str; 5] = ["name", "recipe", "script", "args", "nodes"];

/// Where the fields of a text stand.
pub(super) struct Positions<'a> {
    text: &'a str,
    table: Spanned<DeTable<'a>>,
    /// The field that serde found to be wrong, and its exact position, which may be inside a table.
    exact: Option<(String, usize)>,
}

/// Reads a text: all of it, or the fields that can be read.
///
/// # Errors
/// Returns the first error of the syntax.
pub(super) fn read(text: &str) -> Result<(Read, Positions<'_>), SpecProblem> {
    let syntax = |error: toml::de::Error| {
        let problem = at_field(String::new(), error.message().to_owned());
        let offset = error.span().map_or(text.len(), |span| span.start);
        at(text, offset, problem)
    };
    let mut positions = Positions {
        text,
        table: DeTable::parse(text).map_err(syntax)?,
        exact: None,
    };
    let problems = Vec::new();
    let error = match toml::from_str::<Spec>(text) {
        Ok(spec) => return Ok((Read { spec, problems }, positions)),
        Err(error) => error,
    };
    // serde stops at the first wrong field. As JSON, each field is read alone.
    let document = toml::from_str::<Value>(text).unwrap_or_default();
    let mut read = super::json::read(&document);
    let offset = error.span().map(|span| span.start);
    match &mut read.problems[..] {
        [] => read
            .problems
            .push(at_field(String::new(), shortened(error.message()))),
        [only] if only.field != "secrets" => {
            only.message = shortened(error.message());
            positions.exact = offset.map(|offset| (only.field.clone(), offset));
        }
        _ => {}
    }
    Ok((read, positions))
}

/// Writes a specification, without the values of secrets, and without fields that have their default. Fields may be unknown or wrong.
///
/// # Errors
/// Returns a message if the document is not an object, or has a number that TOML cannot have.
pub(super) fn write(document: Value) -> Result<String, String> {
    let Value::Object(mut fields) = document else {
        return Err("a specification is an object".to_owned());
    };
    match fields.get_mut("secrets") {
        Some(Value::Object(secrets)) => secrets.values_mut().for_each(|value| *value = REDACTED.into()),
        Some(Value::Null) | None => {}
        Some(wrong) => *wrong = REDACTED.into(),
    }
    let defaults = serde_json::to_value(Spec::default()).unwrap_or_default();
    fields.retain(|name, value| !value.is_null() && Some(&*value) != defaults.get(name));
    let mut lines = String::new();
    let mut tables = String::new();
    let first = FIRST
        .iter()
        .filter_map(|name| fields.remove_entry(*name))
        .collect::<Vec<_>>();
    for (name, mut value) in first.into_iter().chain(fields) {
        remove_nulls(&mut value);
        let is_table = value.is_object();
        let entry: Map<String, Value> = [(name.clone(), value)].into_iter().collect();
        let text = toml::to_string(&entry).map_err(|error| format!("{name}: {error}"))?;
        let place = if is_table { &mut tables } else { &mut lines };
        let gap = if is_table { "\n" } else { "" };
        // Writing to a `String` cannot fail.
        let _infallible = writeln!(place, "{gap}{}", text.trim_end());
    }
    Ok(lines + &tables)
}

/// TOML has no null.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|_, value| !value.is_null());
            entries.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => {
            items.retain(|value| !value.is_null());
            items.iter_mut().for_each(remove_nulls);
        }
        _ => {}
    }
}

/// Returns an error for each secret whose value stands in the text. The text is shown, so no secret belongs there.
pub(super) fn visible_secrets(spec: &Spec) -> Vec<SpecProblem> {
    let message = format!("this text is visible: write {REDACTED:?} here, and give the value in the form");
    let visible = spec.secrets.iter().filter(|(_, value)| !value.is_hidden());
    visible
        .map(|(name, _)| at_field(format!("secrets.{name}"), message.clone()))
        .collect()
}

impl Positions<'_> {
    /// Adds the position of the field, or of the table that contains it, if the text has it.
    pub(super) fn place(&self, problem: SpecProblem) -> SpecProblem {
        let exact = self.exact.as_ref().filter(|(field, _)| *field == problem.field);
        let offset = match exact {
            Some((_, offset)) => Some(*offset),
            None => offset(self.table.get_ref(), &problem.field),
        };
        match offset {
            Some(offset) => at(self.text, offset, problem),
            None => problem,
        }
    }
}

/// Returns where the key stands. A name may contain dots.
fn offset(table: &DeTable<'_>, field: &str) -> Option<usize> {
    let find = |name: &str| table.iter().find(|(key, _)| &**key.get_ref() == name);
    let start = |key: &Spanned<_>| key.span().start;
    if let Some((key, _)) = find(field) {
        return Some(start(key));
    }
    let (name, rest) = field.split_once('.')?;
    let (key, value) = find(name)?;
    match value.get_ref() {
        DeValue::Table(inner) => offset(inner, rest).or_else(|| Some(start(key))),
        _ => Some(start(key)),
    }
}

fn at(text: &str, offset: usize, problem: SpecProblem) -> SpecProblem {
    let before = text.get(..offset).unwrap_or(text);
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let line = before.matches('\n').count() + 1;
    SpecProblem {
        line: u32::try_from(line).ok(),
        column: u32::try_from(column).ok(),
        ..problem
    }
}
