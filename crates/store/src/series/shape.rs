//! A shape: series that are sent together and looked up once.
//!
//! A connection sends the same series repeatedly. So the store looks up once where the samples of each series go: for each
//! group, its rows and the columns of the shape. Storing a tick then takes one copy per group.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::series::Frame;
use domain::series::batch::FrameError;
use domain::time::TimestampMs;

use super::codec::put_ids;
use super::group_id::GroupId;
use super::head::Group;
use super::index::Index;
use super::{AppendError, SeriesId, SeriesStore, read};

/// Series that are sent together. Valid while its owner keeps sending them.
#[derive(Debug)]
pub struct Shape {
    series: Box<[SeriesId]>,
    /// The series in the encoding of the write-ahead log.
    pub(crate) encoded: Box<[u8]>,
    pub(crate) parts: Box<[Part]>,
    /// The epoch of the index when all series were last known to exist.
    seen_epoch: AtomicU64,
}

/// The series of a shape that are in one group.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) group: Arc<Group>,
    /// Rows of the group, without duplicates.
    pub(crate) rows: Box<[u32]>,
    /// The index in the shape of each row.
    pub(crate) columns: Box<[u32]>,
}

/// Samples of the series of a shape, at times that they share.
#[derive(Debug, Clone)]
pub struct Block {
    /// The series of the samples.
    pub shape: Arc<Shape>,
    /// Strictly ascending.
    pub times_ms: Vec<TimestampMs>,
    /// Series-major, `shape.series().len() * times_ms.len()` values; [`domain::series::ABSENT`] where there is no sample.
    pub values: Vec<f64>,
}

impl SeriesStore {
    /// Looks up series that will be sent together, usually many times.
    ///
    /// # Errors
    /// Fails if an id is invalid.
    pub fn shape(&self, series: Vec<SeriesId>) -> Result<Arc<Shape>, AppendError> {
        Shape::new(&read(&self.shared.index), series.into()).map(Arc::new)
    }
}

impl Shape {
    pub(crate) fn new(index: &Index, series: Box<[SeriesId]>) -> Result<Self, AppendError> {
        let mut encoded = Vec::new();
        put_ids(&mut encoded, &series);
        Ok(Self {
            parts: parts(index, &series)?,
            series,
            encoded: encoded.into(),
            seen_epoch: AtomicU64::new(index.epoch()),
        })
    }

    /// Creates a shape without groups, to encode series that were decoded.
    pub(crate) fn detached(series: Box<[SeriesId]>) -> Self {
        let mut encoded = Vec::new();
        put_ids(&mut encoded, &series);
        Self {
            parts: Box::default(),
            series,
            encoded: encoded.into(),
            seen_epoch: AtomicU64::default(),
        }
    }

    /// Returns the series in the order in which they were given.
    #[must_use]
    pub fn series(&self) -> &[SeriesId] {
        &self.series
    }

    /// Records that its series are still in use. Fails if one of them has been removed.
    pub(crate) fn note_use(&self, index: &Index) -> Result<(), AppendError> {
        // Only once per epoch, because this runs for every append.
        if self.seen_epoch.load(Ordering::Relaxed) != index.epoch() {
            if let Some(unknown) = self.series.iter().find(|id| !index.note_use(**id)) {
                return Err(AppendError::UnknownSeries(*unknown));
            }
            self.seen_epoch.store(index.epoch(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// If a series occurs twice, its second column gets a separate part, which then finds the samples of the first as duplicates or
/// conflicts.
fn parts(index: &Index, series: &[SeriesId]) -> Result<Box<[Part]>, AppendError> {
    let mut parts: Vec<(Arc<Group>, Vec<u32>, Vec<u32>)> = Vec::new();
    let mut by_group: HashMap<GroupId, usize> = HashMap::new();
    for (column, id) in (0_u32..).zip(series) {
        let entry = index.entry(*id).ok_or(AppendError::UnknownSeries(*id))?;
        let known = by_group.get(&entry.group.id).copied();
        let at = known
            .filter(|at| !parts[*at].1.contains(&entry.row))
            .unwrap_or_else(|| {
                parts.push((Arc::clone(entry.group), Vec::new(), Vec::new()));
                parts.len() - 1
            });
        by_group.insert(entry.group.id, at);
        parts[at].1.push(entry.row);
        parts[at].2.push(column);
    }
    Ok(parts
        .into_iter()
        .map(|(group, rows, columns)| Part::new(group, &rows, &columns))
        .collect())
}

impl Part {
    /// Sorts the rows, so that shapes of the same series are the same for the group in whatever order they are sent.
    fn new(group: Arc<Group>, rows: &[u32], columns: &[u32]) -> Self {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|at| rows[*at]);
        Self {
            group,
            rows: order.iter().map(|at| rows[*at]).collect(),
            columns: order.iter().map(|at| columns[*at]).collect(),
        }
    }
}

impl Block {
    /// Checks that the lengths match and the times ascend.
    ///
    /// # Errors
    /// Fails if the number of values is not series × times, or the times are not strictly ascending.
    pub fn check(&self) -> Result<(), FrameError> {
        Frame::<SeriesId>::check_parts(self.shape.series.len(), &self.times_ms, self.values.len())
    }
}

/// Returns a shape of the first `count` series of a new index.
#[cfg(test)]
pub(crate) fn of_rows(count: u32) -> Arc<Shape> {
    let mut index = Index::new(count as usize);
    let labels = |n: u32| {
        domain::series::Labels::new([("__name__", "m"), ("n", &n.to_string())]).expect("good labels")
    };
    let ids = (0..count)
        .map(|n| index.resolve(&labels(n)).expect("there is room"))
        .collect();
    Arc::new(Shape::new(&index, ids).expect("they are there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_by_group_with_rows_ascending_and_each_once() {
        let mut index = Index::new(100);
        let mut id = |metric: &str, gpu: &str| {
            let labels = domain::series::Labels::new([("__name__", metric), ("node", "n"), ("gpu", gpu)]);
            index
                .resolve(&labels.expect("good labels"))
                .expect("there is room")
        };
        let (a0, a1, b0) = (id("a", "0"), id("a", "1"), id("b", "0"));
        let shape = Shape::new(&index, [a1, b0, a0, a1].into()).expect("all are known");
        let parts: Vec<(&str, &[u32], &[u32])> = shape
            .parts
            .iter()
            .map(|part| (&*part.group.metric, &*part.rows, &*part.columns))
            .collect();
        let expected: [(&str, &[u32], &[u32]); 3] =
            [("a", &[0, 1], &[2, 0]), ("b", &[0], &[1]), ("a", &[1], &[3])];
        assert_eq!(parts, expected);
        assert!(matches!(
            Shape::new(&index, [SeriesId(99)].into()),
            Err(AppendError::UnknownSeries(SeriesId(99)))
        ));
    }

    #[test]
    fn a_series_forgotten_since_is_noticed() {
        let mut index = Index::new(10);
        let labels = domain::series::Labels::new([("__name__", "a")]).expect("good labels");
        let id = index.resolve(&labels).expect("there is room");
        let shape = Shape::new(&index, [id].into()).expect("it is known");
        assert!(shape.note_use(&index).is_ok());
        index.remove(&[id]);
        assert!(shape.note_use(&index).is_err());
    }
}
