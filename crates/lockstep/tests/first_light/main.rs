//! The whole product as a user has it: the binary, simulated GPUs, real training under torchrun.
//!
//! Needs PyTorch: a virtual environment at `LOCKSTEP_TEST_VENV`, or where `cargo xtask test` makes it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../product/mod.rs"]
mod product;

mod cluster;
mod receiver;

mod attacks;
mod checkout;
mod container;
mod crashes;
mod culprits;
mod dashboards;
mod demo;
mod diagnosis;
mod examples;
mod exec;
mod golden;
mod knobs;
mod knobs_unmodified;
mod logs;
mod prometheus;
mod recipes;
mod restores;
mod retention;
mod rules;
mod runs;
mod simulated_nodes;
mod stacks;
mod store;
mod terminal;
mod unwatchable_script;
mod upgrade;
mod workspace;
