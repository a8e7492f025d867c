//! How the lines of a chart are named and ordered, and whether they are stacked.

use domain::series::Labels;

use crate::language::tr;

/// Maximum number of lines that are drawn separately. More cannot be distinguished, so a band summarises them.
const LINES_MOST: usize = 16;

/// How the lines of a chart are named, ordered and drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    /// The label that names the lines. Empty: all labels in which the lines differ.
    by: &'static str,
    /// The order of the lines if their names are not numbers.
    order: &'static [&'static str],
    /// Whether the lines are parts of a whole.
    pub(super) is_stacked: bool,
    /// Maximum number of lines that are drawn separately.
    pub(super) most: usize,
    /// The value of the label `by` whose line is drawn over the stack; empty if there is none.
    over: &'static str,
}

impl Naming {
    /// Names lines by this label.
    pub(crate) const fn by(label: &'static str) -> Self {
        Self {
            by: label,
            order: &[],
            is_stacked: false,
            most: LINES_MOST,
            over: "",
        }
    }

    /// Names lines by the labels in which they differ.
    pub(crate) const fn by_difference() -> Self {
        Self::by("")
    }

    /// Puts lines with these names first, in this order.
    pub(crate) const fn ordered(self, order: &'static [&'static str]) -> Self {
        Self { order, ..self }
    }

    /// Stacks the lines, as parts of a whole.
    pub(crate) const fn stacked(self) -> Self {
        Self {
            is_stacked: true,
            ..self
        }
    }

    /// Draws the series with this value of the label as one line over the stack. At each time, it is the series of one rank, which the table
    /// below the chart names.
    pub(crate) const fn with_rank_over(self, over: &'static str) -> Self {
        Self { over, ..self }
    }

    /// Draws a band if there are more lines than this.
    pub(crate) const fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Returns the rank of a series that is part of the line over the stack.
    pub(super) fn rank_over(&self, labels: &Labels) -> Option<u32> {
        let is_over = !self.over.is_empty() && labels.get(self.by) == Some(self.over);
        labels.get("rank").filter(|_| is_over)?.parse().ok()
    }

    /// Returns the position of a line: by the given order, else by number, so that `rank 10` comes after `rank 9`.
    pub(super) fn place(&self, labels: &Labels) -> u64 {
        let by = if self.by.is_empty() { "rank" } else { self.by };
        let value = labels.get(by).or_else(|| labels.get("gpu")).unwrap_or_default();
        let named = self
            .order
            .iter()
            .position(|name| *name == value)
            .map(|at| at as u64);
        named.or_else(|| value.parse().ok()).unwrap_or(u64::MAX)
    }

    /// Returns the names of the labels that all lines have with the same value.
    pub(super) fn common<'a>(&self, mut lines: impl Iterator<Item = &'a Labels>) -> Vec<String> {
        let Some(first) = lines.next().filter(|_| self.by.is_empty()) else {
            return vec![];
        };
        let mut shared: Vec<_> = first.iter().collect();
        for other in lines {
            shared.retain(|label| other.get(&label.name) == Some(&*label.value));
        }
        shared.iter().map(|label| label.name.to_string()).collect()
    }

    /// Returns the name of a line.
    pub(super) fn name(&self, labels: &Labels, common: &[String]) -> String {
        if self.by.is_empty() {
            return by_difference(labels, common);
        }
        match (labels.get(self.by), self.by) {
            (Some(value), "rank" | "gpu") => format!("{} {value}", self.by),
            (Some(value), _) => {
                let known = self.order.iter().find(|name| **name == value);
                known.map_or(value, |name| tr(name)).to_owned()
            }
            (None, _) => tr("all").to_owned(),
        }
    }
}

/// Returns only the rank if there is one, without its node. Else each label that differs.
fn by_difference(labels: &Labels, common: &[String]) -> String {
    let differs = |name: &str| common.iter().all(|shared| shared != name);
    if let Some(rank) = labels.get("rank").filter(|_| differs("rank")) {
        return format!("rank {rank}");
    }
    let own = labels
        .iter()
        .filter(|label| *label.name != *"__name__" && differs(&label.name));
    let words: Vec<String> = own
        .map(|label| format!("{} {}", label.name, label.value))
        .collect();
    if words.is_empty() {
        tr("value").to_owned()
    } else {
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::new(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn lines_are_named_by_what_tells_them_apart() {
        let check = |lines: &[Labels], expected: &[&str]| {
            let naming = Naming::by_difference();
            let common = naming.common(lines.iter());
            let names: Vec<String> = lines.iter().map(|line| naming.name(line, &common)).collect();
            assert_eq!(names, expected);
        };
        let gpu = |node, gpu| labels(&[("node", node), ("gpu", gpu)]);
        check(&[gpu("a", "0"), gpu("a", "1")], &["gpu 0", "gpu 1"]);
        check(&[gpu("a", "0"), gpu("b", "0")], &["node a", "node b"]);
        check(&[gpu("a", "0")], &["value"]);
        let rank = |node, rank| labels(&[("node", node), ("rank", rank), ("run", "r")]);
        check(&[rank("a", "0"), rank("b", "1")], &["rank 0", "rank 1"]);
        check(&[], &[]);
    }
}
