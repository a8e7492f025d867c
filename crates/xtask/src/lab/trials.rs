//! Finished trials of a revision: an interrupted command continues with the next one.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::layout::Layout;

/// Whether to start again.
#[derive(Args)]
pub(crate) struct Trials {
    /// Runs all trials again, also the finished ones of this revision.
    #[arg(long)]
    again: bool,
}

impl Trials {
    /// Returns the file of a command's trials.
    pub(super) fn file(&self, layout: &Layout, command: &str, revision: &str) -> Result<PathBuf> {
        let file = layout.logs().join(format!("{command}-{revision}.jsonl"));
        fs::create_dir_all(layout.logs()).context("cannot make the folder of logs")?;
        if self.again && file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(file)
    }
}
