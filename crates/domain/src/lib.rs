//! Lockstep's types and decisions: series, metrics, runs, rules, diagnoses, nodes, and the API's messages.
//!
//! This crate does no I/O and uses no clock, randomness or async. The caller passes the time as a value. The crate also compiles to wasm32,
//! so the dashboard checks a run specification with the same code as the collector.

pub mod bytes;
pub mod noise;
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
