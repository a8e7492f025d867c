//! The PCIe link of a GPU.

use super::fault::FaultKind;
use super::gpu::Gpu;

/// One direction of the PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Transmit,
    Receive,
}

/// The number of lanes of every simulated GPU.
pub(crate) const PCIE_WIDTH: u32 = 16;
/// The number of packets per second that a degraded link sends again.
const REPLAYS_PER_SECOND: f64 = 3.0;

impl Gpu {
    /// Returns the bytes over PCIe since the driver was loaded: batches arrive, checkpoints and logs leave.
    pub(crate) fn pcie_bytes(&self, direction: Direction, t: f64) -> u64 {
        let bytes = |t| (self.pcie_bytes_per_second(direction) * self.job.compute_seconds(t)) as u64;
        self.since_load(bytes, t)
    }

    /// Returns the bytes per second while computing.
    fn pcie_bytes_per_second(&self, direction: Direction) -> f64 {
        // Without NVLink, gradients are also sent over PCIe.
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

    /// Returns the number of lanes in use.
    pub(crate) fn pcie_width(&self, t: f64) -> u32 {
        self.degraded(t).map_or(PCIE_WIDTH, |(width, _)| width)
    }

    /// Returns the number of packets sent again since the driver was loaded.
    pub(crate) fn pcie_replays(&self, t: f64) -> u32 {
        let degraded = || {
            let faults = self.faults.iter();
            faults.filter(|fault| matches!(fault.kind, FaultKind::PcieDegraded { .. }))
        };
        let replays = |t| {
            degraded()
                .map(|fault| (REPLAYS_PER_SECOND * fault.window.passed(t)) as u32)
                .sum::<u32>()
        };
        self.since_load(replays, t)
    }

    fn degraded(&self, t: f64) -> Option<(u32, u32)> {
        self.faults_at(t).find_map(|fault| match fault {
            FaultKind::PcieDegraded { width, generation } => Some((width, generation)),
            _ => None,
        })
    }
}

/// Returns the megatransfers per second of one lane of a PCIe generation.
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
