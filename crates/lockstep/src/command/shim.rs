//! `lockstep shim`: the small process that owns the ranks of one run on this node and outlives the agent.

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;

/// Own the processes of one run on this node. The agent starts it; do not start it yourself.
#[derive(Args)]
pub(crate) struct Shim {
    /// Folder of the attempt.
    #[arg(long)]
    dir: PathBuf,
}

impl Shim {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        std::process::exit(::shim::main(&self.dir).into());
    }
}
