//! Faults done to real runs: two agents of two ranks each, under torchrun on Gloo, and what must be true afterwards.
//!
//! ```text
//! fault.rs      what a fault is: how it is set up, what it does, what must be true after it
//! ranks.rs …    the faults, a file a family
//! fleet.rs      collector and agents, each a process that can be killed and started again
//! training.rs   train.py beside it, and what it says it did
//! scene.rs      one fault on its way: the run, the clock of the fault, the waits
//! verdict.rs    what was true after it
//! matrix.rs     all faults, again and again, as a table
//! quiet.rs      healthy work that is noisy, in which nothing may be said
//! hang.rs       a rank that does not take part any more, and who is named
//! detection.rs  how soon a training that degrades is found, by this program and by an earlier one
//! diagnosis/    ranks that hang or are slow, of all kinds, and who is named: cargo xtask lab diagnosis
//! trials.rs     trials that are done, so that these go on where they were cut off
//! ```
//! Some of them are run with every change; `cargo xtask lab faults` runs them all and keeps the table in docs/faults.md.
//!
//! Needs PyTorch: a virtual environment at `LOCKSTEP_TEST_VENV`, else where `cargo xtask test` makes it. Network namespaces and small
//! file systems need root.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../product/mod.rs"]
mod product;

mod detection;
mod diagnosis;
mod fault;
mod hang;
mod matrix;

mod agents;
mod checkpoints;
mod collector;
mod nodes;
mod ports;
mod quiet;
mod ranks;
mod undisturbed;

mod disk;
mod fleet;
mod network;
mod orphans;
mod scene;
mod training;
mod trials;
mod verdict;
