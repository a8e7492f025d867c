//! Reading: what a node's hardware, host and processes do, second by second.

pub mod sink;

pub mod schedule;

pub(crate) mod footprint;
pub(crate) mod host;

pub(crate) mod nccl;
pub(crate) mod nvml;
pub(crate) mod own;
pub(crate) mod process;
pub(crate) mod series;

pub use nvml::LibraryError;
pub use sink::Samples;
