//! Containers under Docker and Podman: their command lines as data, and what may be asked of them.
//!
//! Nothing here runs anything. A [`Container`] says what is wanted once; [`Container::run`] is the line a person would type
//! for the runtime at hand. Values of variables are never part of it: a command line is readable by every user of a machine.

pub mod check;
mod command;

pub use command::{Container, Gpus, Mount, Network, Port, Pull, Runtime, SharedMemory};

/// Label on every container that Lockstep starts; its value says for what.
pub const LABEL: &str = "lockstep";
