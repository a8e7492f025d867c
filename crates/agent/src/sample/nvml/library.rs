//! Selects the NVML library to open, and explains why there is none. Simulated GPUs are never reported as real: a library that has the
//! simulator's symbol is reported as simulated, however it was found.

use std::ffi::OsString;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::meter::{Meter, OPEN_TIMEOUT};
use super::raw::SimulatedLibrary;
use crate::config::NvmlSource;

/// The library that the driver installs.
const SYSTEM_LIBRARY: &str = "libnvidia-ml.so.1";
/// The file name of the simulator. It is beside the executable.
const SIMULATOR: &str = "libsim_nvml.so";
/// The environment variable with the specification of a simulator that the agent did not configure.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";

/// Why GPUs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The simulator was not found.
    #[error(
        "the simulator {SIMULATOR} is not beside the executable ({beside:?}); build it with `cargo build -p sim-nvml`, or set its path with --nvml-library"
    )]
    NoSimulator {
        /// The path where it was expected.
        beside: PathBuf,
    },
    /// The library is not the simulator.
    #[error(
        "{path:?} is not the simulator, so it cannot simulate {spec:?}; remove --simulate or --nvml-library"
    )]
    NotSimulator {
        /// The library.
        path: PathBuf,
        /// The requested simulation.
        spec: String,
    },
    /// The library cannot be loaded.
    #[error("the NVML library {path:?} cannot be loaded")]
    Load {
        /// The library.
        path: PathBuf,
        /// The cause.
        #[source]
        source: libloading::Error,
    },
    /// The simulator does not accept the specification.
    #[error("cannot simulate {spec:?}: {reason}")]
    Spec {
        /// The specification.
        spec: String,
        /// The simulator's message.
        reason: String,
    },
}

/// A library that can be opened repeatedly.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    path: OsString,
    simulated: Option<String>,
}

/// NVML, initialised.
pub(crate) struct Opened {
    pub(crate) nvml: Nvml,
    /// The simulated specification. `None` if the GPUs are real.
    pub(crate) simulated: Option<String>,
}

impl Library {
    /// Finds the library. If it is the simulator, configures it.
    ///
    /// # Errors
    /// Returns an error only if a simulation was requested but is not available. A machine without GPUs is not an error.
    pub(crate) fn find(source: &NvmlSource) -> Result<Self, LibraryError> {
        let (path, simulated) = match source {
            NvmlSource::System => (SYSTEM_LIBRARY.into(), None),
            NvmlSource::Path(path) => (path.clone().into(), None),
            NvmlSource::Simulated { library, spec } => {
                let path = library.clone().map_or_else(beside_executable, Ok)?;
                configure(&path, spec)?;
                (path.into(), Some(spec.clone()))
            }
        };
        Ok(Self { path, simulated })
    }

    /// Opens and initialises NVML.
    pub(crate) fn open(&self, meter: &Meter) -> Result<Opened, NvmlError> {
        let nvml = meter.call_within(OPEN_TIMEOUT, None, || Nvml::builder().lib_path(&self.path).init())?;
        let simulated = self.simulated.clone().or_else(|| self.detect_simulator());
        Ok(Opened { nvml, simulated })
    }

    /// Returns a sentence that explains to users why there are no GPUs.
    pub(crate) fn why_missing(&self, error: &NvmlError) -> String {
        let path = self.path.to_string_lossy();
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
                format!("no NVIDIA driver: the library {path} does not exist or cannot be loaded")
            }
            NvmlError::DriverNotLoaded => {
                "the NVIDIA driver is installed but not loaded; load it with `modprobe nvidia`".to_owned()
            }
            NvmlError::LibRmVersionMismatch => {
                "the NVIDIA driver was changed while the system was running: its library and its kernel modules have different versions; \
                 reload the modules or reboot, and restart the agent if this message remains"
                    .to_owned()
            }
            NvmlError::Uninitialized => "NVML was shut down by other code in the agent's process".to_owned(),
            NvmlError::NoPermission => {
                "no permission to use the NVIDIA driver; the agent needs the devices /dev/nvidia*".to_owned()
            }
            other => format!("cannot initialise NVML ({path}): {other}"),
        }
    }

    fn detect_simulator(&self) -> Option<String> {
        let simulated = SimulatedLibrary::open(&self.path).ok().flatten().is_some();
        let spec = || std::env::var(SPEC_VARIABLE).ok().filter(|spec| !spec.is_empty());
        simulated.then(|| spec().unwrap_or_else(|| "the simulator's default".to_owned()))
    }
}

fn beside_executable() -> Result<PathBuf, LibraryError> {
    let executable = std::env::current_exe().unwrap_or_default();
    let beside = executable.with_file_name(SIMULATOR);
    if beside.is_file() {
        Ok(beside)
    } else {
        Err(LibraryError::NoSimulator { beside })
    }
}

fn configure(path: &std::path::Path, spec: &str) -> Result<(), LibraryError> {
    let opened = SimulatedLibrary::open(path.as_os_str()).map_err(|source| LibraryError::Load {
        path: path.to_owned(),
        source,
    })?;
    let library = opened.ok_or_else(|| LibraryError::NotSimulator {
        path: path.to_owned(),
        spec: spec.to_owned(),
    })?;
    library.configure(spec).map_err(|reason| LibraryError::Spec {
        spec: spec.to_owned(),
        reason,
    })
}
