//! The metrics Lockstep makes: one definition, many outputs.

pub mod catalogue;

pub use catalogue::{CATALOGUE, Kind, Metric, find};
