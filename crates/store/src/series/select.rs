//! Reading: fetches and decodes what selections need, and then gives it to a query as a plain value.
//!
//! ```text
//! matchers → series by group ─▶ each group: memory: lanes, segments ─────────────────┐
//!                                           chunks on disk, where memory does        ├→ merged ─▶ labels, sorted
//!                                           not reach back: fetched → decompressed ──┘
//! ```
//! If there is much to read, the groups are distributed over all cores, or the chunks if there is only one group. Samples are
//! charged to the budget before they are copied. Series whose pieces have the same axes share one merged axis (one allocation).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, Labels, MatchOp, Matcher, SelectError, Selection, SeriesSet, SeriesSource};
use domain::time::TimeRange;
use tokio::runtime::Handle;

use super::index::{self, Index};
use super::reading::Reading;
use super::shared_samples::read_each;
use super::{SeriesStore, read};

/// The results of some selections. A result may have samples outside of its range, also of series that have no others: those that were read
/// for another selection with the same matchers.
#[derive(Debug, Default)]
pub struct Prefetched {
    sets: HashMap<Selection, SeriesSet>,
}

impl Prefetched {
    /// Returns the longest bucket in the result of a selection, or `None` if no part of it comes from roll-ups.
    #[must_use]
    pub fn resolution_ms(&self, selection: &Selection) -> Option<i64> {
        self.sets.get(selection).and_then(|set| set.resolution_ms)
    }
}

impl SeriesSource for Prefetched {
    /// Uses no budget: [`SeriesStore::prefetch`] has already charged it.
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        budget.check_cancelled()?;
        let set = self.sets.get(selection);
        set.cloned()
            .ok_or_else(|| SelectError::Store("the selection was not prefetched".into()))
    }
}

impl SeriesStore {
    /// Reads what some selections need, and charges the budget. If the caller no longer waits, this ends as soon as the budget
    /// is cancelled.
    ///
    /// # Errors
    /// Fails if the budget is exhausted, a matcher is malformed, or the database fails.
    pub async fn prefetch(
        &self,
        selections: &[Selection],
        budget: &Budget,
    ) -> Result<Prefetched, SelectError> {
        let (this, selections, budget) = (self.clone(), selections.to_vec(), budget.clone());
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || this.prefetch_blocking(&selections, &budget, &runtime))
            .await
            .map_err(|error| SelectError::Store(Box::new(error)))?
    }

    /// Like [`SeriesStore::prefetch`], but on this thread, which may block: each switch of threads takes as long as reading a
    /// series.
    ///
    /// # Errors
    /// The errors of [`SeriesStore::prefetch`].
    pub fn prefetch_blocking(
        &self,
        selections: &[Selection],
        budget: &Budget,
        runtime: &Handle,
    ) -> Result<Prefetched, SelectError> {
        let sets = read_each(selections, |selection| {
            let matchers = compile(&selection.matchers)?;
            let reading = Reading::new(Arc::clone(&self.shared), matchers, selection, budget);
            reading.run(runtime)
        })?;
        Ok(Prefetched { sets })
    }

    /// Like [`SeriesStore::prefetch`], but without blocking: only for few series that are selected by exact label values and
    /// whose wanted samples are in memory. Returns `None` if the selections need more, or the budget does not cover it.
    #[must_use]
    pub fn prefetch_cached(&self, selections: &[Selection], budget: &Budget) -> Option<Prefetched> {
        let is_looked_up = |selection: &Selection| {
            let mut matchers = selection.matchers.iter();
            matchers.all(|matcher| matcher.op == MatchOp::Equal)
        };
        if !selections.iter().all(is_looked_up) {
            return None;
        }
        let cached = |selection: &Selection| {
            let matchers = compile(&selection.matchers).ok()?;
            Reading::new(Arc::clone(&self.shared), matchers, selection, budget).cached()
        };
        let sets = read_each(selections, |selection| cached(selection).ok_or(()));
        Some(Prefetched { sets: sets.ok()? })
    }

    /// Returns how many series match, with or without samples.
    ///
    /// # Errors
    /// Fails if a matcher is malformed.
    pub fn count(&self, matchers: &[Matcher]) -> Result<u64, SelectError> {
        let compiled = compile(matchers)?;
        Ok(read(&self.shared.index).find(&compiled).len())
    }

    /// Returns the labels of the series that match any of the sets and may have samples within the range; sorted, at most
    /// `limit`.
    ///
    /// # Errors
    /// Fails if a matcher is malformed.
    pub fn series(
        &self,
        sets: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
    ) -> Result<Vec<Labels>, SelectError> {
        let mut found = self.matching(sets, range, |entry| entry.labels())?;
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// Returns the label names of the series that match any of the sets, or of all series if `sets` is empty; sorted.
    ///
    /// # Errors
    /// Fails if a matcher is malformed.
    pub fn label_names(&self, sets: &[Vec<Matcher>], range: TimeRange) -> Result<Vec<String>, SelectError> {
        if sets.is_empty() {
            return Ok(read(&self.shared.index).label_names());
        }
        let found = self.matching(sets, range, |entry| entry.labels())?;
        let names: HashSet<Arc<str>> = found
            .iter()
            .flat_map(Labels::iter)
            .map(|label| Arc::clone(&label.name))
            .collect();
        Ok(sorted(names))
    }

    /// Returns the values of a label in the series that match any of the sets, or in all series if `sets` is empty; sorted, at
    /// most `limit`.
    ///
    /// # Errors
    /// Fails if a matcher is malformed.
    pub fn label_values(
        &self,
        name: &str,
        sets: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
    ) -> Result<Vec<String>, SelectError> {
        let mut values = if sets.is_empty() {
            read(&self.shared.index).label_values(name)
        } else {
            let found = self.matching(sets, range, |entry| entry.value(name).cloned())?;
            sorted(found.into_iter().flatten().collect())
        };
        values.truncate(limit);
        Ok(values)
    }

    fn matching<T>(
        &self,
        sets: &[Vec<Matcher>],
        range: TimeRange,
        take: impl Fn(index::Entry) -> T,
    ) -> Result<Vec<T>, SelectError> {
        let compiled = sets
            .iter()
            .map(|set| compile(set))
            .collect::<Result<Vec<_>, _>>()?;
        let index = read(&self.shared.index);
        Ok(compiled
            .iter()
            .flat_map(|set| active(&index, set, range))
            .map(take)
            .collect())
    }
}

fn compile(matchers: &[Matcher]) -> Result<Vec<CompiledMatcher>, SelectError> {
    let compiled =
        |matcher| CompiledMatcher::new(matcher).map_err(|error| SelectError::Matcher(error.to_string()));
    matchers.iter().map(compiled).collect()
}

/// Returns the matching series that may have samples within the range.
fn active<'a>(index: &'a Index, matchers: &[CompiledMatcher], range: TimeRange) -> Vec<index::Entry<'a>> {
    let found = index.search(matchers);
    let mut active = Vec::with_capacity(found.len());
    for entries in found.chunk_by(|a, b| a.group.id == b.group.id) {
        let samples = entries[0].group.lock();
        let overlapping = entries.iter().filter(|entry| samples.overlaps(entry.row, range));
        active.extend(overlapping.copied());
    }
    active
}

fn sorted(texts: HashSet<Arc<str>>) -> Vec<String> {
    let mut texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
    texts.sort_unstable();
    texts
}
