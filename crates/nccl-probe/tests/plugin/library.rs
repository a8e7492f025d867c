//! Tests of the library file: what it exports, which symbols it needs, and how it is linked.

use std::fs;

use libloading::Library;

use crate::harness::plugin;

/// The newest symbol version of the C library that may be needed. It is that of a build on Debian 12, since 2.34 contains the threads.
/// Ubuntu 22.04 has 2.35, RHEL 9 has 2.34.
const GLIBC_MAX: (u32, u32) = (2, 34);
/// The flag in DT_FLAGS_1 of a library that is never unloaded.
const DF_1_NODELETE: u64 = 8;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const PT_DYNAMIC: u32 = 2;

#[test]
fn all_seven_tables_are_there_with_a_name() {
    // SAFETY: our own library; it has no constructors.
    #[allow(unsafe_code, reason = "opens the library as NCCL does")]
    let library = unsafe { Library::new(plugin()) }.unwrap();
    for version in 1..=7 {
        let symbol = format!("ncclProfiler_v{version}");
        // SAFETY: a table begins with the pointer to its name.
        #[allow(unsafe_code, reason = "reads the table as NCCL does")]
        let name = unsafe {
            let table = library
                .get::<*const *const std::ffi::c_char>(symbol.as_bytes())
                .unwrap();
            std::ffi::CStr::from_ptr(**table).to_str().unwrap().to_owned()
        };
        assert_eq!(name, "lockstep", "{symbol}");
    }
}

#[test]
fn it_runs_with_the_c_library_of_the_oldest_system_we_name() {
    let bytes = fs::read(plugin()).unwrap();
    let newest = bytes
        .windows(8)
        .enumerate()
        .filter(|(_, window)| window.starts_with(b"GLIBC_2."))
        .filter_map(|(at, _)| {
            let rest = &bytes[at + 8..];
            let digits: String = rest
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .map(|byte| char::from(*byte))
                .collect();
            digits.parse::<u32>().ok()
        })
        .max()
        .unwrap();
    assert!((2, newest) <= GLIBC_MAX, "it asks for GLIBC_2.{newest}");
}

#[test]
fn it_is_never_unloaded() {
    let bytes = fs::read(plugin()).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    let (headers, size, count) = (word(32) as usize, half(54) as usize, half(56) as usize);
    let dynamic = (0..count)
        .map(|n| headers + n * size)
        .find(|at| u32::from_le_bytes(bytes[*at..*at + 4].try_into().unwrap()) == PT_DYNAMIC)
        .unwrap();
    let (start, length) = (word(dynamic + 8) as usize, word(dynamic + 32) as usize);
    let flags = (start..start + length)
        .step_by(16)
        .find(|at| word(*at) == DT_FLAGS_1)
        .map_or(0, |at| word(at + 8));
    assert_eq!(flags & DF_1_NODELETE, DF_1_NODELETE);
}
