//! A disk with planned faults: a SQLite VFS around the one of the system.
//!
//! ```text
//! store → sqlx → SQLite → sys (C calls) → Disk → the real file      what a running store reads back
//!                                          ├→ faults                planned errors
//!                                          └→ Media                 what a power loss would leave
//! ```
//! A store uses such a disk if `StoreConfig::vfs` is [`Disk::name`]. Nothing is really synchronised: `Media` computes what a
//! power loss leaves, so hundreds of power losses take seconds.

mod disk;
mod faults;
mod media;
mod sys;
mod trace;

pub(crate) use disk::{Disk, Hold};
pub(crate) use faults::{Call, Fault, Files, Plan, Rng};
pub(crate) use trace::contents;
