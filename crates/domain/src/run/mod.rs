//! Managed training runs: their specification, their state, and the decision what to do next.
//!
//! A run has attempts (each with a cause, changes, and the checkpoint it resumed from), an attempt has node tasks, and a node task has
//! ranks. Every record is keyed by (run, attempt).

pub mod bandwidth;
pub mod checkout;
pub mod checkpoint;
pub mod container;
mod field_error;
pub mod goodput;
pub mod inspect;
pub mod knob;
mod launch;
pub mod log_level;
pub mod log_text;
pub mod mesh;
pub mod provenance;
pub mod ranks;
pub mod recipe;
pub mod secret;
pub mod spec;
pub mod state;
pub mod stored;
pub mod torchrun;
pub mod unobserved;
