//! The metrics that Lockstep produces: one definition from which all outputs are generated.

pub mod catalogue;
mod unit;

pub use catalogue::{CATALOGUE, Kind, Metric, find, unit_of};
pub use unit::Unit;
