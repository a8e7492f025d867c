//! Training processes on this node: a shim owns each attempt's ranks; the agent prepares, starts, follows and stops.
//!
//! ```text
//! collector ──Command──▶ supervise ──launch.json──▶ shim ──▶ torchrun ──▶ ranks
//!     ▲                     │ ▲                      │                     │ datagrams
//!     └──RunEvent, LogChunk─┘ └───files of a folder──┴◀────────────────────┘
//! ```
//! Agent and shim never talk: the files of [`shim::files`] are all they share, so either may die and come back.

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
