//! The table: one row per figure, with its target and whether the figure meets it.

use crate::bench::table::{figure, grid};

const HEAD: [&str; 3] = ["", "measured", "target"];

/// The results of one part.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) figures: Vec<Figure>,
    /// Notes for readers.
    pub(super) notes: Vec<String>,
}

impl Measured {
    /// Adds the results of another part.
    pub(super) fn add(&mut self, other: Self) {
        self.figures.extend(other.figures);
        self.notes.extend(other.notes);
    }
}

/// A measured quantity.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// What was measured, with its unit.
    what: String,
    /// NaN if there was nothing to measure.
    value: f64,
    target: Option<Target>,
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Figure {
    pub(super) fn new(what: impl Into<String>, value: f64) -> Self {
        Self {
            what: what.into(),
            value,
            target: None,
        }
    }

    /// Sets the largest value that is good enough.
    pub(super) fn at_most(mut self, bound: f64) -> Self {
        self.target = Some(Target::AtMost(bound));
        self
    }

    /// Sets the smallest value that is good enough.
    pub(super) fn at_least(mut self, bound: f64) -> Self {
        self.target = Some(Target::AtLeast(bound));
        self
    }

    /// Returns false if there is a target and the value does not meet it. NaN meets no target.
    pub(super) fn is_met(&self) -> bool {
        match self.target {
            None => true,
            Some(Target::AtMost(bound)) => self.value <= bound,
            Some(Target::AtLeast(bound)) => self.value >= bound,
        }
    }

    fn verdict(&self) -> String {
        let bound = match self.target {
            None => return String::new(),
            Some(Target::AtMost(bound)) => format!("≤ {bound}"),
            Some(Target::AtLeast(bound)) => format!("≥ {bound}"),
        };
        let word = match (self.value.is_nan(), self.is_met()) {
            (true, _) => "Not measured",
            (false, true) => "Met",
            (false, false) => "Not met",
        };
        format!("{bound}: {word}")
    }

    fn cells(&self) -> Vec<String> {
        let value = if self.value.is_nan() {
            "–".to_owned()
        } else {
            figure(self.value)
        };
        vec![self.what.clone(), value, self.verdict()]
    }
}

/// Renders the figures as a table.
pub(super) fn table(figures: &[Figure]) -> String {
    let rows: Vec<_> = figures.iter().map(Figure::cells).collect();
    grid(&HEAD, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_or_not_by_the_value() {
        let verdict = |figure: Figure| (figure.verdict(), figure.is_met());
        let most = |value| Figure::new("x", value).at_most(16.0);
        assert_eq!(verdict(most(16.0)), ("≤ 16: Met".to_owned(), true));
        assert_eq!(verdict(most(16.1)), ("≤ 16: Not met".to_owned(), false));
        assert_eq!(verdict(most(f64::NAN)), ("≤ 16: Not measured".to_owned(), false));
        let least = Figure::new("x", 0.8).at_least(0.9);
        assert_eq!(verdict(least), ("≥ 0.9: Not met".to_owned(), false));
        assert_eq!(verdict(Figure::new("x", 1.0)), (String::new(), true));
    }

    #[test]
    fn a_row_shows_value_and_verdict() {
        let table = table(&[Figure::new("p95, ms", 12.345).at_most(16.0)]);
        assert!(table.contains("| p95, ms |     12.3 | ≤ 16: Met |"), "{table}");
    }
}
