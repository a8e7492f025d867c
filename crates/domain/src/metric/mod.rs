//! The metrics that Lockstep produces: one definition from which all outputs are generated.

pub mod catalogue;
mod loss_noise;
mod unit;

pub use catalogue::{CATALOGUE, Kind, Metric, find, unit_of};
pub use loss_noise::LossNoise;
pub use unit::Unit;
