//! The GPUs, through NVML: the machine's own library, one at a path, or the simulator; all by the same `dlopen`.
//!
//! ```text
//! schedule ──tick──▶ thread "nvml"  reader ──▶ gpu, links, processes ──▶ Samples
//!    │                   │ every call is metered
//!    └──▶ watchdog ◀─────┘ looks at the meter; a call that hangs cannot hide
//!                    thread "xid"   waits for Xid errors ──▶ Samples, Events
//! ```
//! One thread makes all readings: NVML serialises in the driver anyway, and GPM crashes when called in parallel.

pub(crate) mod library;
pub(crate) mod meter;
pub(crate) mod reader;
pub(crate) mod watchdog;

mod asker;
mod gpu;
mod inventory;
mod links;
mod processes;
mod raw;
mod readings;
mod traffic;
mod xid;

pub use library::LibraryError;
