//! Values by step: joins the values of a metric with the steps of the same time, and puts two attempts on one axis.

use domain::time::TimestampMs;

/// A value with its time.
pub(super) type Sample = (TimestampMs, f64);

/// The value at a step, then the least and the greatest value since the point before; NaN where there is none.
pub(super) type Parts<T> = [T; 3];

/// The values of a metric by step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Curve {
    /// Steps with their values; the steps increase.
    points: Vec<(f64, Parts<f64>)>,
    /// Steps at which the value was NaN or infinite.
    not_finite: Vec<f64>,
}

impl Curve {
    /// Joins values and extremes with the steps that have the same time; those without a step are dropped. All lists are ordered by time.
    pub(super) fn joined(steps: &[Sample], parts: Parts<&[Sample]>) -> Self {
        let mut curve = Self::default();
        let mut rest = parts;
        for &(at_ms, step) in steps {
            let found = rest.each_mut().map(|part| take_at(part, at_ms));
            if found.iter().any(Option::is_some) {
                curve.push(step, found);
            }
        }
        curve
    }

    /// Returns the steps at which the value was NaN or infinite.
    pub(super) fn not_finite(&self) -> &[f64] {
        &self.not_finite
    }

    /// Appends a point. If the training went back to an earlier step, the points from that step on are replaced.
    fn push(&mut self, step: f64, found: Parts<Option<f64>>) {
        self.points
            .truncate(self.points.partition_point(|(known, _)| *known < step));
        self.not_finite
            .truncate(self.not_finite.partition_point(|known| *known < step));
        if found.iter().flatten().any(|value| !value.is_finite()) {
            self.not_finite.push(step);
        }
        let finite = found.map(|value| value.filter(|value| value.is_finite()));
        if finite.iter().any(Option::is_some) {
            self.points
                .push((step, finite.map(|value| value.unwrap_or(f64::NAN))));
        }
    }
}

/// Returns the value with this time, and removes those before it.
fn take_at(rest: &mut &[Sample], at_ms: TimestampMs) -> Option<f64> {
    let begin = rest.partition_point(|(time_ms, _)| *time_ms < at_ms);
    *rest = &rest[begin..];
    let (time_ms, value) = rest.first()?;
    (*time_ms == at_ms).then_some(*value)
}

/// Returns the steps at which either curve has a point, and the parts of each curve at them; NaN if it has none.
pub(super) fn on_one_axis(curves: [&Curve; 2]) -> (Vec<f64>, [Parts<Vec<f64>>; 2]) {
    let [mut first, mut second] = curves.map(|curve| curve.points.iter().copied().peekable());
    let (mut steps, mut columns) = (Vec::new(), <[Parts<Vec<f64>>; 2]>::default());
    loop {
        let next = match (first.peek(), second.peek()) {
            (Some((a, _)), Some((b, _))) => f64::min(*a, *b),
            (Some((step, _)), None) | (None, Some((step, _))) => *step,
            (None, None) => return (steps, columns),
        };
        steps.push(next);
        for (column, points) in columns.iter_mut().zip([&mut first, &mut second]) {
            let point = points.next_if(|(step, _)| *step <= next);
            let values = point.map_or([f64::NAN; 3], |(_, values)| values);
            for (part, value) in column.iter_mut().zip(values) {
                part.push(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a curve of values without extremes.
    fn curve(points: &[(f64, f64)]) -> Curve {
        let alone = |(step, value): &(f64, f64)| (*step, [*value, f64::NAN, f64::NAN]);
        Curve {
            points: points.iter().map(alone).collect(),
            not_finite: vec![],
        }
    }

    fn joined(steps: &[Sample], values: &[Sample]) -> Curve {
        Curve::joined(steps, [values, &[], &[]])
    }

    /// Compares as text, because gaps are not equal to each other.
    fn check(found: &Curve, expected: &Curve) {
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_value_belongs_to_the_step_of_the_same_time() {
        let steps = [(1_000, 4.0), (2_000, 8.0), (3_000, 12.0), (4_000, 16.0)];
        for (values, expected) in [
            (
                vec![(1_000, 0.5), (3_000, 0.25)],
                curve(&[(4.0, 0.5), (12.0, 0.25)]),
            ),
            (vec![(500, 0.5), (2_500, 0.4), (4_500, 0.3)], curve(&[])),
            (vec![], curve(&[])),
            (
                vec![(1_000, 0.5), (2_000, f64::NAN), (4_000, f64::INFINITY)],
                Curve {
                    not_finite: vec![8.0, 16.0],
                    ..curve(&[(4.0, 0.5)])
                },
            ),
        ] {
            check(&joined(&steps, &values), &expected);
        }
        check(&joined(&[], &[(1_000, 1.0)]), &Curve::default());
    }

    #[test]
    fn a_spike_between_two_points_is_an_extreme_of_the_second() {
        let steps = [(1_000, 40.0), (2_000, 80.0), (3_000, 120.0)];
        let least = [(1_000, 0.4), (2_000, 0.3), (3_000, 0.2)];
        let greatest = [(1_000, 0.6), (2_000, 9.0), (3_000, f64::INFINITY)];
        let found = Curve::joined(&steps, [&[(1_000, 0.5)], &least, &greatest]);
        let expected = Curve {
            points: vec![
                (40.0, [0.5, 0.4, 0.6]),
                (80.0, [f64::NAN, 0.3, 9.0]),
                (120.0, [f64::NAN, 0.2, f64::NAN]),
            ],
            not_finite: vec![120.0],
        };
        check(&found, &expected);
    }

    #[test]
    fn steps_that_were_repeated_have_their_last_value() {
        let steps = [(1, 10.0), (2, 20.0), (3, 30.0), (4, 15.0), (5, 20.0)];
        let values = [(1, 1.0), (2, f64::NAN), (3, 3.0), (4, 4.0), (5, 5.0)];
        let expected = curve(&[(10.0, 1.0), (15.0, 4.0), (20.0, 5.0)]);
        check(&joined(&steps, &values), &expected);
    }

    #[test]
    fn two_curves_share_one_axis_with_gaps() {
        let (a, b) = (
            curve(&[(4.0, 1.0), (8.0, 2.0)]),
            curve(&[(2.0, 9.0), (8.0, 7.0), (16.0, 5.0)]),
        );
        let (steps, columns) = on_one_axis([&a, &b]);
        assert_eq!(steps, [2.0, 4.0, 8.0, 16.0]);
        // As text, because gaps are not equal to each other.
        assert_eq!(
            columns.map(|[values, ..]| format!("{values:?}")),
            ["[NaN, 1.0, 2.0, NaN]", "[9.0, NaN, 7.0, 5.0]"]
        );
        let (steps, _) = on_one_axis([&Curve::default(), &Curve::default()]);
        assert_eq!(steps, [0.0; 0]);
    }
}
