//! Metrics with the names of a GPU exporter.

use crate::signal::Shape;

/// The metrics, and how they behave: a third constant, the rest random walks, ratios and counters.
const METRICS: [(&str, Shape); 30] = [
    ("DCGM_FI_DEV_GPU_TEMP", Shape::Temperature),
    ("DCGM_FI_DEV_POWER_USAGE", Shape::Power),
    ("DCGM_FI_DEV_FB_TOTAL", Shape::Constant),
    ("DCGM_FI_DEV_GPU_UTIL", Shape::Percent),
    ("DCGM_FI_PROF_SM_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Shape::Counter(420_000)),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Shape::Constant),
    ("DCGM_FI_DEV_SM_CLOCK", Shape::Clock),
    ("DCGM_FI_DEV_FB_USED", Shape::Plateau),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", Shape::Counter(90_000_000_000)),
    ("DCGM_FI_DEV_XID_ERRORS", Shape::Constant),
    ("DCGM_FI_DEV_MEMORY_TEMP", Shape::Temperature),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Shape::Percent),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Shape::Constant),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", Shape::Counter(4_000_000_000)),
    ("DCGM_FI_DEV_MEM_CLOCK", Shape::Constant),
    ("DCGM_FI_DEV_ENC_UTIL", Shape::Constant),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Shape::Ratio(6)),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Shape::Constant),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", Shape::Counter(90_000_000_000)),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Shape::RareCounter),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", Shape::Power),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Shape::Constant),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Shape::Ratio(4)),
    ("DCGM_FI_DEV_FB_FREE", Shape::Plateau),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", Shape::Constant),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", Shape::Counter(4_000_000_000)),
    ("DCGM_FI_DEV_FAN_SPEED", Shape::Constant),
    ("DCGM_FI_PROF_SM_OCCUPANCY", Shape::Ratio(4)),
];

/// Returns the name of a metric. After 30 metrics the names repeat with a number.
pub(crate) fn name(metric: u32) -> String {
    let (name, _) = METRICS[metric as usize % METRICS.len()];
    match metric as usize / METRICS.len() {
        0 => name.to_owned(),
        round => format!("{name}_{round}"),
    }
}

/// Returns how a metric behaves.
pub(crate) fn shape(metric: u32) -> Shape {
    METRICS[metric as usize % METRICS.len()].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_is_constant() {
        let constant = METRICS.iter().filter(|(_, shape)| *shape == Shape::Constant);
        assert_eq!(constant.count() * 3, METRICS.len());
    }
}
