//! The layouts of the descriptors that NCCL passes, by version of the interface. Offsets are in bytes on 64-bit Linux, little-endian.
//!
//! ```text
//!            type      parent  collective                                         point to point                    kernel
//!                              hash  seq  func     count  datatype  channels      hash  func     datatype  count    timer
//! v1         u8 @0     @8      32    40   u8 @48   72     u8 @84    104           32    u8 @40   u8 @56    64       –
//! v2         u8 @0     @8      32    40   text 48  72     text 88   104           32    text 40  text 56   64       –
//! v3         u8 @0     @8      32    40   text 48  72     text 88   96            32    text 40  text 56   64       none
//! v4         u8 @0     @8      –     24   text 32  56     text 72   80            –     text 24  text 40   48       @32
//! v5 v6 v7   u64 @0    @8      –     24   text 32  56     text 72   80            –     text 24  text 40   48       @32
//! ```
//! The rank is an `int` at 16 in all versions. The channels are one byte; those of a point-to-point transfer are known from v4 on, at 60.
//! Texts are static strings of NCCL. `parent` may be a pointer of another process (PXN), so it is compared but never dereferenced.
#![allow(
    unsafe_code,
    reason = "reads C structs whose layout depends on the caller's version"
)]

use std::ffi::{CStr, c_char};

use crate::function::{Function, datatype_bytes, datatype_bytes_by_name};

/// A version of the interface, 1 to 7.
pub(crate) type Abi = u8;

const COLLECTIVE: u64 = 1 << 1;
const POINT_TO_POINT: u64 = 1 << 2;
const KERNEL_CHANNEL: u64 = 1 << 6;
/// `ncclProfilerKernelChStop`: the state that contains the GPU's time.
const KERNEL_STOP: i32 = 22;

/// An event that starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Started {
    /// A collective or a point-to-point transfer is put into a stream.
    Operation(Operation),
    /// A channel of the operation's kernel started on the GPU, at the GPU's time.
    Kernel { parent: usize, timer_ns: u64 },
    /// An event that was not requested.
    Other,
}

/// A collective or a point-to-point transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) function: Function,
    /// The count of the call times the size of an element.
    pub(crate) bytes: u64,
    /// The sequence number of this function in this communicator, from 0. `None` for a point-to-point transfer.
    pub(crate) sequence: Option<u64>,
    /// How many kernel channels will report; 0 if it is not known.
    pub(crate) channels: u8,
    /// The communicator's hash, if it is not passed to `init`.
    pub(crate) hash: Option<u64>,
    pub(crate) rank: i32,
}

/// # Safety
/// `descriptor` is one of version `ABI`; its texts end in zeros.
pub(crate) unsafe fn started<const ABI: Abi>(descriptor: *const u8) -> Started {
    // SAFETY: the caller's promise; the offsets are those of the version.
    unsafe {
        let kind = if ABI >= 5 {
            at::<u64>(descriptor, 0)
        } else {
            at::<u8>(descriptor, 0).into()
        };
        match kind {
            COLLECTIVE => Started::Operation(collective::<ABI>(descriptor)),
            POINT_TO_POINT => Started::Operation(point_to_point::<ABI>(descriptor)),
            KERNEL_CHANNEL if ABI >= 4 => Started::Kernel {
                parent: at::<usize>(descriptor, 8),
                timer_ns: at::<u64>(descriptor, 32),
            },
            #[cfg(test)]
            0xEE => panic!("a panic for the tests"),
            _ => Started::Other,
        }
    }
}

/// Returns the GPU's time in the arguments of the end of a kernel.
///
/// # Safety
/// `arguments` is null, or those of `state` in version `ABI`.
pub(crate) unsafe fn stop_timer_ns<const ABI: Abi>(state: i32, arguments: *const u8) -> Option<u64> {
    let told = ABI >= 4 && state == KERNEL_STOP && !arguments.is_null();
    // SAFETY: the caller's promise; the union's members all begin at 0.
    told.then(|| unsafe { at::<u64>(arguments, 0) })
}

unsafe fn collective<const ABI: Abi>(descriptor: *const u8) -> Operation {
    // SAFETY: the caller's promise; the offsets are those of the version.
    unsafe {
        let (function, element_bytes) = match ABI {
            1 => (
                Function::numbered(at(descriptor, 48)),
                datatype_bytes(at(descriptor, 84)),
            ),
            2 | 3 => named(descriptor, 48, 88),
            _ => named(descriptor, 32, 72),
        };
        let (sequence_at, count_at, channels_at) = match ABI {
            1 | 2 => (40, 72, 104),
            3 => (40, 72, 96),
            _ => (24, 56, 80),
        };
        Operation {
            function,
            bytes: at::<u64>(descriptor, count_at).saturating_mul(element_bytes),
            sequence: Some(at(descriptor, sequence_at)),
            channels: at(descriptor, channels_at),
            hash: (ABI < 4).then(|| at(descriptor, 32)),
            rank: at(descriptor, 16),
        }
    }
}

unsafe fn point_to_point<const ABI: Abi>(descriptor: *const u8) -> Operation {
    // SAFETY: the caller's promise; the offsets are those of the version.
    unsafe {
        let (function, element_bytes) = match ABI {
            1 => (
                Function::numbered(at(descriptor, 40)),
                datatype_bytes(at(descriptor, 56)),
            ),
            2 | 3 => named(descriptor, 40, 56),
            _ => named(descriptor, 24, 40),
        };
        let count_at = if ABI < 4 { 64 } else { 48 };
        Operation {
            function,
            bytes: at::<u64>(descriptor, count_at).saturating_mul(element_bytes),
            sequence: None,
            channels: if ABI < 4 { 0 } else { at(descriptor, 60) },
            hash: (ABI < 4).then(|| at(descriptor, 32)),
            rank: at(descriptor, 16),
        }
    }
}

unsafe fn named(descriptor: *const u8, function_at: usize, datatype_at: usize) -> (Function, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        (
            Function::named(text(descriptor, function_at)),
            datatype_bytes_by_name(text(descriptor, datatype_at)),
        )
    }
}

unsafe fn text<'a>(descriptor: *const u8, offset: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe {
        let text = at::<*const c_char>(descriptor, offset);
        if text.is_null() {
            return b"";
        }
        CStr::from_ptr(text).to_bytes()
    }
}

unsafe fn at<T: Copy>(from: *const u8, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { from.add(offset).cast::<T>().read_unaligned() }
}
