//! What Lockstep talks about: series, runs, rules, nodes, and the decisions on them.
//!
//! Pure by construction: no I/O, no clock, no randomness, no async. Time arrives as a value. The crate also builds for
//! wasm32, so the dashboard checks a run with the same code as the server.

pub mod bytes;
mod text;
pub mod time;

pub mod container;
pub mod event;
pub mod ident;
pub mod sxid;
pub mod topology;
pub mod xid;

pub mod diagnosis;
pub mod incident;
pub mod metric;
pub mod plan;
pub mod series;

#[cfg(feature = "yaml")]
pub mod rule;
pub mod run;

pub mod api;
