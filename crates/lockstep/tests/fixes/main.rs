//! Five repairs from end to end: a real run with a fault, its diagnosis, the list of actions on the command line, the action, and the verdict
//! with the measurements before and after it.
//!
//! | file | fault | action |
//! |---|---|---|
//! | `data_stall` | loading a batch takes as long as a step | `num_workers` |
//! | `explosion` | the learning rate is raised too far | `lr_scale`, from the last checkpoint before the loss diverged |
//! | `out_of_memory` | a larger batch does not fit; a stand-in on CPUs | `activation_checkpointing` |
//! | `slow_node` | one node is slow | exclude the node |
//! | `full_disk` | the disk of the checkpoints is full | prune checkpoints |
//!
//! `repair.rs` has the common steps, `training.py` the common part of the trainings.
//!
//! Needs PyTorch: a virtual environment at `LOCKSTEP_TEST_VENV`, or where `cargo xtask test` makes it. `full_disk` needs root.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "other test targets use the rest")]
#[path = "../product/mod.rs"]
mod product;

#[allow(dead_code, reason = "the tests in first_light use the rest")]
#[path = "../first_light/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "the tests in faults use the rest")]
#[path = "../faults/disk.rs"]
mod disk;

mod data_stall;
mod explosion;
mod full_disk;
mod out_of_memory;
mod slow_node;

mod repair;
