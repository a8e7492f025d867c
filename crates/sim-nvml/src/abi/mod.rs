//! The C interface: NVML's C functions and structs on top of the engine, one file per subject.
//!
//! Each exported function resolves the handle (a lost GPU, a slow driver or a hanging one takes effect here), reads from the engine, and
//! writes through the caller's pointer. All pointer accesses are in `pointer`, and no panic crosses the C boundary.
#![allow(
    unsafe_code,
    reason = "this is the interface to C: exported symbols and callers' pointers"
)]
#![allow(non_snake_case, reason = "the names are NVML's")]

mod system;

mod device;
mod ecc;
mod events;
mod fields;
mod gpm;
mod memory;
mod mig;
mod nvlink;
mod pcie;
mod power;
mod process;
mod thermal;
mod topology;
mod utilization;

mod handle;
mod machine;
mod objects;
mod pointer;
mod session;
mod structs;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine::status::Status;

/// The result of the body of an exported function.
pub(crate) type CallResult = Result<(), Status>;

/// Defines exported C functions that return an `nvmlReturn_t`. A panic becomes "Unknown Error", because it must never reach the caller's
/// frames.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> u32 {
            $crate::abi::guard(move || $body)
        }
    )*};
}
use exports;

fn guard(body: impl FnOnce() -> CallResult) -> u32 {
    // Unwind safety: only state behind the session's lock could be left incomplete by a panic, and that state is whole between statements.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Success.code(),
        Ok(Err(status)) => status.code(),
        Err(_) => Status::Unknown.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_stop_at_the_border() {
        assert_eq!(guard(|| panic!("on purpose")), 999);
        assert_eq!(guard(|| Err(Status::GpuIsLost)), 15);
        assert_eq!(guard(|| Ok(())), 0);
    }
}
