//! A simulated fleet of GPU nodes whose samples are computed. A check can compute them again.
//!
//! ```text
//! exporter, signal   metrics of a GPU exporter ─ the value of (seed, series, tick), a pure function
//! layout, healthy    the same with Lockstep's own names: GPUs, nodes and ranks of a healthy training
//! fleet              nodes × GPUs × metrics: names, labels, times
//!   ├─▶ remote_write   sends the same bytes to Prometheus, VictoriaMetrics and Lockstep
//!   ├─▶ history        sends a small history of one month by remote write
//!   ├─▶ agents         N agents over Lockstep's own protocol, in live mode or backfill
//!   ├─▶ ranks          reports the ranks in the labels of these samples over the control protocol
//!   ├─▶ runs           one run of thousands of ranks over the control protocol, without samples
//!   ├─▶ verify         reads back over HTTP and compares every sample
//!   ├─▶ read           times reads of samples by shape
//!   └─▶ query          times PromQL by kind, and compares the answers of servers
//! ```
//! The generator runs beside the server that it measures, on the same cores, so it must be much cheaper than any server: labels
//! are encoded once, a value costs some nanoseconds, and nothing is kept after it was sent.

mod exporter;
pub mod fleet;
pub mod healthy;
mod layout;
pub mod signal;

pub mod agents;
mod hello;
pub mod history;
pub mod ranks;
pub mod remote_write;
pub mod runs;

pub mod query;
pub mod read;
pub mod verify;

pub mod http;
pub mod latency;
pub mod process;

pub use fleet::Fleet;
