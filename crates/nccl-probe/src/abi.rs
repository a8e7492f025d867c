//! The tables of functions that NCCL finds in this library, one for each version of the profiler interface. NCCL searches from the newest
//! version that it supports, and uses the first table that exists.
//!
//! ```text
//! NCCL   2.23   2.24, 2.25   2.26   2.27   2.28   2.29, 2.30   2.31, 2.32
//! table  v1     v2           v3     v4     v5     v6           v7
//! ```
//! The tables differ in the arguments of `init` and in the layout of the descriptors.
#![allow(
    unsafe_code,
    reason = "the functions are called by C with pointers into its memory"
)]
#![allow(non_upper_case_globals, reason = "NCCL chose the names")]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use crate::descriptor::{Abi, Started, started, stop_timer_ns};
use crate::guard::guarded;
use crate::probe::{self, CommInfo};

type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;
type Stop = unsafe extern "C" fn(*mut c_void) -> c_int;
type Record = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;
/// NCCL's logger. It is variadic in C and never called here.
type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char)>;
type EarlyInit = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type FourthInit = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;
type LateInit = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;

/// A table of functions. The versions differ in the type of `init`.
#[repr(C)]
#[derive(Debug)]
pub struct Table<Init> {
    /// The plugin's name, for NCCL's log.
    pub name: *const c_char,
    /// Called when a communicator is created.
    pub init: Init,
    /// Called when an event starts.
    pub start_event: Start,
    /// Called when an event stops.
    pub stop_event: Stop,
    /// Called when the state of an event changes.
    pub record_event_state: Record,
    /// Called when a communicator is destroyed.
    pub finalize: Stop,
}

/// The table of versions 1 to 3: `init` has no arguments about the communicator.
pub type EarlyTable = Table<EarlyInit>;
/// The table of version 4.
pub type FourthTable = Table<FourthInit>;
/// The table of versions 5 to 7: the arguments of `init` are those of version 4 in another order.
pub type LateTable = Table<LateInit>;

// SAFETY: a table is never written, and what its name points to neither.
unsafe impl<Init: Sync> Sync for Table<Init> {}

const NAME: &CStr = c"lockstep";
const SUCCESS: c_int = 0;

const fn table<const ABI: Abi, Init: Copy>(init: Init) -> Table<Init> {
    Table {
        name: NAME.as_ptr(),
        init,
        start_event: start_event::<ABI>,
        stop_event,
        record_event_state: record_event_state::<ABI>,
        finalize,
    }
}

/// The table for NCCL 2.23.
#[unsafe(no_mangle)]
pub static ncclProfiler_v1: EarlyTable = table::<1, _>(init_early::<1> as EarlyInit);
/// The table for NCCL 2.24 and 2.25.
#[unsafe(no_mangle)]
pub static ncclProfiler_v2: EarlyTable = table::<2, _>(init_early::<2> as EarlyInit);
/// The table for NCCL 2.26.
#[unsafe(no_mangle)]
pub static ncclProfiler_v3: EarlyTable = table::<3, _>(init_early::<3> as EarlyInit);
/// The table for NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: FourthTable = table::<4, _>(init_fourth as FourthInit);
/// The table for NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: LateTable = table::<5, _>(init_late::<5> as LateInit);
/// The table for NCCL 2.29 and 2.30.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: LateTable = table::<6, _>(init_late::<6> as LateInit);
/// The table for NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
pub static ncclProfiler_v7: LateTable = table::<7, _>(init_late::<7> as LateInit);

unsafe extern "C" fn init_early<const ABI: Abi>(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: as NCCL calls it; see `init`.
    unsafe { init(context, mask, ABI, None) }
}

unsafe extern "C" fn init_fourth(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    _logger: Logger,
) -> c_int {
    // SAFETY: as NCCL calls it; see `init`.
    unsafe { init(context, mask, 4, Some((hash, name, [nodes, ranks, rank]))) }
}

unsafe extern "C" fn init_late<const ABI: Abi>(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    _logger: Logger,
) -> c_int {
    // SAFETY: as NCCL calls it; see `init`.
    unsafe { init(context, mask, ABI, Some((hash, name, [nodes, ranks, rank]))) }
}

