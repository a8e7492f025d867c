//! The interval of a number of rare events.

/// The probability outside of a two-sided 95 % interval, on each side.
const TAIL: f64 = 0.025;
/// Halvings of the interval in which the limit is searched.
const HALVINGS: u32 = 60;

/// Returns the exact 95 % interval (Garwood 1936) of the mean of a Poisson distribution after `count` events.
pub(super) fn interval(count: u32) -> (f64, f64) {
    // Above it, the probability of so few events is below the tail.
    let most = 2.0 * f64::from(count) + 20.0;
    let low = if count == 0 {
        0.0
    } else {
        mean_with(1.0 - TAIL, count - 1, most)
    };
    (low, mean_with(TAIL, count, most))
}

/// Returns the mean at which at most `count` events have this probability.
fn mean_with(probability: f64, count: u32, most: f64) -> f64 {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if at_most(count, middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Returns the probability of at most `count` events.
fn at_most(count: u32, mean: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for events in 1..=count {
        term *= mean / f64::from(events);
        sum += term;
    }
    (-mean).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        for (count, low, high) in [(0, 0.0, 3.689), (1, 0.0253, 5.572), (10, 4.795, 18.39)] {
            let found = interval(count);
            assert!(
                (found.0 - low).abs() < 0.01 && (found.1 - high).abs() < 0.01,
                "{count}: {found:?}"
            );
        }
    }
}
