//! A freshly loaded copy of the simulator. The state belongs to the loaded library, so each test opens its own copy and the tests can run
//! in parallel.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use libloading::Library;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

pub(crate) struct Simulator {
    pub(crate) library: Library,
    path: PathBuf,
}

impl Simulator {
    /// Loads a copy without configuring what to simulate.
    pub(crate) fn load() -> Simulator {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sim-{}-{number}.so", process::id()));
        fs::copy(built(), &path).unwrap();
        // SAFETY: our own library; it has no constructors.
        let library = unsafe { Library::new(&path) }.unwrap();
        Simulator { library, path }
    }

    /// Loads a copy that simulates `spec`.
    pub(crate) fn new(spec: &str) -> Simulator {
        let simulator = Simulator::load();
        assert_eq!(simulator.configure(spec), 0, "{spec}: {}", simulator.error());
        simulator
    }

    pub(crate) fn configure(&self, spec: &str) -> c_int {
        let spec = CString::new(spec).unwrap();
        // SAFETY: the signature is the documented one, the text ends in a zero.
        unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"lockstep_sim_configure\0")
                .unwrap()(spec.as_ptr())
        }
    }

    pub(crate) fn error(&self) -> String {
        // SAFETY: the signature is the documented one; the text is copied before any other call.
        unsafe {
            let error = self
                .library
                .get::<unsafe extern "C" fn() -> *const c_char>(b"lockstep_sim_error\0")
                .unwrap();
            CStr::from_ptr(error()).to_str().unwrap().to_owned()
        }
    }

    /// Initialises NVML through the wrapper.
    pub(crate) fn nvml(&self) -> Nvml {
        self.try_nvml().unwrap()
    }

    /// Like [`Simulator::nvml`], but may fail.
    pub(crate) fn try_nvml(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.path.as_os_str()).init()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // The mapping stays until the library is closed; only the file name is removed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Cargo puts the library beside the tests that need it, or one folder up.
pub(crate) fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    let places = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libsim_nvml.so"));
    let found: Vec<PathBuf> = places.filter(|path| path.exists()).collect();
    // The other folder may contain an older build.
    let newest = found
        .into_iter()
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    newest.expect("libsim_nvml.so beside the test: run through `cargo test -p sim-nvml`")
}
