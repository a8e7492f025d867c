//! Series and samples like those of GPUs.

use domain::series::Labels;
use store::SeriesStore;
use store::series::{Append, Block, SeriesId};

pub(crate) const GPUS: usize = 8;
pub(crate) const METRICS: usize = 30;

/// Returns the labels of a metric of a node's GPU, as an agent names them.
pub(crate) fn labels(metric: usize, node: usize, gpu: usize) -> Labels {
    Labels::new([
        ("__name__", format!("gpu_metric_{metric}")),
        ("node", format!("node-{node:04}")),
        ("gpu", gpu.to_string()),
        (
            "uuid",
            format!(
                "GPU-{:016x}-{gpu:04x}",
                (node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ),
        ),
        ("model", "H100 80GB HBM3".to_owned()),
    ])
    .unwrap()
}

pub(crate) async fn append(store: &SeriesStore, ids: &[SeriesId], times_ms: &[i64], values: Vec<f64>) {
    let block = Block {
        shape: store.shape(ids.to_vec()).unwrap(),
        times_ms: times_ms.to_vec(),
        values,
    };
    let append = Append {
        source: None,
        blocks: vec![block],
    };
    let now_ms = *times_ms.last().unwrap();
    let appended = store.append(append, now_ms).await.unwrap();
    assert_eq!(appended.too_old + appended.conflicts, 0);
}

/// Returns values that move like a power draw, for a frame of `series` series and `ticks` ticks.
pub(crate) fn values(series: usize, ticks: usize, random: &mut u64) -> Vec<f64> {
    let mut values = Vec::with_capacity(series * ticks);
    for _ in 0..series {
        let mut level = 40_000_i64;
        for _ in 0..ticks {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            level += (*random % 201) as i64 - 100;
            values.push(level as f64 / 100.0);
        }
    }
    values
}
