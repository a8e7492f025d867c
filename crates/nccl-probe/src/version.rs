//! The version of NCCL. The interface does not contain it, but the mask is in NCCL's library, and the library reports its version.
#![allow(unsafe_code, reason = "looks up a function in a loaded library and calls it")]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;

/// A version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
}

impl Version {
    /// Returns the version of the library (NCCL's own, or one that has NCCL linked in) that contains a variable. Returns `None` if the
    /// library does not report it.
    pub(crate) fn of_library_with(variable: *const c_void) -> Option<Self> {
        // SAFETY: `dladdr` takes any address and fills `info`; the name it gives lives as long as the library. The library is loaded
        // already, so that `dlopen` runs no code of it and leaves only a count behind. The function has had this type in all versions.
        let code = unsafe {
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            if libc::dladdr(variable, &raw mut info) == 0 || info.dli_fname.is_null() {
                return None;
            }
            let library = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            let name: &CStr = c"ncclGetVersion";
            let found = libc::dlsym(library, name.as_ptr());
            if found.is_null() {
                return None;
            }
            let get = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(found);
            let mut code = 0;
            (get(&raw mut code) == 0).then_some(code)?
        };
        u32::try_from(code).ok().and_then(Self::from_code)
    }

    /// Returns the versions that load a table of the interface. If there are several, returns the one that needs more caution.
    pub(crate) fn of_abi(abi: u8) -> Option<Self> {
        let minor = match abi {
            1 => 23,
            2 => 24,
            3 => 26,
            4 => 27,
            5 => 28,
            6 => 29,
            7 => 31,
            _ => return None,
        };
        Some(Self {
            major: 2,
            minor,
            patch: 0,
        })
    }

    /// Converts NCCL's number: 22705 is 2.27.5. All versions that load profilers use this form.
    fn from_code(code: u32) -> Option<Self> {
        (code >= 20_000).then_some(Self {
            major: code / 10_000,
            minor: code / 100 % 100,
            patch: code % 100,
        })
    }

    /// Returns true if the version equals the prefix or begins with it, for example `2.27` or `2.27.5`.
    pub(crate) fn matches(self, prefix: &str) -> bool {
        !prefix.is_empty() && format!("{self}.").starts_with(&format!("{prefix}."))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
