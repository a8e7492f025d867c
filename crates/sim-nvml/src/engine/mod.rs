//! The simulated machine as a pure function of its specification and the seconds since the simulation started.
//!
//! Time is always a value: `t` is seconds since the start. It may be negative, because the simulated job has been running for an hour when
//! the simulation starts, so that averages and counters exist from the first call on.

pub(crate) mod spec;

mod options;
mod scenario_file;

pub(crate) mod incident;

pub(crate) mod node;

pub(crate) mod gpu;

pub(crate) mod ecc;
pub(crate) mod nvlink;
pub(crate) mod partition;
pub(crate) mod pcie;
pub(crate) mod power;

pub(crate) mod fault;
pub(crate) mod job;
pub(crate) mod mig;
pub(crate) mod pace;

pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod gpm;
pub(crate) mod samples;

pub(crate) mod driver;
pub(crate) mod identity;
pub(crate) mod noise;
pub(crate) mod profile;
pub(crate) mod status;

#[cfg(test)]
mod tests;
