//! `lockstep plan …`: estimates what a training run needs, before it starts. It computes on this machine and does not contact a collector.

mod memory;
mod model;
mod show;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Estimate what a training run needs, before you start it.
#[derive(Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Estimate the memory per GPU by component and by strategy, and what would make it fit.
    Memory(Box<memory::Memory>),
}

impl Plan {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        match self.action {
            Action::Memory(memory) => memory.execute(),
        }
    }
}
