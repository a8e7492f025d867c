//! NVML calls the wrapper lacks or gets wrong, each made safe here. The only unsafe code of this crate.
//!
//! - Field values with a scope: the wrapper always asks scope 0, so neither one link nor all links together can be read.
//!   NVML is known to write one entry past the requested count in NVLink queries, hence the guard entry.
//! - GPM with two samples that are used in turn, instead of an allocation in the driver each second.
//! - Running processes in one call instead of two; it is the dearest call there is.
//! - Remapped rows, and the clocks' event reasons under their new name.
//! - Registering for events without losing the whole set when one GPU cannot.
#![allow(
    unsafe_code,
    reason = "NVML is a C library; every call it takes to fill the wrapper's gaps is in this file"
)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::event::EventSet;
use nvml_wrapper::gpm::GpmSample;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
};

// === Fields ===

/// The scope that means all NVLinks together.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

/// Reads fields by (id, scope) in one call; each has an answer of its own.
pub(crate) fn fields(
    device: &Device<'_>,
    wanted: &[(u32, u32)],
) -> Result<Vec<Result<f64, NvmlError>>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let entry = |&(id, scope): &(u32, u32)| {
        // SAFETY: numbers and a union of numbers; all zeroes is a value of each.
        let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = id;
        value.scopeId = scope;
        value.nvmlReturn = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        value
    };
    let guard = (0, 0);
    let mut values: Vec<_> = wanted.iter().chain([&guard]).map(entry).collect();
    let count = c_int::try_from(wanted.len()).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the handle lives as long as `device`; `values` holds `count` entries and one more.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    values.truncate(wanted.len());
    Ok(values
        .iter()
        .map(|value| nvml_try(value.nvmlReturn).and_then(|()| number(value)))
        .collect())
}

fn number(field: &nvmlFieldValue_t) -> Result<f64, NvmlError> {
    // SAFETY: NVML filled the member that `valueType` names; all are plain numbers.
    unsafe {
        Ok(match field.valueType {
            0 => field.value.dVal,
            1 => f64::from(field.value.uiVal),
            2 => field.value.ulVal as f64,
            3 => field.value.ullVal as f64,
            4 => field.value.sllVal as f64,
            5 => f64::from(field.value.siVal),
            other => return Err(NvmlError::UnexpectedVariant(other)),
        })
    }
}

// === GPM ===

/// NVIDIA calls 100 ms a hard limit of the hardware; values over a shorter time are not valid.
const GPM_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The performance counters of one GPU: two samples in turn, values are averages between them.
pub(crate) struct Gpm<'nvml> {
    before: GpmSample<'nvml>,
    now: GpmSample<'nvml>,
    taken: Instant,
    request: Box<nvmlGpmMetricsGet_t>,
}

impl<'nvml> Gpm<'nvml> {
    /// Takes the first sample.
    pub(crate) fn new(device: &Device<'nvml>) -> Result<Self, NvmlError> {
        // The wrapper frees samples with this symbol and panics where it is missing.
        nvml_sym(device.nvml().lib().nvmlGpmSampleFree.as_ref())?;
        // SAFETY: numbers and pointers; all zeroes is a value of each, and NVML sets the pointers it reads.
        let request = unsafe { Box::new(std::mem::zeroed()) };
        Ok(Self {
            before: device.gpm_sample()?,
            now: device.gpm_sample()?,
            taken: Instant::now(),
            request,
        })
    }

    /// The metrics since the last call and the time they cover; `None` when called again too soon. A metric this GPU does
    /// not have, or has no number for, is NaN.
    pub(crate) fn read(
        &mut self,
        device: &Device<'nvml>,
        ids: &[u32],
    ) -> Result<Option<(Duration, Vec<f64>)>, NvmlError> {
        let interval = self.taken.elapsed();
        if interval < GPM_INTERVAL_MIN {
            return Ok(None);
        }
        self.sample(device)?;
        let values = self.between(device, ids);
        std::mem::swap(&mut self.before, &mut self.now);
        values.map(|values| Some((interval, values)))
    }

    fn sample(&mut self, device: &Device<'nvml>) -> Result<(), NvmlError> {
        let call = nvml_sym(device.nvml().lib().nvmlGpmSampleGet.as_ref())?;
        // SAFETY: device and sample live, and both come from this library.
        nvml_try(unsafe { call(device.handle(), self.now.handle()) })?;
        self.taken = Instant::now();
        Ok(())
    }

    fn between(&mut self, device: &Device<'nvml>, ids: &[u32]) -> Result<Vec<f64>, NvmlError> {
        let call = nvml_sym(device.nvml().lib().nvmlGpmMetricsGet.as_ref())?;
        let request = &mut *self.request;
        // Version 1 here is a plain 1, not a struct version.
        request.version = 1;
        request.numMetrics = u32::try_from(ids.len()).map_err(|_| NvmlError::InvalidArg)?;
        for (metric, &id) in request.metrics.iter_mut().zip(ids) {
            metric.metricId = id;
            metric.value = f64::NAN;
        }
        // SAFETY: both samples live; `numMetrics` entries are filled in, and the array is as long as the header's.
        unsafe {
            request.sample1 = self.before.handle();
            request.sample2 = self.now.handle();
            nvml_try(call(request))?;
        }
        let value =
            |metric: &nvmlGpmMetric_t| nvml_try(metric.nvmlReturn).map_or(f64::NAN, |()| metric.value);
        Ok(request.metrics.iter().take(ids.len()).map(value).collect())
    }
}

