//! A disk that fails on demand: a SQLite file layer around the system's own.
//!
//! ```text
//! store → sqlx → SQLite → sys (C calls) → Disk → the real file      what a running store reads back
//!                                          ├→ faults                errors by plan
//!                                          └→ Media                 what a power loss would leave
//! ```
//! A store is put on such a disk by [`Disk::name`] in `StoreConfig::vfs`. Nothing is really synchronised: what a power loss
//! leaves is told by `Media`, so hundreds of power losses take seconds.

mod disk;
mod faults;
mod media;
mod sys;

pub(crate) use disk::{Disk, Hold};
pub(crate) use faults::{Call, Dice, Fault, Files, Plan};
