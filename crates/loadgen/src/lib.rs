//! A fleet of GPU nodes that exists only as numbers: what it sends can be computed again by whoever checks it.
//!
//! ```text
//! signal ─ value of (seed, series, tick), a pure function
//! fleet  ─ nodes × GPUs × metrics: names, labels, times
//!   ├─▶ remote_write   Prometheus, VictoriaMetrics and Lockstep get the same bytes
//!   ├─▶ agents         N agents over Lockstep's own protocol, live or catching up
//!   ├─▶ verify         reads back over HTTP and compares every sample
//!   └─▶ read           times queries by shape
//! ```
//! It stands beside the server it measures, on the same cores, so it has to be much cheaper than any server: labels are encoded
//! once, values cost some nanoseconds, and nothing that was sent is kept.

pub mod fleet;
pub mod signal;

pub mod agents;
pub mod remote_write;

pub mod read;
pub mod verify;

pub mod http;
pub mod latency;
pub mod process;

pub use fleet::Fleet;
