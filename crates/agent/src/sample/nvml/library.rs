//! Which NVML library is opened, and what is said when there is none. Simulated is never passed off as real: a library
//! that has the simulator's symbol is reported as simulated however it was found.

use std::ffi::OsString;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::meter::{Meter, PATIENCE_TO_OPEN};
use super::raw::SimulatedLibrary;
use crate::config::NvmlSource;

/// What the driver installs.
const SYSTEM_LIBRARY: &str = "libnvidia-ml.so.1";
/// The simulator's file name, beside the executable.
const SIMULATOR: &str = "libsim_nvml.so";
/// Where a simulator that nobody configured finds its spec.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";

/// Why GPUs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The simulator is nowhere.
    #[error(
        "the simulator {SIMULATOR} is not beside the executable ({beside:?}); build it with `cargo build -p sim-nvml`, or name it with --nvml-library"
    )]
    NoSimulator {
        /// Where it was looked for.
        beside: PathBuf,
    },
    /// Something else than the simulator.
    #[error(
        "{path:?} is not the simulator, so it cannot simulate {spec:?}; leave --simulate or --nvml-library out"
    )]
    NotSimulator {
        /// The library.
        path: PathBuf,
        /// What was asked of it.
        spec: String,
    },
    /// The file cannot be loaded.
    #[error("the NVML library {path:?} cannot be loaded")]
    Load {
        /// The library.
        path: PathBuf,
        /// Why.
        #[source]
        source: libloading::Error,
    },
    /// A spec the simulator does not take.
    #[error("cannot simulate {spec:?}: {reason}")]
    Spec {
        /// The spec.
        spec: String,
        /// The simulator's words.
        reason: String,
    },
}

/// A library ready to be opened, as often as needed.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    path: OsString,
    simulated: Option<String>,
}

/// NVML, initialised.
pub(crate) struct Opened {
    pub(crate) nvml: Nvml,
    /// What is simulated, if it is.
    pub(crate) simulated: Option<String>,
}

impl Library {
    /// Finds the library; configures the simulator.
    ///
    /// # Errors
    /// Only when a simulation was asked for and cannot be had. A machine without GPUs is no error.
    pub(crate) fn find(source: &NvmlSource) -> Result<Self, LibraryError> {
        match source {
            NvmlSource::System => Ok(Self {
                path: SYSTEM_LIBRARY.into(),
                simulated: None,
            }),
            NvmlSource::Path(path) => Ok(Self {
                path: path.clone().into(),
                simulated: None,
            }),
            NvmlSource::Simulated { library, spec } => {
                let path = library.clone().map_or_else(beside_executable, Ok)?;
                configure(&path, spec)?;
                Ok(Self {
                    path: path.into(),
                    simulated: Some(spec.clone()),
                })
            }
        }
    }

    /// Opens and initialises NVML.
    pub(crate) fn open(&self, meter: &Meter) -> Result<Opened, NvmlError> {
        let nvml = meter.call_within(PATIENCE_TO_OPEN, None, || {
            Nvml::builder().lib_path(&self.path).init()
        })?;
        let simulated = self.simulated.clone().or_else(|| self.simulated_unasked());
        Ok(Opened { nvml, simulated })
    }

    /// A sentence for people who wonder where the GPUs are.
    pub(crate) fn why_missing(&self, error: &NvmlError) -> String {
        let path = self.path.to_string_lossy();
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
                format!("no NVIDIA driver: the library {path} is not there or cannot be loaded")
            }
            NvmlError::DriverNotLoaded => {
                "the NVIDIA driver is installed but not loaded; load it with `modprobe nvidia`".to_owned()
            }
            NvmlError::LibRmVersionMismatch => {
                "the NVIDIA driver was changed under the running system: its library and its kernel modules are of two versions; \
                 reload the modules or reboot, and restart the agent if it still says so then"
                    .to_owned()
            }
            NvmlError::Uninitialized => "NVML was shut down from outside".to_owned(),
            NvmlError::NoPermission => {
                "no permission to talk to the NVIDIA driver; the agent needs the devices /dev/nvidia*".to_owned()
            }
            other => format!("NVML ({path}) does not initialise: {other}"),
        }
    }

    fn simulated_unasked(&self) -> Option<String> {
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
