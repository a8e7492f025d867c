//! The GPUs, through NVML: the machine's own library, one at a path, or the simulator; all by the same `dlopen`.
//!
//! ```text
//! schedule ──tick──▶ thread "nvml"  reader ──▶ gpu ──▶ readings, tier by tier ──▶ Samples
//!    │                   │               └─────▶ beat, 10 Hz ──▶ burst, kept until asked for
//!    │                   │ every call is metered
//!    └──▶ watchdog ◀─────┘ looks at the meter; a call that hangs cannot hide
//!                    thread "xid"   waits for Xid errors ──▶ sample::xid, Events
//! ```
//! One thread makes all readings: NVML serialises in the driver anyway, and GPM crashes when called in parallel.

pub(crate) mod burst;
pub(crate) mod library;
pub(crate) mod meter;
pub(crate) mod reader;
pub(crate) mod watchdog;

mod door;
mod pace;

mod gpu;
mod gpus;
mod inventory;

mod beat;
mod readings;

mod busy;
mod counters;
mod fabric;
mod fields;
mod health;
mod link_rates;
mod links;
mod mig;
mod nvlink;
mod processes;
mod shares;
mod traffic;

mod asker;
mod raw;
mod raw_events;
mod xid;

pub use library::LibraryError;
