//! Reads the node's hardware, host and processes, once per second.

pub mod sink;

pub mod schedule;

pub(crate) mod host;
pub(crate) mod memory_limit;

pub(crate) mod nccl;
pub(crate) mod nvml;

pub(crate) mod kernel_log;
pub(crate) mod xid;

pub(crate) mod agent_metrics;
pub(crate) mod assignment;
pub(crate) mod process;
pub(crate) mod series;
pub(crate) mod sockets;
mod sources;

pub use nvml::LibraryError;
pub use sink::Samples;
pub use sources::sources;
