//! Tests the store through its public API, on a real folder.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(missing_docs, reason = "tests are named by what they show")]

mod compaction;
mod crash;
mod deliveries;
mod faults;
mod harness;
mod incidents;
mod latest;
mod life;
mod model;
mod power;
mod series;
mod state;
mod vfs;
