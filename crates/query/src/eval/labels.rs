//! Functions that change labels or order: `label_replace`, `label_join` and the sort functions.

use std::cmp::Ordering;

use domain::series::{Labels, METRIC_NAME};
use regex::RegexBuilder;

use super::column::{Column, SAME_LABELS, merged};
use super::{Evaluator, Result};
use crate::error::EvalError;
use crate::expr::Expr;
use crate::plan::Grid;

/// Maximum memory of the compiled regular expression of `label_replace`, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a label value that a query makes, in bytes: four times that of a stored value. Otherwise `$1$1$1…` could make
/// megabytes per value.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// Bytes of new label values that count as one sample.
const BYTES_PER_SAMPLE: usize = 16;

impl Evaluator<'_> {
    /// `label_replace(v, destination, replacement, source, regex)`.
    pub(super) fn label_replace(&self, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let [vector, rest @ ..] = args else {
            return Err(EvalError::execution("label_replace() needs a vector"));
        };
        let texts = self.texts(rest, grid)?;
        let [destination, replacement, source, pattern] = &texts[..] else {
            return Err(EvalError::execution("label_replace() needs four strings"));
        };
        let regex = RegexBuilder::new(&format!("^(?s:{pattern})$"))
            .size_limit(REGEX_BYTES_MAX)
            .build()
            .map_err(|error| {
                EvalError::execution(match error {
                    regex::Error::CompiledTooBig(_) => {
                        format!("regular expression in label_replace() would take more than 1 MiB once compiled: {pattern}")
                    }
                    _ => format!("invalid regular expression in label_replace(): {pattern}"),
                })
            })?;
        if destination.is_empty() {
            return Err(EvalError::execution(format!(
                "invalid destination label name in label_replace(): {destination}"
            )));
        }
        self.relabelled(vector, grid, destination, |labels| {
            let text = labels.get(source).unwrap_or("");
            let Some(captures) = regex.captures(text) else {
                return Ok(None);
            };
            // Each `$` is replaced by at most the whole value.
            let references = replacement.matches('$').count();
            check_length(
                "label_replace",
                references
                    .saturating_mul(text.len())
                    .saturating_add(replacement.len()),
            )?;
            let mut value = String::new();
            captures.expand(replacement, &mut value);
            Ok(Some(value))
        })
    }

    /// `label_join(v, destination, separator, source…)`.
    pub(super) fn label_join(&self, args: &[Expr], grid: Grid) -> Result<Vec<Column>> {
        let [vector, rest @ ..] = args else {
            return Err(EvalError::execution("label_join() needs a vector"));
        };
        let texts = self.texts(rest, grid)?;
        let [destination, separator, sources @ ..] = &texts[..] else {
            return Err(EvalError::execution(
                "label_join() needs a destination and a separator",
            ));
        };
        for (place, name) in
            std::iter::once(("destination", destination)).chain(sources.iter().map(|s| ("source", s)))
        {
            if name.is_empty() {
                return Err(EvalError::execution(format!(
                    "invalid {place} label name in label_join(): {name}"
                )));
            }
        }
        self.relabelled(vector, grid, destination, |labels| {
            let values: Vec<&str> = sources
                .iter()
                .map(|name| labels.get(name).unwrap_or(""))
                .collect();
            let length: usize = values.iter().map(|value| value.len() + separator.len()).sum();
            check_length("label_join", length)?;
            Ok(Some(values.join(separator)))
        })
    }

    /// Sets a label of every series. A series for which the function returns `None` is unchanged.
    fn relabelled(
        &self,
        vector: &Expr,
        grid: Grid,
        destination: &str,
        value: impl Fn(&Labels) -> Result<Option<String>>,
    ) -> Result<Vec<Column>> {
        let mut columns = self.vector(vector, grid)?;
        for column in &mut columns {
            self.budget.check_cancelled()?;
            if let Some(value) = value(&column.labels)? {
                if value.len() > VALUE_BYTES_MAX {
                    let bytes = value.len();
                    return Err(EvalError::execution(format!(
                        "a value of {bytes} bytes for the label {destination:?} is longer than the {VALUE_BYTES_MAX} allowed"
                    )));
                }
                self.budget.take(0, (value.len() / BYTES_PER_SAMPLE) as u64)?;
                column.labels = column.labels.with(destination, &value);
                column.drop_name &= destination != METRIC_NAME;
            }
        }
        merged(columns, SAME_LABELS)
    }

    /// `sort` and `sort_desc`. They have an effect only in instant queries.
    pub(super) fn sorted(&self, vector: &Expr, grid: Grid, is_descending: bool) -> Result<Vec<Column>> {
        let mut columns = self.sortable(vector, grid)?;
        if self.is_instant {
            columns.sort_by(|a, b| by_value(a.values[0], b.values[0], is_descending));
        }
        Ok(columns)
    }

    /// `sort_by_label` and `sort_by_label_desc`: sorts by the given labels, then by all labels. Numbers within a label are compared as
    /// numbers.
    pub(super) fn sorted_by_label(
        &self,
        args: &[Expr],
        grid: Grid,
        is_descending: bool,
    ) -> Result<Vec<Column>> {
        let [vector, names @ ..] = args else {
            return Err(EvalError::execution("sort_by_label() needs a vector"));
        };
        let names = self.texts(names, grid)?;
        let mut columns = self.sortable(vector, grid)?;
        columns.sort_by(|a, b| {
            let values =
                |name: &String| natural(a.labels.get(name).unwrap_or(""), b.labels.get(name).unwrap_or(""));
            let order = names
                .iter()
                .map(values)
                .find(|order| order.is_ne())
                .unwrap_or_else(|| a.labels.cmp(&b.labels));
            if is_descending { order.reverse() } else { order }
        });
        Ok(columns)
    }

    fn sortable(&self, vector: &Expr, grid: Grid) -> Result<Vec<Column>> {
        if !self.is_instant {
            self.warn(
                "sort is ineffective for range queries since results are always ordered by labels".to_owned(),
            );
        }
        self.vector(vector, grid)
    }
}

