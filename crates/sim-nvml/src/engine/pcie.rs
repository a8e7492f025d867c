//! The PCIe link of a GPU.

use super::fault::Trouble;
use super::gpu::Gpu;

/// One direction of the PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Transmit,
    Receive,
}

/// Lanes of every simulated GPU.
pub(crate) const PCIE_WIDTH: u32 = 16;
/// Packets a degraded link has to send again in a second.
const REPLAYS_PER_SECOND: f64 = 3.0;

impl Gpu {
    /// Bytes over PCIe since the driver was loaded: batches come in, checkpoints and logs go out.
    pub(crate) fn pcie_bytes(&self, direction: Direction, t: f64) -> u64 {
        let bytes = |t| (self.pcie_bytes_per_second(direction) * self.job.compute_seconds(t)) as u64;
        self.since_load(bytes, t)
    }

    /// While computing.
    fn pcie_bytes_per_second(&self, direction: Direction) -> f64 {
        // Without NVLink the gradients travel over PCIe too.
        let gradients = if self.profile.nvlink.is_none() && self.has_peers {
            9.0e9
        } else {
            0.0
        };
        match direction {
            Direction::Transmit => 0.4e9 + gradients,
            Direction::Receive => 2.1e9 + gradients,
        }
    }

    pub(crate) fn pcie_generation(&self, t: f64) -> u32 {
        let trained = if self.job.is_training(t) {
            self.profile.pcie_generation
        } else {
            self.profile.pcie_generation_idle
        };
        self.degraded(t)
            .map_or(trained, |(_, generation)| trained.min(generation))
    }

    /// Lanes in use.
    pub(crate) fn pcie_width(&self, t: f64) -> u32 {
        self.degraded(t).map_or(PCIE_WIDTH, |(width, _)| width)
    }

    /// Packets sent again since the driver was loaded.
    pub(crate) fn pcie_replays(&self, t: f64) -> u32 {
        let degraded = || {
            let faults = self.faults.iter();
            faults.filter(|fault| matches!(fault.trouble, Trouble::PcieDegraded { .. }))
        };
        let replays = |t| {
            degraded()
                .map(|fault| (REPLAYS_PER_SECOND * fault.window.passed(t)) as u32)
                .sum::<u32>()
        };
        self.since_load(replays, t)
    }

    fn degraded(&self, t: f64) -> Option<(u32, u32)> {
        self.troubles(t).find_map(|trouble| match trouble {
            Trouble::PcieDegraded { width, generation } => Some((width, generation)),
            _ => None,
        })
    }
}

/// Megatransfers a second of one lane in a PCIe generation.
pub(crate) fn pcie_lane_mts(generation: u32) -> u32 {
    match generation {
        1 => 2_500,
        2 => 5_000,
        3 => 8_000,
        4 => 16_000,
        5 => 32_000,
        _ => 64_000,
    }
}
