//! Memory errors and the rows they cost.

use super::exports;
use super::pointer::Out;
use super::session::{Device, device};
use super::structs::{RowHistogram, SramEcc, version_of};
use crate::engine::status::Status;

/// Banks of memory that each keep spare rows.
const BANKS: u32 = 2_560;
/// `nvmlMemoryLocation_t`: device memory, and how many locations there are.
const DEVICE_MEMORY: u32 = 2;
const LOCATIONS: u32 = 8;

exports! {
    /// Workstation boards have ECC, switched off.
    fn nvmlDeviceGetEccMode(handle: usize, current: Out<u32>, pending: Out<u32>) {
        let on = u32::from(device(handle)?.gpu().profile.ecc);
        current.put(on)?;
        pending.put(on)
    }

    /// Nothing was cleared since the first boot, so volatile and aggregate counts are the same.
    fn nvmlDeviceGetTotalEccErrors(handle: usize, kind: u32, counter: u32, count: Out<u64>) {
        count.put(errors(&device(handle)?, kind, counter)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(handle: usize, kind: u32, counter: u32, location: u32, count: Out<u64>) {
        let device = device(handle)?;
        let in_memory = errors(&device, kind, counter)?;
        match location {
            DEVICE_MEMORY => count.put(in_memory),
            0..LOCATIONS => count.put(0),
            _ => Err(Status::InvalidArgument),
        }
    }

    fn nvmlDeviceGetRemappedRows(
        handle: usize,
        corrected: Out<u32>,
        uncorrected: Out<u32>,
        pending: Out<u32>,
        failed: Out<u32>,
    ) {
        let device = device_with_ecc(handle)?;
        let rows = device.gpu().rows_remapped(device.t);
        corrected.put(0)?;
        uncorrected.put(rows)?;
        pending.put(u32::from(rows > 0))?;
        failed.put(0)
    }

    fn nvmlDeviceGetRowRemapperHistogram(handle: usize, histogram: Out<RowHistogram>) {
        let device = device_with_ecc(handle)?;
        let touched = device.gpu().rows_remapped(device.t);
        histogram.put(RowHistogram { max: BANKS - touched, high: touched, partial: 0, low: 0, none: 0 })
    }

    /// The simulated errors are all in device memory.
    fn nvmlDeviceGetSramEccErrorStatus(handle: usize, status: Out<SramEcc>) {
        device_with_ecc(handle)?;
        let version = status.version()?;
        if version != version_of::<SramEcc>(1) {
            return Err(Status::ArgumentVersionMismatch);
        }
        status.put(SramEcc { version, counts: [0; 11], threshold_exceeded: 0 })
    }
}

fn device_with_ecc(handle: usize) -> Result<Device, Status> {
    let device = device(handle)?;
    if device.gpu().profile.ecc {
        Ok(device)
    } else {
        Err(Status::NotSupported)
    }
}

/// Corrected (0) or uncorrected (1) errors, volatile (0) or aggregate (1).
fn errors(device: &Device, kind: u32, counter: u32) -> Result<u64, Status> {
    if !device.gpu().profile.ecc {
        return Err(Status::NotSupported);
    }
    let errors = device.gpu().ecc(device.t);
    match (kind, counter) {
        (0, 0 | 1) => Ok(errors.corrected),
        (1, 0 | 1) => Ok(errors.uncorrected),
        _ => Err(Status::InvalidArgument),
    }
}
