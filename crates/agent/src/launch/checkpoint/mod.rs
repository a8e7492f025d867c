//! Checkpoints on this node's disk: found, judged, told, removed.
//!
//! ```text
//! checkpoint_dir ─┐                                   ┌─▶ checkpoints.report ──▶ collector
//! probe's records ┴─▶ look ──▶ archive, sidecar ──▶ Watch ─▶ series
//! saves/RANK.jsonl ─▶ records (proofs, first_start) ──┘ └─◀ removal.json ◀── RemovalOrder: look and prove again, then remove file by file
//! ```
//! Nothing is ever unpickled: a zip is judged by its directory, `.metadata` by the names and ends of shards in its bytes. Symbolic links
//! are not followed where anything is removed. Only files that the run provably wrote are removed: see [`records`].

mod archive;
mod extents;
mod first_start;
mod identity;
mod look;
mod pickle;
mod proofs;
pub(crate) mod records;
mod removal;
mod sidecar;
#[cfg(test)]
mod testing;
mod watch;

pub(crate) use watch::{OLD_ORDER, Watch};
