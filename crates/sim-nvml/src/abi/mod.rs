//! The bridge: NVML's C functions and structs over the engine, one file a subject.
//!
//! Each exported function is `subject in, status out`: resolve the handle (which is where a lost GPU, a
//! slow driver or a hung one is met), ask the engine, write through the caller's pointer. All pointer
//! accesses are in `pointer`; nothing panics across the border.
#![allow(
    unsafe_code,
    reason = "this is the border to C: exported symbols and callers' pointers"
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
mod pointer;
mod session;
mod structs;
mod ticket;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine::status::Status;

/// What every exported function does inside.
pub(crate) type Answer = Result<(), Status>;

/// Defines exported C functions that return an `nvmlReturn_t`. A panic becomes "Unknown Error": it must
/// never reach the caller's frames.
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

fn guard(body: impl FnOnce() -> Answer) -> u32 {
    // Unwind safety: what a panic could leave half-done is behind the session's lock, and that lock's
    // state is whole between statements.
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
