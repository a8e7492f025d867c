//! Reads the driver's own sample rings: about seven samples per second. No sample is lost, and none is read twice.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlValue_t};

/// Kinds of rings (`nvmlSamplingType_t`): power in milliwatts, utilization of GPU and memory in percent.
pub(crate) const POWER: u32 = 0;
pub(crate) const GPU_UTILIZATION: u32 = 1;
pub(crate) const MEMORY_UTILIZATION: u32 = 2;

/// The minimum and maximum room for samples. The rings of real drivers contain about 70 to 120.
const ROOM_MIN: u32 = 72;
const ROOM_MAX: u32 = 1_024;

/// One ring of one GPU, and the position up to which it was read.
pub(crate) struct SampleRing {
    kind: u32,
    /// The driver's timestamp of the last sample. The driver's clock may differ from the agent's.
    last_seen: u64,
    buffer: Vec<nvmlSample_t>,
}

/// The samples since the last reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Since {
    pub(crate) mean: f64,
    pub(crate) max: f64,
}

impl SampleRing {
    /// Creates a ring of this kind that was not read yet.
    pub(crate) fn new(kind: u32) -> Self {
        Self {
            kind,
            last_seen: 0,
            buffer: Vec::new(),
        }
    }

    /// Reads the new samples. Returns `None` if there are none, as in an idle GPU. The first reading uses only the newest sample, because
    /// older ones do not belong to this second.
    pub(crate) fn read(&mut self, device: &Device<'_>) -> Result<Option<Since>, NvmlError> {
        if self.buffer.is_empty() {
            self.make_room(device)?;
        }
        let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSamples.as_ref())?;
        let (mut kind_of_value, mut count) = (0, self.buffer.len() as u32);
        let (seen, samples) = (self.last_seen, self.buffer.as_mut_ptr());
        // SAFETY: the handle lives, and `buffer` has room for `count` entries.
        let code = unsafe {
            call(
                device.handle(),
                self.kind,
                seen,
                &mut kind_of_value,
                &mut count,
                samples,
            )
        };
        match nvml_try(code) {
            Err(NvmlError::NotFound) => return Ok(None),
            other => other?,
        }
        let new = &self.buffer[..self.buffer.len().min(count as usize)];
        let Some(last) = new.iter().map(|sample| sample.timeStamp).max() else {
            return Ok(None);
        };
        let first_look = std::mem::replace(&mut self.last_seen, last) == 0;
        let from = if first_look { last } else { seen + 1 };
        let fresh = new.iter().filter(|sample| sample.timeStamp >= from);
        Ok(summary(
            fresh.map(|sample| number(sample.sampleValue, kind_of_value)),
        ))
    }

    fn make_room(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSamples.as_ref())?;
        let (mut kind_of_value, mut count, none) = (0, 0, std::ptr::null_mut());
        // SAFETY: the handle lives; without a buffer only the count is written.
        let code = unsafe {
            call(
                device.handle(),
                self.kind,
                0,
                &mut kind_of_value,
                &mut count,
                none,
            )
        };
        match nvml_try(code) {
            Ok(()) | Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
        // SAFETY: a number and a union of numbers.
        let empty = unsafe { std::mem::zeroed() };
        self.buffer = vec![empty; count.clamp(ROOM_MIN, ROOM_MAX) as usize];
        Ok(())
    }
}

fn summary(values: impl Iterator<Item = f64>) -> Option<Since> {
    let (count, sum, max) = values.fold((0_u32, 0.0, f64::NEG_INFINITY), |(count, sum, max), value| {
        (count + 1, sum + value, value.max(max))
    });
    let mean = sum / f64::from(count);
    (count > 0).then_some(Since { mean, max })
}

fn number(value: nvmlValue_t, kind: u32) -> f64 {
    // SAFETY: NVML filled the member that `kind` names; all are plain numbers.
    unsafe {
        match kind {
            0 => value.dVal,
            3 => value.ullVal as f64,
            // Unsigned, or a type of a newer library: rings contain small whole numbers.
            _ => f64::from(value.uiVal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_become_a_mean_and_a_peak() {
        assert_eq!(summary([].into_iter()), None);
        let since = summary([10.0, 30.0, 20.0].into_iter());
        assert_eq!(
            since,
            Some(Since {
                mean: 20.0,
                max: 30.0
            })
        );
    }
}
