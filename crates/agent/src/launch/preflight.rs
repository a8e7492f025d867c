//! The preflight checks of a run on this node, and what nodes exchange during them.

pub(super) mod bandwidth;
pub(super) mod checkout;
mod container;
pub(super) mod disks;
mod error;
mod image;
pub(super) mod lease;
pub(super) mod nics;
mod prepare;
pub(super) mod request;

pub(super) use prepare::prepare;
