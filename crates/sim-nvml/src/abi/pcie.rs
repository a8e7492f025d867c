//! The PCIe link of a GPU.

use std::thread;
use std::time::Duration;

use super::exports;
use super::handle::device;
use super::pointer::Out;
use crate::engine::pcie::{Direction, PCIE_WIDTH, pcie_lane_mts};
use crate::engine::status::Status;

/// How long the real call measures before it returns. Clients should therefore not poll it.
const MEASURE: Duration = Duration::from_millis(20);

exports! {
    /// Kilobytes per second.
    fn nvmlDeviceGetPcieThroughput(handle: usize, counter: u32, value: Out<u32>) {
        let device = device(handle)?;
        let direction = match counter {
            0 => Direction::Transmit,
            1 => Direction::Receive,
            _ => return Err(Status::InvalidArgument),
        };
        thread::sleep(MEASURE);
        let (t, seconds) = (device.machine.now(), MEASURE.as_secs_f64());
        let moved = device.gpu().pcie_bytes(direction, t) - device.gpu().pcie_bytes(direction, t - seconds);
        value.put((moved as f64 / seconds / 1_000.0) as u32)
    }

    fn nvmlDeviceGetPcieReplayCounter(handle: usize, value: Out<u32>) {
        let device = device(handle)?;
        value.put(device.gpu().pcie_replays(device.t))
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: usize, generation: Out<u32>) {
        let device = device(handle)?;
        generation.put(device.gpu().pcie_generation(device.t))
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(handle: usize, generation: Out<u32>) {
        generation.put(device(handle)?.gpu().profile.pcie_generation)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(handle: usize, width: Out<u32>) {
        let device = device(handle)?;
        width.put(device.gpu().pcie_width(device.t))
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(handle: usize, width: Out<u32>) {
        device(handle)?;
        width.put(PCIE_WIDTH)
    }

    /// Megatransfers per second of a lane.
    fn nvmlDeviceGetPcieSpeed(handle: usize, speed: Out<u32>) {
        let device = device(handle)?;
        speed.put(pcie_lane_mts(device.gpu().pcie_generation(device.t)))
    }

    /// An enumeration with the same numbers as the generations.
    fn nvmlDeviceGetPcieLinkMaxSpeed(handle: usize, speed: Out<u32>) {
        speed.put(device(handle)?.gpu().profile.pcie_generation)
    }
}
