//! The newest value of each GPU, and the cell of the grid that shows it.
//!
//! A frame usually has the series of the frame before, in the same order. Then no label is read: the decoder of the stream shares the
//! labels of a series between frames, so comparing them compares pointers.

use domain::api::stream::Column;
use domain::series::Labels;

use super::fleet::{Fleet, GpuKey};

/// The values of a frame.
#[derive(Default)]
pub(super) struct Samples(Vec<Sample>);

struct Sample {
    labels: Labels,
    /// The cell of the GPU, as of the last frame with other labels and the last [`Samples::locate`].
    cell: Option<usize>,
    value: f64,
}

impl Samples {
    /// Sets the values of a frame. Looks up only GPUs whose series are not at the same place as in the frame before.
    pub(super) fn take(&mut self, frame: Vec<Column>, fleet: &Fleet) {
        let measured = |column: Column| Some((column.values.last().copied().flatten()?, column.labels));
        let measured: Vec<(f64, Labels)> = frame.into_iter().filter_map(measured).collect();
        self.0.truncate(measured.len());
        for (place, (value, labels)) in measured.into_iter().enumerate() {
            match self.0.get_mut(place) {
                Some(sample) if sample.labels == labels => {
                    // Equal labels of a new connection have other pointers.
                    sample.labels = labels;
                    sample.value = value;
                }
                Some(sample) => *sample = Sample::of(labels, value, fleet),
                None => self.0.push(Sample::of(labels, value, fleet)),
            }
        }
    }

    /// Looks up each GPU again. Call it when the cells of the fleet have changed.
    pub(super) fn locate(&mut self, fleet: &Fleet) {
        for sample in &mut self.0 {
            sample.cell = cell(&sample.labels, fleet);
        }
    }

    /// Returns the values of `count` cells; NaN if a cell has none.
    pub(super) fn values(&self, count: usize) -> Vec<f64> {
        let mut values = vec![f64::NAN; count];
        for sample in &self.0 {
            if let Some(value) = sample.cell.and_then(|cell| values.get_mut(cell)) {
                *value = sample.value;
            }
        }
        values
    }

    /// Returns true if there are no values.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Sample {
    fn of(labels: Labels, value: f64, fleet: &Fleet) -> Self {
        Self {
            cell: cell(&labels, fleet),
            labels,
            value,
        }
    }
}

/// Returns the GPU that the labels of a series name.
pub(super) fn gpu(labels: &Labels) -> Option<GpuKey> {
    let index = labels.get("gpu")?.parse().ok()?;
    Some((labels.get("node")?.to_owned(), index))
}

fn cell(labels: &Labels, fleet: &Fleet) -> Option<usize> {
    fleet.place(&gpu(labels)?)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::fleet::Grouping;
    use super::super::fleet::tests::{nodes, rank};
    use super::*;

    /// Returns a frame with a value of these GPUs of the first node.
    pub(in super::super) fn frame(values: &[(u32, f64)]) -> Vec<Column> {
        let column = |(gpu, value): &(u32, f64)| {
            let pairs = [("node", "node-0000".to_owned()), ("gpu", gpu.to_string())];
            Column {
                labels: Labels::new(pairs).expect("valid labels"),
                values: vec![Some(*value)],
                not_finite: vec![],
                min: vec![],
                max: vec![],
            }
        };
        values.iter().map(column).collect()
    }

    /// Returns four GPUs of one node; those of a run are first.
    fn fleet(gpus_of_run: &[u32]) -> Fleet {
        let key = |gpu: u32| ("node-0000".to_owned(), gpu);
        let ranks: BTreeMap<_, _> = gpus_of_run
            .iter()
            .map(|gpu| (key(*gpu), rank("llama", *gpu)))
            .collect();
        Fleet::of(&nodes(1, 4), &ranks, Grouping::Run)
    }

    fn shown(samples: &Samples) -> Vec<String> {
        samples.values(4).iter().map(f64::to_string).collect()
    }

    #[test]
    fn cells_are_looked_up_again_only_when_series_or_cells_change() {
        let mut samples = Samples::default();
        let before = fleet(&[]);
        samples.take(frame(&[(0, 0.1), (2, 0.3)]), &before);
        assert_eq!(shown(&samples), ["0.1", "NaN", "0.3", "NaN"]);

        // GPU 2 moves to the front.
        let after = fleet(&[2]);
        samples.take(frame(&[(0, 0.5), (2, 0.6)]), &after);
        assert_eq!(shown(&samples), ["0.5", "NaN", "0.6", "NaN"], "known cells");
        samples.locate(&after);
        assert_eq!(shown(&samples), ["0.6", "0.5", "NaN", "NaN"]);

        // Another series is at the place of GPU 0.
        samples.take(frame(&[(1, 0.7), (2, 0.6), (3, 0.9)]), &after);
        assert_eq!(shown(&samples), ["0.6", "NaN", "0.7", "0.9"]);
        samples.take(frame(&[(1, 0.8)]), &after);
        assert_eq!(shown(&samples), ["NaN", "NaN", "0.8", "NaN"], "no old values");
        samples.take(vec![], &after);
        assert!(samples.is_empty());
    }

    #[test]
    fn series_without_a_known_gpu_or_without_a_value_have_no_cell() {
        let mut samples = Samples::default();
        let mut columns = frame(&[(0, 0.1), (9, 0.2), (1, 0.3)]);
        columns[2].values = vec![None];
        columns[0].labels = columns[0].labels.with("gpu", "");
        samples.take(columns, &fleet(&[]));
        assert_eq!(shown(&samples), ["NaN"; 4]);
    }
}
