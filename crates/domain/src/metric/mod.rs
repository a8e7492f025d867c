//! The metrics Lockstep makes: one definition, many outputs.

pub mod catalogue;
mod unit;

pub use catalogue::{CATALOGUE, Kind, Metric, find, unit_of};
pub use unit::Unit;
