//! The columns of a chart: one time axis, and for each line one value a time, NaN where it has none.

use domain::api::prometheus::MatrixSeries;
use domain::api::stream::Column;
use domain::series::Labels;
use domain::time::TimestampMs;

use crate::ui::number;

/// Lines one chart draws; beyond that nobody can tell them apart.
const LINES_MAX: usize = 64;

/// What a chart draws.
#[derive(Default)]
pub(super) struct Lines {
    times_ms: Vec<TimestampMs>,
    lines: Vec<(Labels, Vec<f64>)>,
}

impl Lines {
    /// Takes a frame of the stream: in place of what is there, or behind it.
    pub(super) fn take(&mut self, reset: bool, times_ms: &[TimestampMs], series: &[Column], range_ms: i64) {
        if reset {
            *self = Self::default();
        }
        let before = self.times_ms.len();
        self.times_ms.extend_from_slice(times_ms);
        for column in series {
            let values = column.values.iter().map(|value| value.unwrap_or(f64::NAN));
            if let Some(line) = self.line(&column.labels, before) {
                line.extend(values);
            }
        }
        for (_, line) in &mut self.lines {
            line.resize(self.times_ms.len(), f64::NAN);
        }
        self.forget_older_than(range_ms);
    }

    /// What a range query gave, put on the grid it was asked for.
    pub(super) fn of_past(
        series: &[MatrixSeries],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        step_ms: i64,
    ) -> Self {
        let mut all = Self {
            times_ms: (0..=(end_ms - start_ms).max(0) / step_ms)
                .map(|n| start_ms + n * step_ms)
                .collect(),
            lines: vec![],
        };
        for one in series {
            let values = on_grid(one, start_ms, step_ms, all.times_ms.len());
            if let Some(line) = all.line(&one.metric, 0) {
                *line = values;
            }
        }
        all
    }

    /// How many times have a value.
    pub(super) fn measured(&self) -> usize {
        let has_value = |at: &usize| self.lines.iter().any(|(_, line)| !line[*at].is_nan());
        (0..self.times_ms.len()).filter(has_value).count()
    }

    /// Names, times in seconds and values, beginning with the first value, in the order of the label `by`. Lines of one name are
    /// one line: a rank that went on on another node, where the old node's last value may be heard for a while yet.
    pub(super) fn columns(&self, by: &str, order: &[&str]) -> (Vec<String>, Vec<f64>, Vec<Vec<f64>>) {
        let first_value = |(_, line): &(Labels, Vec<f64>)| line.iter().position(|value| !value.is_nan());
        let begin = self
            .lines
            .iter()
            .filter_map(first_value)
            .min()
            .unwrap_or(self.times_ms.len());
        let mut sorted: Vec<_> = self.lines.iter().collect();
        sorted.sort_by_key(|(labels, _)| place(labels.get(by), order));
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
        let times = self.times_ms[begin..]
            .iter()
            .map(|time| *time as f64 / 1_000.0)
            .collect();
        let mut names: Vec<String> = Vec::new();
        let mut values: Vec<Vec<f64>> = Vec::new();
        for (labels, line) in sorted {
            let name = name(labels, by);
            match names.iter().position(|known| *known == name) {
                Some(at) => join(&mut values[at], &line[begin..]),
                None => {
                    names.push(name);
                    values.push(line[begin..].to_vec());
                }
            }
        }
        (names, times, values)
    }

    /// The line of these labels; a new one begins with `before` gaps. `None` where there is no room for it.
    fn line(&mut self, labels: &Labels, before: usize) -> Option<&mut Vec<f64>> {
        let known = self.lines.iter().position(|(known, _)| known == labels);
        if known.is_none() {
            if self.lines.len() >= LINES_MAX {
                return None;
            }
            self.lines.push((labels.clone(), vec![f64::NAN; before]));
        }
        let at = known.unwrap_or(self.lines.len() - 1);
        self.lines.get_mut(at).map(|(_, line)| line)
    }

