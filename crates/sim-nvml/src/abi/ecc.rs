//! Memory errors, and the remapped rows that they cause.

use super::exports;
use super::handle::{Device, device, subject};
use super::pointer::Out;
use super::structs::{RowHistogram, SramEcc, version_of};
use crate::engine::ecc::{Errors, Span};
use crate::engine::fault::MemoryKind;
use crate::engine::status::Status;

/// `nvmlMemoryErrorType_t`.
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
/// The number of memory banks. Each has spare rows.
const BANKS: u32 = 2_560;
/// `nvmlMemoryLocation_t`: device memory, all caches and registers, and the number of locations.
const DEVICE_MEMORY: u32 = 2;
const SRAM: u32 = 7;
const LOCATIONS: u32 = 8;

exports! {
    /// Workstation boards have ECC, but it is off.
    fn nvmlDeviceGetEccMode(handle: usize, current: Out<u32>, pending: Out<u32>) {
        let on = u32::from(device(handle)?.gpu().profile.ecc);
        current.put(on)?;
        pending.put(on)
    }

    fn nvmlDeviceGetTotalEccErrors(handle: usize, kind: u32, counter: u32, count: Out<u64>) {
        let device = device_with_ecc(handle)?;
        let errors = device.gpu().ecc(span(counter)?, device.t);
        count.put(of_kind(errors, kind)?)
    }

    /// For the volatile errors of a partitioned GPU, NVML returns only those of the instances, and of these only the uncorrected ones
    /// outside of device memory.
    fn nvmlDeviceGetMemoryErrorCounter(handle: usize, kind: u32, counter: u32, location: u32, count: Out<u64>) {
        let subject = subject(handle)?;
        let (gpu, t) = (subject.device.gpu(), subject.device.t);
        if !gpu.profile.ecc {
            return Err(Status::NotSupported);
        }
        let span = span(counter)?;
        let errors = match location {
            DEVICE_MEMORY => gpu.ecc_in(MemoryKind::Dram, span, t),
            SRAM => gpu.ecc_in(MemoryKind::Sram, span, t),
            0..LOCATIONS => Errors::default(),
            _ => return Err(Status::InvalidArgument),
        };
        let value = of_kind(errors, kind)?;
        let is_given = match subject.instance {
            None => span == Span::Aggregate || gpu.instances(t).is_none(),
            Some(_) => span == Span::Volatile && kind == UNCORRECTED && location != DEVICE_MEMORY,
        };
        if is_given { count.put(value) } else { Err(Status::NotSupported) }
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
        pending.put(u32::from(device.gpu().is_remap_pending(device.t)))?;
        failed.put(0)
    }

    fn nvmlDeviceGetRowRemapperHistogram(handle: usize, histogram: Out<RowHistogram>) {
        let device = device_with_ecc(handle)?;
        let touched = device.gpu().rows_remapped(device.t);
        histogram.put(RowHistogram { max: BANKS - touched, high: touched, partial: 0, low: 0, none: 0 })
    }

    /// The simulated errors in SRAM are parity errors in the multiprocessors.
    fn nvmlDeviceGetSramEccErrorStatus(handle: usize, status: Out<SramEcc>) {
        let device = device_with_ecc(handle)?;
        let version = status.version()?;
        if version != version_of::<SramEcc>(1) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let errors = |span| device.gpu().ecc_in(MemoryKind::Sram, span, device.t);
        let (all, recent) = (errors(Span::Aggregate), errors(Span::Volatile));
        status.put(SramEcc {
            version,
            aggregate_parity: all.uncorrected,
            aggregate_sec_ded: 0,
            aggregate_corrected: all.corrected,
            volatile_parity: recent.uncorrected,
            volatile_sec_ded: 0,
            volatile_corrected: recent.corrected,
            in_l2: 0,
            in_multiprocessors: all.uncorrected,
            in_pcie: 0,
            in_microcontrollers: 0,
            elsewhere: 0,
            threshold_exceeded: u32::from(device.gpu().sram_threshold_exceeded(device.t)),
        })
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

fn span(counter: u32) -> Result<Span, Status> {
    match counter {
        0 => Ok(Span::Volatile),
        1 => Ok(Span::Aggregate),
        _ => Err(Status::InvalidArgument),
    }
}

fn of_kind(errors: Errors, kind: u32) -> Result<u64, Status> {
    match kind {
        CORRECTED => Ok(errors.corrected),
        UNCORRECTED => Ok(errors.uncorrected),
        _ => Err(Status::InvalidArgument),
    }
}
