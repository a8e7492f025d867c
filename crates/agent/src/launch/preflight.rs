//! Whether a run could start on this node, found out before it does; and what nodes tell of each other meanwhile.

pub(super) mod asked;
pub(super) mod bandwidth;
pub(super) mod checkout;
mod container;
pub(super) mod disks;
mod error;
mod image;
pub(super) mod lease;
mod nics;
mod prepare;

pub(super) use prepare::prepare;
