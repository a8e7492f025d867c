//! What became of the samples of an append.

/// What became of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: u64,
    /// Cells that memory holds more than before.
    pub(crate) cells: i64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.cells += other.cells;
    }
}
