//! Trials of a revision that are done: a command that was cut off goes on where it was.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::layout::Layout;

/// Nothing to choose but whether to begin anew.
#[derive(Args)]
pub(crate) struct Trials {
    /// Does all trials again, also those of this revision that are done.
    #[arg(long)]
    again: bool,
}

impl Trials {
    /// The file of a command's trials.
    pub(super) fn file(&self, layout: &Layout, command: &str, revision: &str) -> Result<PathBuf> {
        let file = layout.logs().join(format!("{command}-{revision}.jsonl"));
        fs::create_dir_all(layout.logs()).context("cannot make the folder of logs")?;
        if self.again && file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(file)
    }
}
