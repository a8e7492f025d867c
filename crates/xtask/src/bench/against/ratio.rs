//! The ratios of one row, their median, and an interval for it.

/// The minimum confidence of an interval.
const CONFIDENCE: f64 = 0.9;

/// Values of several rounds, and their ratios.
#[derive(Debug, Clone, Default)]
pub(super) struct Ratios {
    before: Vec<f64>,
    now: Vec<f64>,
    ratios: Vec<f64>,
}

impl Ratios {
    /// Adds the values of one round.
    pub(super) fn add(&mut self, before: f64, now: f64) {
        self.before.push(before);
        self.now.push(now);
        self.ratios.push(now / before);
    }

    pub(super) fn before(&self) -> f64 {
        median(&self.before)
    }

    pub(super) fn now(&self) -> f64 {
        median(&self.now)
    }

    /// Returns the median of the rounds' ratios.
    pub(super) fn median(&self) -> f64 {
        median(&self.ratios)
    }

    /// Returns the interval of the ratios that [`about`] describes.
    pub(super) fn interval(&self) -> (f64, f64) {
        interval(&self.ratios)
    }
}

/// Returns the interval that [`about`] describes: lowest and highest value after removing as many at each end as the confidence allows.
pub(crate) fn interval(values: &[f64]) -> (f64, f64) {
    let sorted = sorted(values);
    let left_out = left_out(sorted.len());
    match (sorted.get(left_out), sorted.iter().rev().nth(left_out)) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (f64::NAN, f64::NAN),
    }
}

/// Describes the interval of this number of rounds in a sentence.
pub(crate) fn about(rounds: u32) -> String {
    let rounds = rounds as usize;
    format!(
        "The interval covers the true median with {:.0} % confidence (order statistics).",
        confidence(rounds, left_out(rounds)) * 100.0
    )
}

/// Returns how many ratios at each end can be removed while the confidence is at least [`CONFIDENCE`]; 0 if all ratios together do not
/// reach it.
fn left_out(rounds: usize) -> usize {
    let allowed = (0..rounds / 2).take_while(|out| confidence(rounds, *out) >= CONFIDENCE);
    allowed.last().unwrap_or(0)
}

/// Returns the probability that the true median lies between the order statistics `out` from each end: each ratio is above it with
/// probability one half.
fn confidence(rounds: usize, out: usize) -> f64 {
    let half = 0.5_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX));
    let mut choose = 1.0;
    let mut below = 0.0;
    for k in 0..=out {
        below += choose * half;
        choose = choose * (rounds - k) as f64 / (k + 1) as f64;
    }
    1.0 - 2.0 * below
}

/// Returns the median; NaN if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(values: &[f64]) -> Ratios {
        let mut ratios = Ratios::default();
        values.iter().for_each(|now| ratios.add(1.0, *now));
        ratios
    }

    #[test]
    fn five_rounds_give_their_extremes_and_eight_leave_one_out() {
        let five = ratios(&[1.2, 0.9, 1.0, 1.1, 1.05]);
        assert_eq!((five.median(), five.interval()), (1.05, (0.9, 1.2)));
        assert!(about(5).contains("94 %"), "{}", about(5));
        let eight = ratios(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!((eight.median(), eight.interval()), (4.5, (2.0, 7.0)));
        assert!(about(8).contains("93 %"), "{}", about(8));
    }

    #[test]
    fn few_rounds_say_how_little_they_tell() {
        assert_eq!(ratios(&[1.5]).interval(), (1.5, 1.5));
        assert!(about(1).contains("with 0 %"), "{}", about(1));
        assert!(ratios(&[]).median().is_nan());
    }
}
