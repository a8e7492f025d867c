//! Reads the GPUs through NVML. The library is the system's own, one at a given path, or the simulator; all are opened with `dlopen`.
//!
//! ```text
//! schedule ──tick──▶ thread "nvml"  reader ──▶ gpu ──▶ readings, tier by tier ──▶ Samples
//!    │                   │               └─────▶ burst reader, 10 Hz ──▶ burst, kept until requested
//!    │                   │ the meter measures every call
//!    └──▶ watchdog ◀─────┘ checks the meter, so it notices a call that hangs
//!                    thread "xid"   waits for Xid errors ──▶ sample::xid, Events
//! ```
//! One thread makes all readings: the driver serialises NVML calls anyway, and GPM crashes when it is called in parallel.

pub(crate) mod burst;
pub(crate) mod library;
pub(crate) mod meter;
pub(crate) mod reader;
pub(crate) mod watchdog;

mod driver_connection;
mod read_period;

mod gpu;
mod gpus;
mod inventory;

mod burst_reader;
mod readings;

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
mod utilization;

mod queries;
mod raw;
mod raw_events;
mod xid;

pub use library::LibraryError;
