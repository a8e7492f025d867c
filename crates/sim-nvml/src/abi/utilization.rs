//! How busy a GPU is: rates, and the driver's sample rings.

use super::exports;
use super::handle::device;
use super::pointer::Out;
use super::structs::{Sample, Utilization};
use crate::engine::samples;
use crate::engine::status::Status;

/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: u32 = 1;
/// The averaging period of encoder and decoder, in microseconds.
const VIDEO_PERIOD_US: u32 = 167_000;

exports! {
    fn nvmlDeviceGetUtilizationRates(handle: usize, utilization: Out<Utilization>) {
        let device = device(handle)?;
        let (gpu, memory) = device.gpu().utilization_rates(device.t)?;
        utilization.put(Utilization { gpu, memory })
    }

    /// Training encodes no video.
    fn nvmlDeviceGetEncoderUtilization(handle: usize, utilization: Out<u32>, period_us: Out<u32>) {
        let device = device(handle)?;
        device.gpu().utilization_rates(device.t)?;
        utilization.put(0)?;
        period_us.put(VIDEO_PERIOD_US)
    }

    fn nvmlDeviceGetDecoderUtilization(handle: usize, utilization: Out<u32>, period_us: Out<u32>) {
        let device = device(handle)?;
        device.gpu().utilization_rates(device.t)?;
        utilization.put(0)?;
        period_us.put(VIDEO_PERIOD_US)
    }

    /// Without a buffer, returns the number of samples in the ring. With one, returns the oldest new samples that fit.
    fn nvmlDeviceGetSamples(
        handle: usize,
        kind: u32,
        last_seen_us: u64,
        value_type: Out<u32>,
        count: Out<u32>,
        buffer: Out<Sample>,
    ) {
        let device = device(handle)?;
        let room = count.get()? as usize;
        if buffer.is_null() {
            return count.put(samples::RING as u32);
        }
        if room == 0 {
            return Err(Status::InvalidArgument);
        }
        let machine = &device.machine;
        let mut found = samples::since(device.gpu(), kind, machine.moment(last_seen_us), device.t)?;
        // Rounding to microseconds must not return the last seen sample again.
        found.retain(|sample| machine.unix_us(sample.t) > last_seen_us);
        if found.is_empty() {
            return Err(Status::NotFound);
        }
        found.truncate(room);
        value_type.put(UNSIGNED_INT)?;
        for (index, sample) in found.iter().enumerate() {
            let timestamp_us = machine.unix_us(sample.t);
            buffer.put_at(index, Sample { timestamp_us, value: u64::from(sample.value) })?;
        }
        count.put(found.len() as u32)
    }
}
