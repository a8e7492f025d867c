//! The way to the collector: the agent dials out, two streams, each with its own life.

pub mod events;
pub mod link;

pub(crate) mod clock;
pub mod control;
pub(crate) mod session;
pub(crate) mod spool;

mod batch;
mod join;
mod segment;

pub use events::Events;
pub use link::Link;
