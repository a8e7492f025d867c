//! NVML calls that the wrapper does not have or gets wrong, made safe in this file and its folder. Together with `raw_events` this is all
//! unsafe code for NVML.
//!
//! - Field values with a scope: the wrapper always reads scope 0, so it can read neither one link nor all links together.
//! - GPM with two samples that are used alternately, the driver's sample rings, and running processes in one call.
//! - Single readings with names and versions that the wrapper does not have.
#![allow(
    unsafe_code,
    reason = "NVML is a C library; this file and its folder contain the calls that the wrapper does not have"
)]

mod fields;
mod gpm;
mod processes;
mod samples;
mod single;

pub(crate) use fields::{ALL_LINKS, FieldBatch};
pub(crate) use gpm::{GPM_INTERVAL_MIN, Gpm};
pub(crate) use processes::{compute_processes, processes_utilization};
pub(crate) use samples::{GPU_UTILIZATION, MEMORY_UTILIZATION, POWER, SampleRing};
pub(crate) use single::{
    clocks_event_reasons, confidential_computing, fabric, memory, mig_instance, remapped_rows, sram_errors,
    virtualization,
};

use std::ffi::{CStr, CString, OsStr, c_char, c_int};

// === The simulator ===

/// The symbol that only the simulator has.
const SIM_CONFIGURE: &CStr = c"lockstep_sim_configure";

/// A library that is the simulator, and its configuration.
pub(crate) struct SimulatedLibrary(libloading::Library);

impl SimulatedLibrary {
    /// Opens the library. Returns `None` if it is not the simulator.
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

    /// Configures what to simulate. Call this before NVML is initialised. The library stays loaded until the process ends.
    pub(crate) fn configure(self, spec: &str) -> Result<(), String> {
        let text = CString::new(spec).map_err(|_| "the specification contains a zero byte".to_owned())?;
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
                    |_| format!("it returned the code {code}"),
                    |error| CStr::from_ptr(error()).to_string_lossy().into_owned(),
                )),
                Err(error) => Err(error.to_string()),
            }
        };
        std::mem::forget(self.0);
        result
    }
}
