//! The columns of a chart: one time axis, and per line one value per time (NaN if there is none).

use domain::api::stream::Column;
use domain::series::Labels;
use domain::time::TimestampMs;

use super::naming::Naming;
use crate::ui::sorted;

/// Maximum number of lines that one chart keeps. If they are too many to distinguish, a band summarises them.
const LINES_MAX: usize = 1_024;

/// One line: one value per time, NaN if there is none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// The name of the line.
    pub(super) name: String,
    /// Whether the line is drawn bold.
    pub(super) is_bold: bool,
    /// The values of the line.
    pub(super) values: Vec<f64>,
    /// The least and the greatest value within each step; empty if unknown.
    pub(super) extremes: [Vec<f64>; 2],
    /// The rank of each value, NaN if there is none; empty unless the line is drawn over a stack.
    pub(super) ranks: Vec<f64>,
}

/// The values of a line, one per time, NaN if there is none. Then the least and the greatest within each step; empty if unknown.
type Parts = [Vec<f64>; 3];

/// The position of the values in [`Parts`]. The extremes follow.
const VALUES: usize = 0;

/// The data of one chart.
#[derive(Default)]
pub(super) struct Lines {
    times_ms: Vec<TimestampMs>,
    lines: Vec<(Labels, Parts)>,
    /// Times at which a value was NaN or infinite.
    not_finite_ms: Vec<TimestampMs>,
}

impl Lines {
    /// Adds a frame of the stream; with `reset`, replaces all data.
    pub(super) fn take(&mut self, reset: bool, times_ms: &[TimestampMs], series: &[Column], range_ms: i64) {
        if reset {
            *self = Self::default();
        }
        let before = self.times_ms.len();
        self.times_ms.extend_from_slice(times_ms);
        for (expected, column) in series.iter().enumerate() {
            let places = column.not_finite.iter().map(|at| *at as usize);
            for at_ms in places.filter_map(|at| times_ms.get(at)) {
                self.add_not_finite(*at_ms);
            }
            // Both extremes are those of the same values, so a missing one is infinite.
            for (at_ms, (min, max)) in times_ms.iter().zip(column.min.iter().zip(&column.max)) {
                if min.is_some() != max.is_some() {
                    self.add_not_finite(*at_ms);
                }
            }
            let Some(parts) = self.line(&column.labels, expected) else {
                continue;
            };
            for (part, values) in parts.iter_mut().zip([&column.values, &column.min, &column.max]) {
                if values.iter().any(Option::is_some) {
                    part.resize(before, f64::NAN);
                    part.extend(values.iter().map(|value| value.unwrap_or(f64::NAN)));
                }
            }
        }
        for (_, parts) in &mut self.lines {
            for (n, part) in parts.iter_mut().enumerate() {
                if n == VALUES || !part.is_empty() {
                    part.resize(self.times_ms.len(), f64::NAN);
                }
            }
        }
        self.forget_older_than(range_ms);
    }

    /// Returns the number of times that have a value.
    pub(super) fn measured(&self) -> usize {
        let has_value = |at: &usize| self.lines.iter().any(|(_, parts)| !parts[VALUES][*at].is_nan());
        (0..self.times_ms.len()).filter(has_value).count()
    }

    /// Returns the times at which a value was NaN or infinite, in seconds.
    pub(super) fn not_finite_s(&self) -> Vec<f64> {
        self.not_finite_ms.iter().map(|at_ms| seconds(*at_ms)).collect()
    }

