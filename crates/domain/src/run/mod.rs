//! Managed training runs: what is asked for, what is happening, and what to do next.
//!
//! Run → Attempt (cause, changes, resumed from) → NodeTask → Rank. Every record is keyed by (run, attempt).

pub mod bandwidth;
pub mod checkout;
pub mod checkpoint;
pub mod container;
mod field_error;
pub mod inspect;
pub mod knob;
mod launch;
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
pub mod unseen;
