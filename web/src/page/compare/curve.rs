//! Values by step: joins the values of a metric with the steps of the same time, and puts two attempts on one axis.

use domain::time::TimestampMs;

/// A value with its time.
pub(super) type Sample = (TimestampMs, f64);

/// The values of a metric by step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Curve {
    /// Steps with their finite values; the steps increase.
    points: Vec<(f64, f64)>,
    /// Steps at which the value was NaN or infinite.
    not_finite: Vec<f64>,
}

impl Curve {
    /// Joins values with the steps that have the same time; a value without a step is dropped. Both lists are ordered by time.
    pub(super) fn joined(steps: &[Sample], values: &[Sample]) -> Self {
        let mut curve = Self::default();
        let mut steps = steps.iter().copied().peekable();
        for &(at_ms, value) in values {
            while steps.next_if(|(time_ms, _)| *time_ms < at_ms).is_some() {}
            if let Some(&(time_ms, step)) = steps.peek()
                && time_ms == at_ms
            {
                curve.push(step, value);
            }
        }
        curve
    }

    /// Returns the steps at which the value was NaN or infinite.
    pub(super) fn not_finite(&self) -> &[f64] {
        &self.not_finite
    }

    /// Appends a value. If the training went back to an earlier step, the values from that step on are replaced.
    fn push(&mut self, step: f64, value: f64) {
        self.points
            .truncate(self.points.partition_point(|(known, _)| *known < step));
        self.not_finite
            .truncate(self.not_finite.partition_point(|known| *known < step));
        if value.is_finite() {
            self.points.push((step, value));
        } else {
            self.not_finite.push(step);
        }
    }
}

/// Returns the steps at which either curve has a value, and the values of each curve at them; NaN if it has none.
pub(super) fn on_one_axis(curves: [&Curve; 2]) -> (Vec<f64>, [Vec<f64>; 2]) {
    let [mut first, mut second] = curves.map(|curve| curve.points.iter().copied().peekable());
    let (mut steps, mut columns) = (Vec::new(), [Vec::new(), Vec::new()]);
    loop {
        let next = match (first.peek(), second.peek()) {
            (Some((a, _)), Some((b, _))) => f64::min(*a, *b),
            (Some((step, _)), None) | (None, Some((step, _))) => *step,
            (None, None) => return (steps, columns),
        };
        steps.push(next);
        for (column, points) in columns.iter_mut().zip([&mut first, &mut second]) {
            let point = points.next_if(|(step, _)| *step <= next);
            column.push(point.map_or(f64::NAN, |(_, value)| value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        Curve {
            points: points.to_vec(),
            not_finite: vec![],
        }
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
            assert_eq!(Curve::joined(&steps, &values), expected);
        }
        assert_eq!(Curve::joined(&[], &[(1_000, 1.0)]), Curve::default());
    }

    #[test]
    fn steps_that_were_repeated_have_their_last_value() {
        let steps = [(1, 10.0), (2, 20.0), (3, 30.0), (4, 15.0), (5, 20.0)];
        let values = [(1, 1.0), (2, f64::NAN), (3, 3.0), (4, 4.0), (5, 5.0)];
        let expected = curve(&[(10.0, 1.0), (15.0, 4.0), (20.0, 5.0)]);
        assert_eq!(Curve::joined(&steps, &values), expected);
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
            columns.map(|column| format!("{column:?}")),
            ["[NaN, 1.0, 2.0, NaN]", "[9.0, NaN, 7.0, 5.0]"]
        );
        let (steps, _) = on_one_axis([&Curve::default(), &Curve::default()]);
        assert_eq!(steps, [0.0; 0]);
    }
}
