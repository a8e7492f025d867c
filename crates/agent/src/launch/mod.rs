//! Training processes on this node. A shim owns the ranks of each attempt; the agent prepares, starts, follows and stops attempts.
//!
//! ```text
//! collector ──Command──▶ supervise ──launch.json──▶ shim ──▶ torchrun ──▶ ranks
//!     ▲                     │ ▲                      │                     │ datagrams
//!     └──RunEvent, LogChunk─┘ └───files of a folder──┴◀────────────────────┘
//! ```
//! Agent and shim never talk to each other. They share only the files of [`shim::files`], so either of them can crash and restart.

pub mod supervise;

pub mod companions;
pub(crate) mod container;
pub(crate) mod preflight;
mod scope;

pub(crate) mod unmanaged;
pub mod watched;

pub(crate) mod checkpoint;
pub(crate) mod inspect;
pub mod output;
mod positions;
pub(crate) mod probe;

#[cfg(test)]
mod testing;

pub use supervise::{Setting, Supervisor};
