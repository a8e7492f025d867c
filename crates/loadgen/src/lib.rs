//! A fleet of GPU nodes that exists only as numbers: what it sends can be computed again by whoever checks it.
//!
//! ```text
//! signal ─ value of (seed, series, tick), a pure function
//! fleet  ─ nodes × GPUs × metrics: names, labels, times
//!   ├─▶ remote_write   Prometheus, VictoriaMetrics and Lockstep get the same bytes
//!   ├─▶ history        a month of it in little, by remote write
//!   ├─▶ agents         N agents over Lockstep's own protocol, live or catching up
//!   ├─▶ runs           one run of thousands of ranks over the control protocol
//!   ├─▶ verify         reads back over HTTP and compares every sample
//!   ├─▶ read           times reads of samples by shape
//!   └─▶ query          times PromQL by kind, and compares the answers of servers
//! ```
//! It stands beside the server it measures, on the same cores, so it has to be much cheaper than any server: labels are encoded
//! once, values cost some nanoseconds, and nothing that was sent is kept.

pub mod fleet;
pub mod signal;

pub mod agents;
pub mod history;
pub mod remote_write;
pub mod runs;

pub mod query;
pub mod read;
pub mod verify;

pub mod http;
pub mod latency;
pub mod process;

pub use fleet::Fleet;
