//! Results of a moment ago. Each tab looks at the clock at its own times, so tabs request the same step one after another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use query::Value;

use super::coalesce::{Evaluated, Key};

/// How long a result is kept. All tabs request a step within a quarter of a second. The next request of any tab removes older results.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum number of series of all kept results, at most about 20 MB. A result for which there is no room is not kept.
const SERIES_MAX: usize = 100_000;

/// The results of the last second.
#[derive(Default)]
pub(super) struct RecentResults {
    by_key: HashMap<Key, Arc<Evaluated>>,
    /// When each result was kept, oldest first.
    order: VecDeque<(Instant, Key)>,
    /// Number of series of all results.
    series: usize,
}

impl RecentResults {
    /// Returns the result of a query if it was kept within the last second.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Arc<Evaluated>> {
        self.forget_old(now);
        self.by_key.get(key).cloned()
    }

    /// Keeps a result if there is room.
    pub(super) fn keep(&mut self, key: Key, evaluated: &Arc<Evaluated>, now: Instant) {
        self.forget_old(now);
        let series = self.series + series_of(evaluated);
        if series > SERIES_MAX || self.by_key.contains_key(&key) {
            return;
        }
        self.series = series;
        self.order.push_back((now, key.clone()));
        self.by_key.insert(key, Arc::clone(evaluated));
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |(at, _): &(Instant, Key)| now.duration_since(*at) >= KEPT;
        while self.order.front().is_some_and(is_old)
            && let Some((_, key)) = self.order.pop_front()
        {
            if let Some(evaluated) = self.by_key.remove(&key) {
                self.series -= series_of(&evaluated);
            }
        }
    }
}

/// Returns the number of series of a result with its extremes.
fn series_of(evaluated: &Evaluated) -> usize {
    let outputs = evaluated.extremes.iter().flatten().chain([&evaluated.output]);
    let series = outputs.map(|output| match &output.value {
        Value::Vector(samples) => samples.len(),
        Value::Matrix(series) => series.len(),
        Value::Scalar(..) | Value::String(..) => 1,
    });
    series.sum()
}

#[cfg(test)]
mod tests {
    use domain::series::Labels;
    use query::Output;

    use super::super::coalesce::WantedExtremes;
    use super::*;

    fn key(text: &str) -> Key {
        (text.to_owned(), 0, 0, 0, WantedExtremes::No)
    }

    fn result(series: usize) -> Arc<Evaluated> {
        let output = Output {
            value: Value::Vector(vec![(Labels::empty(), 0, 1.0); series]),
            warnings: vec![],
            infos: vec![],
        };
        Arc::new(Evaluated {
            output,
            extremes: None,
        })
    }

    #[test]
    fn a_result_is_kept_for_a_second() {
        let (mut recent, begin) = (RecentResults::default(), Instant::now());
        let up = result(1);
        recent.keep(key("up"), &up, begin);
        let found = recent.get(&key("up"), begin + KEPT / 2);
        assert!(found.is_some_and(|found| Arc::ptr_eq(&found, &up)));
        assert!(recent.get(&key("down"), begin + KEPT / 2).is_none());
        assert!(recent.get(&key("up"), begin + KEPT).is_none());
        assert!(recent.order.is_empty() && recent.series == 0);
    }

    #[test]
    fn results_have_a_bound_until_the_oldest_are_forgotten() {
        let (mut recent, begin) = (RecentResults::default(), Instant::now());
        recent.keep(key("grid"), &result(SERIES_MAX), begin);
        recent.keep(key("up"), &result(1), begin);
        assert!(recent.get(&key("grid"), begin).is_some());
        assert!(recent.get(&key("up"), begin).is_none(), "there is no room");
        recent.keep(key("up"), &result(1), begin + KEPT);
        assert!(recent.get(&key("up"), begin + KEPT).is_some());
    }
}