    /// Returns the times in seconds, starting at the first value, and the lines in the order of their names. Lines with the same name are
    /// joined: a rank may have moved to another node, while the old node's last value arrives for a short time. Lines that have all labels
    /// of an entry of `bold` are bold.
    pub(super) fn named(&self, naming: &Naming, bold: &[Labels]) -> (Vec<f64>, Vec<Line>) {
        let first_value =
            |(_, parts): &(Labels, Parts)| parts[VALUES].iter().position(|value| !value.is_nan());
        let begin = self
            .lines
            .iter()
            .filter_map(first_value)
            .min()
            .unwrap_or(self.times_ms.len());
        let lines: Vec<_> = self.lines.iter().collect();
        let sorted = sorted(lines, |(a, _), (b, _)| naming.place(a).cmp(&naming.place(b)));
        let times = self.times_ms[begin..].iter().map(|time| seconds(*time)).collect();
        let common = naming.common(sorted.iter().map(|(labels, _)| labels));
        let mut lines: Vec<Line> = Vec::new();
        for (labels, parts) in sorted {
            let name = naming.name(labels, &common);
            let is_bold = bold.iter().any(|wanted| has_all(labels, wanted));
            let [values, min, max] = parts.each_ref().map(|part| part.get(begin..).unwrap_or_default());
            let ranks = naming
                .rank_over(labels)
                .map_or_else(Vec::new, |rank| where_measured(values, rank));
            match lines.iter_mut().find(|known| known.name == name) {
                Some(known) => {
                    join(&mut known.values, values);
                    join(&mut known.ranks, &ranks);
                    for (part, other) in known.extremes.iter_mut().zip([min, max]) {
                        part.resize(part.len().max(other.len()), f64::NAN);
                        join(part, other);
                    }
                    known.is_bold |= is_bold;
                }
                None => lines.push(Line {
                    name,
                    is_bold,
                    values: values.to_vec(),
                    extremes: [min.to_vec(), max.to_vec()],
                    ranks,
                }),
            }
        }
        (times, lines)
    }

    /// Returns the line with these labels, without values if it is new. `None` if the chart is full. `expected`: the position of the line,
    /// if frames have their series in one order.
    fn line(&mut self, labels: &Labels, expected: usize) -> Option<&mut Parts> {
        let is_it = |(known, _): &(Labels, Parts)| known == labels;
        let known = if self.lines.get(expected).is_some_and(is_it) {
            Some(expected)
        } else {
            self.lines.iter().position(is_it)
        };
        if known.is_none() {
            if self.lines.len() >= LINES_MAX {
                return None;
            }
            self.lines.push((labels.clone(), Parts::default()));
        }
        let at = known.unwrap_or(self.lines.len() - 1);
        self.lines.get_mut(at).map(|(_, parts)| parts)
    }

    /// Adds a time with a value that is not finite. Several ranks may have one at the same time.
    fn add_not_finite(&mut self, at_ms: TimestampMs) {
        if !self.not_finite_ms.contains(&at_ms) {
            self.not_finite_ms.push(at_ms);
        }
    }

    fn forget_older_than(&mut self, range_ms: i64) {
        let Some(last) = self.times_ms.last() else { return };
        let old = self.times_ms.partition_point(|time| *time < last - range_ms);
        if old == 0 {
            return;
        }
        self.times_ms.drain(..old);
        let first_ms = self.times_ms.first().copied().unwrap_or_default();
        self.not_finite_ms.retain(|at_ms| *at_ms >= first_ms);
        self.lines.retain_mut(|(_, parts)| {
            for part in parts.iter_mut() {
                part.drain(..old.min(part.len()));
            }
            parts[VALUES].iter().any(|value| !value.is_nan())
        });
    }
}

/// Returns true if the labels contain all of `wanted`. The metric's name is ignored.
fn has_all(labels: &Labels, wanted: &Labels) -> bool {
    let mut wanted = wanted
        .iter()
        .filter(|label| *label.name != *"__name__")
        .peekable();
    wanted.peek().is_some() && wanted.all(|label| labels.get(&label.name) == Some(&*label.value))
}

/// Returns the rank at each time that has a value, else NaN.
fn where_measured(values: &[f64], rank: u32) -> Vec<f64> {
    let rank_at = |value: &f64| if value.is_nan() { f64::NAN } else { f64::from(rank) };
    values.iter().map(rank_at).collect()
}

