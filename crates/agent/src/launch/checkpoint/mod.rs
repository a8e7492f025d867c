//! Checkpoints on this node's disk: found, judged, told, removed.
//!
//! ```text
//! checkpoint_dir ─┐                                   ┌─▶ checkpoints.report ──▶ collector
//! probe's records ┴─▶ look ──▶ archive, sidecar ──▶ Watch ─▶ series
//!                                                     └─◀ prune.json ◀── PruneOrder: look again, rename to .trash, delete
//! ```
//! Nothing is ever unpickled: a zip is judged by its directory, `.metadata` by the names and ends of shards in its bytes. Symbolic links
//! are not followed where anything is removed.

mod archive;
mod extents;
mod look;
mod pickle;
mod prune;
mod sidecar;
mod watch;

pub(crate) use watch::{PRUNE_FILE, Watch};
