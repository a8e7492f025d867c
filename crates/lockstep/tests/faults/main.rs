//! Faults in real runs: two agents with two ranks each, under torchrun with Gloo, and what must be true afterwards.
//!
//! ```text
//! fault.rs      what a fault is: its set-up, what it does, what must be true afterwards
//! ranks.rs …    the faults, one file per family
//! fleet.rs      collector and agents, each a process that can be killed and started again
//! training.rs   the training train.py, and what it records about itself
//! fault_run.rs  one fault in progress: the run, the clock of the fault, the waits
//! verdict.rs    checks what was true afterwards
//! matrix.rs     all faults, repeated, as a table
//! quiet.rs      healthy but noisy work, during which no alert may fire
//! hang.rs       a rank that stops taking part, and which rank is named
//! detection.rs  how fast a degraded training is found, by this program and by an earlier one
//! diagnosis/    all kinds of runs that go wrong, and who is named: cargo xtask lab diagnosis
//! diagnosis/simulated/   the same on a simulated cluster: cargo xtask lab simulated
//! trials.rs     finished trials, so that an interrupted command continues
//! ```
//! Some of them run with every change. `cargo xtask lab faults` runs all of them and writes the table in docs/faults.md.
//!
//! Needs PyTorch: a virtual environment at `LOCKSTEP_TEST_VENV`, or where `cargo xtask test` makes it. Simulated trials do not. Network namespaces and small file
//! systems need root.

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
mod fault_run;
mod fleet;
mod network;
mod orphans;
mod training;
mod trials;
mod verdict;
