//! Containers under Docker and Podman: their command lines as data, and checks of their settings.
//!
//! This module runs no programs. A [`Container`] describes the container; [`Container::run`] returns the command line for a runtime. Values
//! of environment variables are never part of it, because every user of a machine can read command lines.

pub mod check;
mod command;

pub use command::{Container, Gpus, Mount, Network, Port, Pull, Runtime, SharedMemory};

/// Label of every container that Lockstep starts. Its value is the purpose of the container.
pub const LABEL: &str = "lockstep";
