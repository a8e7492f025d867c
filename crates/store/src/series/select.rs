//! Reading: what selections ask for is fetched and decoded first, then handed to a query as a plain value.
//!
//! ```text
//! matchers → series by group → memory (segments, live lanes) + chunks on disk, where memory does not reach back far enough
//!          → pieces, oldest chunk first → merged: ascending, each time once, the first value wins
//! ```
//! Series whose pieces lie on the same axes get the same merged axis, by allocation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use domain::series::matcher::CompiledMatcher;
use domain::series::{Budget, Labels, Matcher, SelectError, Selection, SeriesSet, SeriesSource};
use domain::time::TimestampMs;

use super::fetch::{Wanted, read_chunks};
use super::head::GroupId;
use super::index::{Entry, Index};
use super::merge::merge;
use super::{SeriesStore, read};

/// The answers to some selections, ready to be asked for.
#[derive(Debug, Default)]
pub struct Prefetched {
    sets: HashMap<Selection, SeriesSet>,
}

impl SeriesSource for Prefetched {
    /// Costs no budget: [`SeriesStore::prefetch`] has paid.
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        budget.check_cancelled()?;
        let set = self.sets.get(selection);
        set.cloned()
            .ok_or_else(|| SelectError::Store("the selection was not prefetched".into()))
    }
}

impl SeriesStore {
    /// Reads what some selections ask for, and pays for it.
    ///
    /// # Errors
    /// When the budget is spent, a matcher is malformed, or the database fails.
    pub async fn prefetch(
        &self,
        selections: &[Selection],
        budget: &Budget,
    ) -> Result<Prefetched, SelectError> {
        let mut sets = HashMap::new();
        for selection in selections {
            if !sets.contains_key(selection) {
                sets.insert(selection.clone(), self.read_selection(selection, budget).await?);
            }
        }
        Ok(Prefetched { sets })
    }

    async fn read_selection(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        let (start_ms, end_ms) = (selection.start_ms, selection.end_ms);
        let mut wanted = self.wanted(&selection.matchers, start_ms, end_ms)?;
        budget.take(wanted.values().map(|group| group.series.len() as u64).sum(), 0)?;
        for group in wanted.values_mut() {
            let names = &group.series;
            group.memory = group
                .group
                .lock()
                .snapshot(start_ms, end_ms, |id| names.contains_key(&id));
            budget.take(0, group.memory_cost())?;
        }
        read_chunks(&self.shared, &mut wanted, (start_ms, end_ms), budget).await?;
        let cancelled = budget.cancel_flag();
        let groups: Vec<Wanted> = wanted.into_values().collect();
        let merge = move || merge(groups, start_ms, end_ms, &cancelled);
        tokio::task::spawn_blocking(merge)
            .await
            .map_err(|error| SelectError::Store(Box::new(error)))?
    }

    fn wanted(
        &self,
        matchers: &[Matcher],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
    ) -> Result<BTreeMap<GroupId, Wanted>, SelectError> {
        let compiled = compile(matchers)?;
        let mut wanted: BTreeMap<GroupId, Wanted> = BTreeMap::new();
        let index = read(&self.shared.index);
        for entry in active(&index, &compiled, start_ms, end_ms) {
            let group = wanted
                .entry(entry.group.id)
                .or_insert_with(|| Wanted::new(Arc::clone(&entry.group)));
            group.series.insert(entry.id, entry.labels.clone());
        }
        Ok(wanted)
    }

    /// Labels of the series that match any of the sets and may have samples within the range, sorted; at most `limit`.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn series(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        limit: usize,
    ) -> Result<Vec<Labels>, SelectError> {
        let mut found = self.matching(sets, start_ms, end_ms, |entry| entry.labels.clone())?;
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// Label names of the series that match any of the sets, or of all without a set; sorted.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn label_names(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
    ) -> Result<Vec<String>, SelectError> {
        if sets.is_empty() {
            return Ok(read(&self.shared.index).label_names());
        }
        let found = self.matching(sets, start_ms, end_ms, |entry| entry.labels.clone())?;
        let names: HashSet<Arc<str>> = found
            .iter()
            .flat_map(Labels::iter)
            .map(|label| Arc::clone(&label.name))
            .collect();
        Ok(sorted(names.iter().map(ToString::to_string).collect()))
    }

    /// Values of a label on the series that match any of the sets, or on all without a set; sorted, at most `limit`.
    ///
    /// # Errors
    /// When a matcher is malformed.
    pub fn label_values(
        &self,
        name: &str,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        limit: usize,
    ) -> Result<Vec<String>, SelectError> {
        let mut values = if sets.is_empty() {
            read(&self.shared.index).label_values(name)
        } else {
            let found = self.matching(sets, start_ms, end_ms, |entry| {
                entry.labels.get(name).map(str::to_owned)
            })?;
            sorted(
                found
                    .into_iter()
                    .flatten()
                    .collect::<HashSet<_>>()
                    .into_iter()
                    .collect(),
            )
        };
        values.truncate(limit);
        Ok(values)
    }

    fn matching<T>(
        &self,
        sets: &[Vec<Matcher>],
        start_ms: TimestampMs,
        end_ms: TimestampMs,
        take: impl Fn(&Entry) -> T,
    ) -> Result<Vec<T>, SelectError> {
        let compiled = sets
            .iter()
            .map(|set| compile(set))
            .collect::<Result<Vec<_>, _>>()?;
        let index = read(&self.shared.index);
        Ok(compiled
            .iter()
            .flat_map(|set| active(&index, set, start_ms, end_ms))
            .map(take)
            .collect())
    }
}

fn compile(matchers: &[Matcher]) -> Result<Vec<CompiledMatcher>, SelectError> {
    let compiled =
        |matcher| CompiledMatcher::new(matcher).map_err(|error| SelectError::Matcher(error.to_string()));
    matchers.iter().map(compiled).collect()
}

/// The matching series that may have samples within the range.
fn active<'a>(
    index: &'a Index,
    matchers: &[CompiledMatcher],
    start_ms: TimestampMs,
    end_ms: TimestampMs,
) -> Vec<&'a Entry> {
    let mut found = index.search(matchers);
    found.retain(|entry| entry.group.lock().overlaps(entry.row, start_ms, end_ms));
    found
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}