// === Processes ===

/// Room for processes at first; a GPU shared by more is rare.
const PROCESSES_FIRST: usize = 64;
/// More processes than a GPU has contexts for.
const PROCESSES_MAX: usize = 4_096;

/// A compute process: pid, and its device memory in bytes where the driver knows it.
pub(crate) fn compute_processes(device: &Device<'_>) -> Result<Vec<(u32, Option<u64>)>, NvmlError> {
    let call = nvml_sym(
        device
            .nvml()
            .lib()
            .nvmlDeviceGetComputeRunningProcesses_v3
            .as_ref(),
    )?;
    let mut room = PROCESSES_FIRST;
    loop {
        // SAFETY: plain numbers.
        let mut infos: Vec<nvmlProcessInfo_t> = vec![unsafe { std::mem::zeroed() }; room];
        let mut count = room as u32;
        // SAFETY: the handle lives, and `infos` has room for `count` entries.
        let code = unsafe { call(device.handle(), &mut count, infos.as_mut_ptr()) };
        if code == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE && room < PROCESSES_MAX {
            // Some may start in between, so ask for more room than was missing.
            room = (count as usize + PROCESSES_FIRST).clamp(room * 2, PROCESSES_MAX);
            continue;
        }
        nvml_try(code)?;
        infos.truncate(count as usize);
        let known = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        return Ok(infos
            .iter()
            .map(|info| (info.pid, known(info.usedGpuMemory)))
            .collect());
    }
}

// === Single readings ===

/// Rows of device memory that were remapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemappedRows {
    pub(crate) corrected: u32,
    pub(crate) uncorrected: u32,
    pub(crate) pending: bool,
    pub(crate) failed: bool,
}

/// Reads the remapped rows.
pub(crate) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle lives, and the four numbers are ours.
    nvml_try(unsafe {
        call(
            device.handle(),
            &mut corrected,
            &mut uncorrected,
            &mut pending,
            &mut failed,
        )
    })?;
    Ok(RemappedRows {
        corrected,
        uncorrected,
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// Why the clocks are held down, as NVML's bits. Older libraries have only the old name.
pub(crate) fn clocks_event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    let new = lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref();
    let call = new.or(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref());
    let mut reasons = 0;
    // SAFETY: the handle lives, and the number is ours.
    nvml_try(unsafe { nvml_sym(call)?(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

// === Events ===

/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 0x8;

/// Adds a GPU's Xid errors to a set. When the GPU cannot, the set is as it was.
pub(crate) fn register_xid(set: &EventSet<'_>, device: &Device<'_>) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: device and set live.
    nvml_try(unsafe { call(device.handle(), XID, set.handle()) })
}

/// Whether two handles are of one device, without asking the device.
pub(crate) fn is_same_device(a: &Device<'_>, b: &Device<'_>) -> bool {
    // SAFETY: the handles are compared, never used.
    unsafe { a.handle() == b.handle() }
}

// === The simulator ===

/// The symbol only a simulated library has.
const SIM_CONFIGURE: &CStr = c"lockstep_sim_configure";

/// Whether a library is simulated, and what to tell it.
pub(crate) struct SimulatedLibrary(libloading::Library);

impl SimulatedLibrary {
    /// Opens the library if it can be opened and is simulated.
    pub(crate) fn open(path: &OsStr) -> Result<Option<Self>, libloading::Error> {
        // SAFETY: loading runs the library's initialisers: the NVML library the user chose, which is loaded anyway.
        let library = unsafe { libloading::Library::new(path)? };
        // SAFETY: the symbol is looked up, not called.
        let simulated = unsafe {
            library
                .get::<*const ()>(SIM_CONFIGURE.to_bytes_with_nul())
                .is_ok()
        };
        Ok(simulated.then_some(Self(library)))
    }

    /// Chooses what to simulate; must come before NVML is initialised. The library stays loaded for good.
    pub(crate) fn configure(self, spec: &str) -> Result<(), String> {
        let text = CString::new(spec).map_err(|_| "the spec holds a zero byte".to_owned())?;
        // SAFETY: the simulator's two symbols have these signatures; `text` lives through the call, and the message is
        // copied before anything else is called.
        let result = unsafe {
            let configure = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> c_int>(SIM_CONFIGURE.to_bytes_with_nul());
            let error = self
                .0
                .get::<unsafe extern "C" fn() -> *const c_char>(c"lockstep_sim_error".to_bytes_with_nul());
            match configure.map(|configure| configure(text.as_ptr())) {
                Ok(0) => Ok(()),
                Ok(code) => Err(error.map_or_else(
                    |_| format!("it answered {code}"),
                    |error| CStr::from_ptr(error()).to_string_lossy().into_owned(),
                )),
                Err(error) => Err(error.to_string()),
            }
        };
        std::mem::forget(self.0);
        result
    }
}
