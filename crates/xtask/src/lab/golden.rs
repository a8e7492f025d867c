//! `cargo xtask lab golden REV`: folders and a backup that an earlier revision writes, for the tests that open them.
//!
//! The recorder is an ignored test of crates/lockstep (`golden::record`), run with the binary of that revision.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::lab::ignored_test;
use crate::layout::Layout;
use crate::measure::revision::{self, Profile};
use crate::progress::result;
use crate::toolchain::venv;

/// Compiling the tests, then two short runs.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Its test target and its name.
const RECORDER: (&str, &str) = ("first_light", "golden::record");
/// Digits of a revision in the name of its folder.
const SHORT: usize = 7;

#[derive(Args)]
pub(crate) struct Options {
    /// The revision that writes: anything that `git rev-parse` accepts.
    #[arg(value_name = "REV")]
    revision: String,
}

/// Records into `crates/lockstep/tests/data/golden/REVISION`. Refuses to replace an earlier recording.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let sha = revision::resolve(layout, &options.revision)?;
    let folder = layout
        .root
        .join("crates/lockstep/tests/data/golden")
        .join(&sha[..SHORT]);
    if folder.exists() {
        bail!(
            "{} exists; recorded folders are never changed, so remove it first if you are sure",
            folder.display()
        );
    }
    let venv = venv::ensure(layout)?;
    // A debug binary would search the probe and the recipes in a checkout that is gone.
    let binary = revision::binary_of(layout, &sha, Profile::Release)?;
    ignored_test(layout, "lab-golden", RECORDER, LIMIT, &venv)?
        .env("LOCKSTEP_TEST_BINARY", binary)
        .env("LOCKSTEP_GOLDEN_FOLDER", &folder)
        .succeed()
        .with_context(|| format!("{sha} was not recorded"))?;
    result(&format!("recorded {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}
