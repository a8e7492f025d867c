//! Joins consecutive batches of the same series.
//!
//! An agent that backfills one-second batches can have 60 batches queued, each with one tick of the same series. Stored one by
//! one, the write-ahead log would contain these series 60 times, and the head would look up and lock their groups 60 times.

use std::sync::Arc;

use domain::time::TimestampMs;

use super::Block;

/// Returns the blocks of all batches in their order. Where consecutive batches have the same shapes and later times, their
/// blocks are joined to one block per shape.
#[must_use]
pub fn joined(batches: Vec<Vec<Block>>) -> Vec<Block> {
    let mut all = Vec::new();
    let mut row: Vec<Vec<Block>> = Vec::new();
    for batch in batches {
        if row.last().is_some_and(|last| !continues(last, &batch)) {
            all.append(&mut merged(std::mem::take(&mut row)));
        }
        row.push(batch);
    }
    all.append(&mut merged(row));
    all
}

/// Returns true if each block has the same series as the one before, and later times.
fn continues(before: &[Block], after: &[Block]) -> bool {
    before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| {
            Arc::ptr_eq(&before.shape, &after.shape) && before.times_ms.last() < after.times_ms.first()
        })
}

/// Joins batches of which each continues the one before.
fn merged(mut row: Vec<Vec<Block>>) -> Vec<Block> {
    if row.len() < 2 {
        return row.pop().unwrap_or_default();
    }
    let blocks = row.first().map_or(0, Vec::len);
    (0..blocks)
        .map(|at| {
            let parts: Vec<&Block> = row.iter().map(|batch| &batch[at]).collect();
            merged_block(&parts)
        })
        .collect()
}

fn merged_block(parts: &[&Block]) -> Block {
    let times_ms: Vec<TimestampMs> = parts.iter().flat_map(|part| &part.times_ms).copied().collect();
    let shape = Arc::clone(&parts[0].shape);
    let mut values = Vec::with_capacity(shape.series().len() * times_ms.len());
    for series in 0..shape.series().len() {
        for part in parts {
            let ticks = part.times_ms.len();
            values.extend_from_slice(&part.values[series * ticks..][..ticks]);
        }
    }
    Block {
        shape,
        times_ms,
        values,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::super::shape::of_rows;
    use super::*;

    /// Each value encodes its series and time.
    fn block(shape: &Arc<Shape>, times_ms: &[TimestampMs]) -> Block {
        let values = (0..shape.series().len()).flat_map(|series| {
            times_ms
                .iter()
                .map(move |time| (series * 1_000) as f64 + *time as f64)
        });
        Block {
            shape: Arc::clone(shape),
            times_ms: times_ms.to_vec(),
            values: values.collect(),
        }
    }

    /// Returns the number of series and the times of each block, and checks its values.
    fn told(blocks: &[Block]) -> Vec<(usize, Vec<TimestampMs>)> {
        for it in blocks {
            it.check().expect("the parts fit together");
            assert_eq!(it.values, block(&it.shape, &it.times_ms).values);
        }
        let one = |block: &Block| (block.shape.series().len(), block.times_ms.clone());
        blocks.iter().map(one).collect()
    }

    #[test]
    fn ticks_of_the_same_shapes_become_one_block_each() {
        let (gpu, host) = (of_rows(3), of_rows(2));
        let tick = |time| vec![block(&gpu, &[time]), block(&host, &[time, time + 1])];
        let all = joined(vec![tick(1), tick(3), tick(5)]);
        assert_eq!(told(&all), [(3, vec![1, 3, 5]), (2, vec![1, 2, 3, 4, 5, 6])]);
    }

    #[test]
    fn others_stay_apart_and_in_their_order() {
        let (gpu, host) = (of_rows(3), of_rows(2));
        let tick = |time| vec![block(&gpu, &[time])];
        let both = vec![block(&gpu, &[4]), block(&host, &[4])];
        // Earlier times, equal times, other series, the same series again, and no times.
        let all = joined(vec![
            tick(2),
            tick(1),
            tick(1),
            both,
            tick(5),
            tick(6),
            vec![],
            tick(7),
        ]);
        let expected = [
            (3, vec![2]),
            (3, vec![1]),
            (3, vec![1]),
            (3, vec![4]),
            (2, vec![4]),
            (3, vec![5, 6]),
            (3, vec![7]),
        ];
        assert_eq!(told(&all), expected);
        // Equal series, but resolved separately, so the shapes are different.
        let alike = of_rows(3);
        let all = joined(vec![tick(1), vec![block(&alike, &[2])], vec![block(&host, &[3])]]);
        assert_eq!(told(&all), [(3, vec![1]), (3, vec![2]), (2, vec![3])]);
        assert!(joined(vec![]).is_empty());
    }
}
