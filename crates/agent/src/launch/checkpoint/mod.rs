//! Finds, validates, reports and removes the checkpoints on this node's disk.
//!
//! ```text
//! checkpoint_dir ─┐                                   ┌─▶ checkpoints.report ──▶ collector
//! probe's records ┴─▶ scan ──▶ archive, sidecar ──▶ Watch ─▶ series
//! saves/RANK.jsonl ─▶ records (proofs, first_start) ──┘ └─◀ removal.json ◀── RemovalOrder: check and prove again, then remove each file
//! ```
//! No pickle is ever executed: a zip is validated by its directory, `.metadata` by the names and ends of shards in its bytes. A removal
//! does not follow symbolic links. Only files that the run provably wrote are removed: see [`records`].

mod accepted_removal;
mod archive;
mod extents;
mod first_start;
mod identity;
mod pickle;
mod proofs;
pub(crate) mod records;
mod removal;
mod scan;
mod sidecar;
#[cfg(test)]
mod testing;
mod watch;

pub(crate) use accepted_removal::{AcceptedRemoval, ClockReading};
pub(crate) use watch::{OLD_ORDER, Watch};
