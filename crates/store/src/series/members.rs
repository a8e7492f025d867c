//! The series of a group that a selection wants.

use std::sync::Arc;

use super::SeriesId;

/// The wanted series of a group and their rows in it, ascending by id.
#[derive(Debug, Clone)]
pub(crate) struct Members(Arc<[(SeriesId, u32)]>);

impl Members {
    /// Creates the members from series in ascending order of their ids.
    pub(crate) fn new(members: impl Iterator<Item = (SeriesId, u32)>) -> Self {
        Self(members.collect())
    }

    /// Returns the index of a series among the wanted ones.
    pub(crate) fn place(&self, id: SeriesId) -> Option<usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    pub(crate) fn has(&self, id: SeriesId) -> bool {
        self.place(id).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeriesId, u32)> {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