    fn forget_older_than(&mut self, range_ms: i64) {
        let Some(last) = self.times_ms.last() else { return };
        let old = self.times_ms.partition_point(|time| *time < last - range_ms);
        if old == 0 {
            return;
        }
        self.times_ms.drain(..old);
        self.lines.retain_mut(|(_, line)| {
            line.drain(..old);
            line.iter().any(|value| !value.is_nan())
        });
    }
}

/// Puts another part of the same line in: at each time the part counts that began later.
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

fn on_grid(series: &MatrixSeries, start_ms: TimestampMs, step_ms: i64, length: usize) -> Vec<f64> {
    let mut line = vec![f64::NAN; length];
    for (time_s, value) in &series.values {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a time in milliseconds fits 64 bits"
        )]
        let at = ((time_s * 1_000.0).round() as i64 - start_ms) / step_ms;
        let cell = usize::try_from(at).ok().and_then(|at| line.get_mut(at));
        if let (Some(cell), Some(value)) = (cell, number(value)) {
            *cell = if value.is_finite() { value } else { f64::NAN };
        }
    }
    line
}

/// A line's place among the others: as `order` says, else by number, so that `rank 10` comes behind `rank 9`.
fn place(value: Option<&str>, order: &[&str]) -> u64 {
    let value = value.unwrap_or_default();
    let named = order.iter().position(|name| *name == value).map(|at| at as u64);
    named.or_else(|| value.parse().ok()).unwrap_or(u64::MAX)
}

fn name(labels: &Labels, by: &str) -> String {
    match (labels.get(by), by) {
        (Some(value), "rank" | "gpu") => format!("{by} {value}"),
        (Some(value), _) => value.to_owned(),
        (None, _) => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn column(rank: &str, values: &[Option<f64>]) -> Column {
        Column {
            labels: Labels::new([("rank", rank)]).unwrap(),
            values: values.to_vec(),
        }
    }

    /// Values as text, so that gaps compare.
    fn shown(lines: &Lines) -> (Vec<String>, Vec<f64>, Vec<String>) {
        let (names, times, values) = lines.columns("rank", &[]);
        (
            names,
            times,
            values.iter().map(|line| format!("{line:?}")).collect(),
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
    fn lines_stand_in_the_order_asked_for() {
        let mut lines = Lines::default();
        lines.take(
            true,
            &[0],
            &["b", "10", "a", "9"].map(|rank| column(rank, &[Some(1.0)])),
            1_000,
        );
        let names = lines.columns("rank", &["a"]).0;
        assert_eq!(names, ["rank a", "rank 9", "rank 10", "rank b"]);
    }

    #[test]
    fn a_rank_that_went_on_elsewhere_is_one_line() {
        let on = |node: &str, values: &[Option<f64>]| Column {
            labels: Labels::new([("rank", "0"), ("node", node)]).unwrap(),
            values: values.to_vec(),
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
    fn what_is_older_than_the_window_is_forgotten() {
        let mut lines = Lines::default();
        lines.take(true, &[0, 1_000], &[column("0", &[Some(1.0), None])], 2_000);
        lines.take(false, &[3_000], &[column("1", &[Some(2.0)])], 2_000);
        assert_eq!(shown(&lines).0, ["rank 1"]);
        lines.take(true, &[0], &[], 2_000);
        assert_eq!(lines.measured(), 0);
    }

    #[test]
    fn a_range_query_is_put_on_its_grid() {
        let series = MatrixSeries {
            metric: Labels::new([("rank", "0")]).unwrap(),
            values: vec![(10.0, "1".into()), (14.0, "NaN".into()), (18.0, "3".into())],
        };
        let lines = Lines::of_past(&[series], 8_000, 20_000, 2_000);
        let (_, times, values) = shown(&lines);
        assert_eq!(times, [10.0, 12.0, 14.0, 16.0, 18.0, 20.0]);
        assert_eq!(values, ["[1.0, NaN, NaN, NaN, 3.0, NaN]"]);
    }

    #[test]
    fn lines_have_a_bound() {
        let mut lines = Lines::default();
        let many: Vec<_> = (0..100).map(|n| column(&n.to_string(), &[Some(1.0)])).collect();
        lines.take(true, &[0], &many, 1_000);
        assert_eq!(shown(&lines).0.len(), LINES_MAX);
    }
}
