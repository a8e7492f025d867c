//! The connection to the collector. The agent connects with two independent streams.

pub mod events;
pub mod link;

pub(crate) mod clock;
pub mod control;
pub(crate) mod session;
pub(crate) mod spool;

mod batch;
mod join_batches;
mod segment;

pub use events::Events;
pub use link::Link;
