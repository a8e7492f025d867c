//! Reading: what a node's hardware, host and processes do, second by second.

pub mod sink;

pub use sink::Samples;
