//! Training processes on this node: a shim owns each attempt's ranks; the agent prepares, starts, follows and stops.
//!
//! ```text
//! collector ──Command──▶ supervise ──launch.json──▶ shim ──▶ torchrun ──▶ ranks
//!     ▲                     │ ▲                      │                     │ datagrams
//!     └──RunEvent, LogChunk─┘ └───files of a folder──┴◀────────────────────┘
//! ```
//! Agent and shim never talk: the files of [`journal`] are all they share, so either may die and come back.

pub mod journal;
pub mod shim;
pub mod supervise;

pub mod companions;
pub(crate) mod container;
pub mod preflight;
pub mod torchrun;

pub(crate) mod unmanaged;

pub(crate) mod checkpoint;
pub(crate) mod inspect;
pub mod output;
pub(crate) mod probe;
pub mod secrets;

#[cfg(test)]
mod testing;

pub use supervise::{Setting, Supervisor};
