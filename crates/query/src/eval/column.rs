//! Columns: the values of one series at all steps, and operations that do not depend on the meaning of the values.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use domain::series::{ABSENT, Labels, is_absent};

use super::{Result, without_name};
use crate::error::EvalError;

/// Prometheus' message for two results with the same labels.
pub(super) const SAME_LABELS: &str = "vector cannot contain metrics with the same labelset";

/// Result of a node.
pub(super) enum Columns {
    /// One value per step.
    Scalar(Vec<f64>),
    Vector(Vec<Column>),
    Text(String),
}

/// One series at all steps.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) labels: Labels,
    /// True if the metric's name is dropped at the end, because a function changed the meaning of the values.
    pub(super) drop_name: bool,
    /// One value per step; [`ABSENT`] if there is none.
    pub(super) values: Vec<f64>,
}

impl Column {
    /// Returns a column without labels.
    pub(super) fn unlabelled(values: Vec<f64>) -> Self {
        Self {
            labels: Labels::empty(),
            drop_name: false,
            values,
        }
    }

    /// Returns the values that are present, each with the other value at its step.
    pub(super) fn present_with<'a>(
        &'a mut self,
        others: &'a [f64],
    ) -> impl Iterator<Item = (&'a mut f64, &'a f64)> {
        let pairs = self.values.iter_mut().zip(others);
        pairs.filter(|(value, _)| !is_absent(**value))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.iter().all(|value| is_absent(*value))
    }

    /// Returns the column, with the metric's name dropped if `drop_name` is true.
    pub(super) fn named(self) -> Self {
        if self.drop_name {
            Self {
                labels: without_name(&self.labels),
                drop_name: false,
                ..self
            }
        } else {
            self
        }
    }
}

/// Applies a function to every value, and drops the metric's name.
pub(super) fn mapped(mut columns: Vec<Column>, function: impl Fn(f64) -> f64) -> Vec<Column> {
    for column in &mut columns {
        column.drop_name = true;
        column
            .values
            .iter_mut()
            .filter(|value| !is_absent(**value))
            .for_each(|value| *value = function(*value));
    }
    columns
}

/// Joins columns with equal labels whose values do not overlap: they are one series that came from several. Labels with a name that will be
/// dropped and the same labels with a name that will be kept are different.
///
/// # Errors
/// Returns an error with the message `words` if values overlap.
pub(super) fn merged(columns: Vec<Column>, words: &str) -> Result<Vec<Column>> {
    // A store returns columns in the order of their labels, and most operations keep that order.
    if columns.is_sorted_by(|a, b| a.labels < b.labels) {
        return Ok(columns);
    }
    let mut places: HashMap<(Labels, bool), usize> = HashMap::with_capacity(columns.len());
    let mut merged: Vec<Column> = Vec::with_capacity(columns.len());
    for column in columns {
        match places.entry((column.labels.clone(), column.drop_name)) {
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(column);
            }
            Entry::Occupied(place) => join(&mut merged[*place.get()], &column, words)?,
        }
    }
    Ok(merged)
}

fn join(into: &mut Column, other: &Column, words: &str) -> Result<()> {
    for (value, add) in into
        .values
        .iter_mut()
        .zip(&other.values)
        .filter(|(_, add)| !is_absent(**add))
    {
        if !is_absent(*value) {
            return Err(EvalError::execution(words));
        }
        *value = *add;
    }
    Ok(())
}

/// Returns a column without values.
pub(super) fn absent_values(steps: usize) -> Vec<f64> {
    vec![ABSENT; steps]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn column(values: &[f64]) -> Column {
        Column::unlabelled(values.to_vec())
    }

    #[test]
    fn equal_labels_join_where_they_do_not_overlap() {
        let joined = merged(vec![column(&[1.0, ABSENT]), column(&[ABSENT, 2.0])], SAME_LABELS).unwrap();
        assert_eq!(joined.len(), 1);
        assert_eq!(joined[0].values, [1.0, 2.0]);
        let error = merged(vec![column(&[1.0]), column(&[1.0])], SAME_LABELS).unwrap_err();
        assert_eq!(error.to_string(), SAME_LABELS);
    }
}
