//! GPM, the performance counters of Hopper and newer GPUs. Two samples are used alternately instead of allocating one in the driver each
//! second; values are averages between the two. They cover a whole GPU or one MIG instance.

use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::gpm::GpmSample;
use nvml_wrapper_sys::bindings::nvmlGpmMetricsGet_t;

/// NVIDIA documents 100 ms as a hard limit of the hardware. Values over a shorter time are not valid.
pub(crate) const GPM_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The performance counters of one GPU or MIG instance.
pub(crate) struct Gpm<'nvml> {
    device: Device<'nvml>,
    instance: Option<u32>,
    before: GpmSample<'nvml>,
    now: GpmSample<'nvml>,
    taken: Instant,
    request: Box<nvmlGpmMetricsGet_t>,
}

impl<'nvml> Gpm<'nvml> {
    /// Takes the first sample, of a MIG instance if one is given, otherwise of the whole GPU.
    pub(crate) fn new(device: &Device<'nvml>, instance: Option<u32>) -> Result<Self, NvmlError> {
        // The wrapper frees samples with this symbol, and panics if it is missing.
        nvml_sym(device.nvml().lib().nvmlGpmSampleFree.as_ref())?;
        let sample = || match instance {
            None => device.gpm_sample(),
            Some(instance) => device.gpm_mig_sample(instance),
        };
        // SAFETY: numbers and pointers; all zeroes is a value of each, and NVML sets the pointers it reads.
        let request = unsafe { Box::new(std::mem::zeroed()) };
        Ok(Self {
            before: sample()?,
            now: sample()?,
            taken: Instant::now(),
            // SAFETY: the same handle, of the same library, for as long as that lives.
            device: unsafe { Device::new(device.handle(), device.nvml()) },
            instance,
            request,
        })
    }

    /// Takes a sample and reads the metrics since the previous one. Returns the time that they cover, or `None` if that is shorter than
    /// [`GPM_INTERVAL_MIN`].
    pub(crate) fn query(&mut self, ids: impl Iterator<Item = u32>) -> Result<Option<Duration>, NvmlError> {
        let interval = self.taken.elapsed();
        if interval < GPM_INTERVAL_MIN {
            return Ok(None);
        }
        self.sample()?;
        let result = self.between(ids);
        std::mem::swap(&mut self.before, &mut self.now);
        result.map(|()| Some(interval))
    }

    /// Returns the answers, in the order of the ids. NaN becomes `NoData`: the counter had no value over that time.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Result<f64, NvmlError>> {
        let count = self.request.numMetrics as usize;
        let metrics = self.request.metrics.iter().take(count);
        metrics.map(|metric| match nvml_try(metric.nvmlReturn) {
            Ok(()) if metric.value.is_nan() => Err(NvmlError::NoData),
            answer => answer.map(|()| metric.value),
        })
    }

    fn sample(&mut self) -> Result<(), NvmlError> {
        let lib = self.device.nvml().lib();
        // SAFETY: device and sample live, and both come from this library.
        nvml_try(unsafe {
            match self.instance {
                None => nvml_sym(lib.nvmlGpmSampleGet.as_ref())?(self.device.handle(), self.now.handle()),
                Some(instance) => {
                    let call = nvml_sym(lib.nvmlGpmMigSampleGet.as_ref())?;
                    call(self.device.handle(), instance, self.now.handle())
                }
            }
        })?;
        self.taken = Instant::now();
        Ok(())
    }

    fn between(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlGpmMetricsGet.as_ref())?;
        let request = &mut *self.request;
        // The version of this struct is a plain 1, not a struct version.
        request.version = 1;
        request.numMetrics = 0;
        for (metric, id) in request.metrics.iter_mut().zip(ids) {
            metric.metricId = id;
            metric.value = f64::NAN;
            request.numMetrics += 1;
        }
        // SAFETY: both samples live; `numMetrics` entries are filled in, and the array is as long as the header's.
        unsafe {
            request.sample1 = self.before.handle();
            request.sample2 = self.now.handle();
            nvml_try(call(request))
        }
    }
}