/// # Safety
/// `context` and `mask` may be written; the mask for as long as a communicator lives. The name ends in a zero or is null.
unsafe fn init(
    context: *mut *mut c_void,
    mask: *mut c_int,
    abi: Abi,
    identity: Option<(u64, *const c_char, [c_int; 3])>,
) -> c_int {
    guarded(|| {
        if context.is_null() || mask.is_null() {
            return;
        }
        let mut info = CommInfo {
            abi,
            ..CommInfo::default()
        };
        if let Some((hash, name, [nodes, ranks, rank])) = identity {
            info.hash = hash;
            [info.nodes, info.ranks, info.rank] =
                [nodes, ranks, rank].map(|number| u32::try_from(number).unwrap_or(0));
            if !name.is_null() {
                // SAFETY: the caller's promise.
                info.name = unsafe { CStr::from_ptr(name) }.to_bytes();
            }
        }
        let opened = probe::open(mask, &info);
        // SAFETY: the caller's promise.
        unsafe { context.write(std::ptr::without_provenance_mut(opened)) };
    });
    SUCCESS
}

unsafe extern "C" fn start_event<const ABI: Abi>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    guarded(|| {
        if handle.is_null() || descriptor.is_null() {
            return;
        }
        // SAFETY: NCCL passes a place for the handle, and a descriptor of the version whose table it uses.
        let event = unsafe {
            handle.write(std::ptr::null_mut());
            started::<ABI>(descriptor.cast())
        };
        let opened = match event {
            Started::Operation(operation) => probe::operation(context.addr(), &operation),
            Started::Kernel { parent, timer_ns } => probe::kernel_started(parent, timer_ns),
            Started::Other => return,
        };
        // SAFETY: as above.
        unsafe { handle.write(std::ptr::without_provenance_mut(opened)) };
    });
    SUCCESS
}

unsafe extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    guarded(|| probe::stopped(handle.addr()));
    SUCCESS
}

unsafe extern "C" fn record_event_state<const ABI: Abi>(
    handle: *mut c_void,
    state: c_int,
    arguments: *const c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: NCCL passes arguments that belong to the state, of the version whose table it uses, or null.
        if let Some(timer_ns) = unsafe { stop_timer_ns::<ABI>(state, arguments.cast()) } {
            probe::kernel_stop_time(handle.addr(), timer_ns);
        }
    });
    SUCCESS
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    guarded(|| probe::close(context.addr()));
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_callback_is_a_success_for_nccl() {
        // A kind of event for which the descriptor parser panics in tests.
        let mut descriptor = [0_u64; 16];
        descriptor[0] = 0xEE;
        let mut handle = std::ptr::without_provenance_mut(1);
        let mut started = |start: Start| {
            // SAFETY: a descriptor of sixteen words is as large as the largest.
            unsafe { start(std::ptr::null_mut(), &raw mut handle, descriptor.as_ptr().cast()) }
        };
        assert_eq!(started(ncclProfiler_v1.start_event), SUCCESS);
        assert_eq!(started(ncclProfiler_v7.start_event), SUCCESS);
        assert!(handle.is_null());
        let mut context = std::ptr::without_provenance_mut(1);
        let mut mask = 0;
        // SAFETY: both places are ours.
        let begun = unsafe { (ncclProfiler_v3.init)(&raw mut context, &raw mut mask) };
        assert_eq!((begun, context.is_null(), mask), (SUCCESS, true, 0));
    }

    #[test]
    fn nulls_are_survived() {
        let nothing: *mut c_void = std::ptr::null_mut();
        // SAFETY: null is checked for.
        unsafe {
            assert_eq!((ncclProfiler_v1.init)(nothing.cast(), nothing.cast()), SUCCESS);
            assert_eq!(
                (ncclProfiler_v4.start_event)(nothing, nothing.cast(), nothing),
                SUCCESS
            );
            assert_eq!(
                (ncclProfiler_v4.record_event_state)(nothing, 22, nothing),
                SUCCESS
            );
            assert_eq!((ncclProfiler_v4.stop_event)(nothing), SUCCESS);
            assert_eq!((ncclProfiler_v4.finalize)(nothing), SUCCESS);
        }
    }
}
