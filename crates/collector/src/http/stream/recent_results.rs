//! Results of a moment ago. Each tab looks at the clock at its own times, so tabs request the same step one after another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use query::Value;

use super::coalesce::{Evaluated, Key};

/// How long a result is kept. All tabs request a step within a quarter of a second. The next request of any tab removes older results.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum size of all kept results, in series: about 20 MB. A result for which there is no room is not kept.
const SERIES_MAX: usize = 100_000;
/// Number of bytes of a query's text that count as one series.
const TEXT_BYTES_PER_SERIES: usize = 100;

/// The results of the last second.
#[derive(Default)]
pub(super) struct RecentResults {
    by_key: HashMap<Key, Arc<Evaluated>>,
    /// When each result was kept, oldest first.
    order: VecDeque<(Instant, Key)>,
    /// Size of all results, in series.
    size: usize,
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
        let size = self.size + size_in_series(&key, evaluated);
        if size > SERIES_MAX || self.by_key.contains_key(&key) {
            return;
        }
        self.size = size;
        self.order.push_back((now, key.clone()));
        self.by_key.insert(key, Arc::clone(evaluated));
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |(at, _): &(Instant, Key)| now.duration_since(*at) >= KEPT;
        while self.order.front().is_some_and(is_old)
            && let Some((_, key)) = self.order.pop_front()
        {
            if let Some(evaluated) = self.by_key.remove(&key) {
                self.size -= size_in_series(&key, &evaluated);
            }
        }
    }
}

/// Returns the size of a result with its extremes, in series. A result without series has the text of its query, which may be long.
fn size_in_series(key: &Key, evaluated: &Evaluated) -> usize {
    let (text, ..) = key;
    let outputs = evaluated.extremes.iter().flatten().chain([&evaluated.output]);
    let series = outputs.map(|output| match &output.value {
        Value::Vector(samples) => samples.len(),
        Value::Matrix(series) => series.len(),
        Value::Scalar(..) | Value::String(..) => 1,
    });
    series.sum::<usize>() + text.len() / TEXT_BYTES_PER_SERIES + 1
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
        assert!(recent.order.is_empty() && recent.size == 0);
    }

    #[test]
    fn results_have_a_bound_until_the_oldest_are_forgotten() {
        let (mut recent, begin) = (RecentResults::default(), Instant::now());
        recent.keep(key("grid"), &result(SERIES_MAX - 1), begin);
        recent.keep(key("up"), &result(1), begin);
        assert!(recent.get(&key("grid"), begin).is_some());
        assert!(recent.get(&key("up"), begin).is_none(), "there is no room");
        recent.keep(key("up"), &result(1), begin + KEPT);
        assert!(recent.get(&key("up"), begin + KEPT).is_some());
    }

    #[test]
    fn results_without_series_have_a_bound() {
        let (mut recent, begin) = (RecentResults::default(), Instant::now());
        for n in 0..1_000 {
            let text = format!("{}{n}", "x".repeat(64 << 10));
            recent.keep(key(&text), &result(0), begin);
        }
        assert!((100..200).contains(&recent.order.len()), "{}", recent.order.len());
    }
}