/// Maximum length of a new label value as estimated before it is made, in bytes: each use of `$1` can double a value, and calls can be
/// nested. It is larger than `VALUE_BYTES_MAX`, because most uses stand for less than the whole value.
const EXPANDED_BYTES_MAX: usize = 8 * VALUE_BYTES_MAX;

fn check_length(function: &str, bytes: usize) -> Result<()> {
    if bytes <= EXPANDED_BYTES_MAX {
        return Ok(());
    }
    Err(EvalError::execution(format!(
        "{function}() would make a label of up to {bytes} bytes, more than the {EXPANDED_BYTES_MAX} allowed"
    )))
}

/// Compares by value. NaN is last in both directions.
pub(super) fn by_value(a: f64, b: f64, is_descending: bool) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) if is_descending => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
    }
}

/// Compares so that `gpu2` is before `gpu10`: runs of digits are compared as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    while !a.is_empty() && !b.is_empty() {
        let (a_part, a_rest) = a.split_at(part_length(a));
        let (b_part, b_rest) = b.split_at(part_length(b));
        let order = match (digits(a_part), digits(b_part)) {
            (Some(x), Some(y)) => x.len().cmp(&y.len()).then_with(|| x.cmp(y)),
            _ => a_part.cmp(b_part),
        };
        if order.is_ne() {
            return order;
        }
        (a, b) = (a_rest, b_rest);
    }
    a.len().cmp(&b.len())
}

/// Returns the length of the leading run of digits, or of other characters, in bytes.
fn part_length(text: &str) -> usize {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    text.find(|c: char| c.is_ascii_digit() != is_number)
        .unwrap_or(text.len())
}

/// Returns a number without its leading zeros; `None` if the part is not a number.
fn digits(part: &str) -> Option<&str> {
    part.starts_with(|c: char| c.is_ascii_digit())
        .then(|| part.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_as_numbers() {
        for (a, b, order) in [
            ("gpu2", "gpu10", Ordering::Less),
            ("gpu10", "gpu10", Ordering::Equal),
            ("a2b", "a2", Ordering::Greater),
            ("07", "8", Ordering::Less),
            ("", "a", Ordering::Less),
        ] {
            assert_eq!(natural(a, b), order, "{a} {b}");
        }
    }
}
