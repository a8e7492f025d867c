//! The id of a group.

/// The id of a group. It is the key of the group's rows on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupId(pub(crate) i64);
