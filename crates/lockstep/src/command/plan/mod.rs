//! `lockstep plan …`: what a training needs, before it is started. Arithmetic on this machine; no collector is asked.

mod memory;
mod model;
mod show;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Say what a training will need, before it is started.
#[derive(Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Bytes a GPU by component, by strategy, and what would make it fit.
    Memory(Box<memory::Memory>),
}

impl Plan {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        match self.action {
            Action::Memory(memory) => memory.execute(),
        }
    }
}
