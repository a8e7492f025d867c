//! The store as its users see it: on a real folder, through its public door.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(missing_docs, reason = "tests are named by what they show")]

mod compaction;
mod crash;
mod harness;
mod latest;
mod model;
mod series;
mod state;