/// Joins another part of the same line. If both have a value at a time, the part that started later counts.
fn join(line: &mut [f64], other: &[f64]) {
    let begin = |line: &[f64]| {
        line.iter()
            .position(|value| !value.is_nan())
            .unwrap_or(line.len())
    };
    let later = begin(other) >= begin(line);
    for (value, other) in line.iter_mut().zip(other) {
        if !other.is_nan() && (later || value.is_nan()) {
            *value = *other;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
fn seconds(at_ms: TimestampMs) -> f64 {
    at_ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn column(rank: &str, values: &[Option<f64>]) -> Column {
        Column {
            labels: Labels::new([("rank", rank)]).unwrap(),
            values: values.to_vec(),
            not_finite: vec![],
            min: vec![],
            max: vec![],
        }
    }

    /// Values as text, so that gaps compare as equal.
    fn shown(lines: &Lines) -> (Vec<String>, Vec<f64>, Vec<String>) {
        let (times, named) = lines.named(&Naming::by("rank"), &[]);
        let values = named.iter().map(|line| format!("{:?}", line.values));
        (
            named.iter().map(|line| line.name.clone()).collect(),
            times,
            values.collect(),
        )
    }

    #[test]
    fn frames_are_joined_with_gaps_where_a_line_has_nothing() {
        let mut lines = Lines::default();
        lines.take(
            true,
            &[0, 1_000, 2_000],
            &[column("10", &[None, Some(1.0), None])],
            10_000,
        );
        lines.take(false, &[3_000], &[column("9", &[Some(2.0)])], 10_000);
        let (names, times, values) = shown(&lines);
        assert_eq!(names, ["rank 9", "rank 10"]);
        assert_eq!(times, [1.0, 2.0, 3.0], "begins with the first value");
        assert_eq!(values, ["[NaN, NaN, 2.0]", "[1.0, NaN, NaN]"]);
        assert_eq!(lines.measured(), 2);
    }

    #[test]
    fn lines_are_in_the_requested_order() {
        let mut lines = Lines::default();
        lines.take(
            true,
            &[0],
            &["b", "10", "a", "9"].map(|rank| column(rank, &[Some(1.0)])),
            1_000,
        );
        let bold = [Labels::new([("rank", "10")]).unwrap()];
        let (_, named) = lines.named(&Naming::by("rank").ordered(&["a"]), &bold);
        let bold: Vec<_> = named.iter().map(|line| line.is_bold).collect();
        assert_eq!(bold, [false, false, true, false]);
        let names: Vec<_> = named.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["rank a", "rank 9", "rank 10", "rank b"]);
    }

    #[test]
    fn a_rank_that_continued_on_another_node_is_one_line() {
        let on = |node: &str, values: &[Option<f64>]| Column {
            labels: Labels::new([("rank", "0"), ("node", node)]).unwrap(),
            values: values.to_vec(),
            not_finite: vec![],
            min: vec![],
            max: vec![],
        };
        for order in [[0, 1], [1, 0]] {
            let mut lines = Lines::default();
            let parts = [
                on("a", &[Some(1.0), Some(1.0), Some(1.0), None]),
                on("b", &[None, None, Some(2.0), Some(2.0)]),
            ];
            lines.take(
                true,
                &[0, 1_000, 2_000, 3_000],
                &order.map(|at| parts[at].clone()),
                10_000,
            );
            let (names, _, values) = shown(&lines);
            assert_eq!(
                (names.len(), values),
                (1, vec!["[1.0, 1.0, 2.0, 2.0]".to_owned()])
            );
        }
    }

    #[test]
    fn a_line_over_a_stack_has_the_rank_of_each_value() {
        let of = |rank: &str, values: &[Option<f64>]| Column {
            labels: Labels::new([("part", "slowest"), ("rank", rank)]).unwrap(),
            ..column(rank, values)
        };
        let part = Column {
            labels: Labels::new([("part", "data")]).unwrap(),
            ..column("0", &[Some(0.1), Some(0.1), Some(0.1)])
        };
        let mut lines = Lines::default();
        let slowest = [
            of("3", &[None, Some(2.0), None]),
            of("7", &[Some(1.0), None, None]),
        ];
        lines.take(
            true,
            &[0, 1_000, 2_000],
            &[vec![part], slowest.to_vec()].concat(),
            10_000,
        );
        let naming = Naming::by("part").ordered(&["data", "slowest"]).stacked();
        let (_, named) = lines.named(&naming.with_rank_over("slowest"), &[]);
        let told: Vec<_> = named
            .iter()
            .map(|line| {
                (
                    line.name.as_str(),
                    format!("{:?}", line.values),
                    format!("{:?}", line.ranks),
                )
            })
            .collect();
        let text = str::to_owned;
        assert_eq!(
            told,
            [
                ("data", text("[0.1, 0.1, 0.1]"), text("[]")),
                ("slowest", text("[1.0, 2.0, NaN]"), text("[7.0, 3.0, NaN]")),
            ]
        );
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut lines = Lines::default();
        lines.take(true, &[0, 1_000], &[column("0", &[Some(1.0), None])], 2_000);
        lines.take(false, &[3_000], &[column("1", &[Some(2.0)])], 2_000);
        assert_eq!(shown(&lines).0, ["rank 1"]);
        lines.take(true, &[0], &[], 2_000);
        assert_eq!(lines.measured(), 0);
    }

    #[test]
    fn values_that_are_no_numbers_are_remembered_with_their_time() {
        let mut lines = Lines::default();
        let bad = Column {
            not_finite: vec![1],
            ..column("0", &[Some(1.0), None])
        };
        lines.take(true, &[0, 1_000], &[bad], 2_000);
        assert_eq!(lines.not_finite_s(), [1.0]);
        lines.take(false, &[9_000], &[column("0", &[Some(1.0)])], 2_000);
        assert_eq!(lines.not_finite_s(), [0.0; 0], "too old");
    }

    #[test]
    fn an_infinite_value_within_a_step_is_remembered_with_its_time() {
        let mut lines = Lines::default();
        let overflow = Column {
            min: vec![Some(1.0), Some(1.0), None],
            max: vec![Some(2.0), None, None],
            ..column("0", &[Some(1.0), Some(1.0), None])
        };
        lines.take(true, &[0, 1_000, 2_000], &[overflow], 2_000);
        assert_eq!(lines.not_finite_s(), [1.0]);
    }

    #[test]
    fn extremes_stay_at_their_times() {
        let mut lines = Lines::default();
        lines.take(true, &[0, 1_000], &[column("0", &[Some(1.0), Some(1.0)])], 2_000);
        let with_extremes = Column {
            min: vec![Some(0.0)],
            max: vec![Some(9.0)],
            ..column("0", &[Some(1.0)])
        };
        lines.take(false, &[2_000], &[with_extremes], 2_000);
        lines.take(false, &[3_000], &[column("0", &[Some(1.0)])], 2_000);
        let (times, named) = lines.named(&Naming::by("rank"), &[]);
        assert_eq!(times, [1.0, 2.0, 3.0]);
        assert_eq!(
            format!("{:?}", named[0].extremes),
            "[[NaN, 0.0, NaN], [NaN, 9.0, NaN]]"
        );
        lines.take(true, &[0], &[column("0", &[Some(1.0)])], 2_000);
        assert_eq!(
            lines.named(&Naming::by("rank"), &[]).1[0].extremes,
            [Vec::<f64>::new(), vec![]]
        );
    }

    #[test]
    fn lines_have_a_bound() {
        let mut lines = Lines::default();
        let many: Vec<_> = (0..2_000).map(|n| column(&n.to_string(), &[Some(1.0)])).collect();
        lines.take(true, &[0], &many, 1_000);
        assert_eq!(shown(&lines).0.len(), LINES_MAX);
    }
}
