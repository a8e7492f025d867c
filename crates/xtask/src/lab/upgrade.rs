//! Real runs with programs of two releases: the tests in crates/lockstep/tests/first_light/upgrade, and their table in docs/upgrade.md.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::lab::{Matrix, ignored_test};
use crate::layout::Layout;
use crate::measure::revision::{self, Profile};
use crate::measure::{machine, section};
use crate::progress::{exit_code, result, say};
use crate::toolchain::venv;

/// The last release, from which users upgrade to this version.
const RELEASED: &str = "b49bf1d";
/// The document about upgrades; this program writes its last section.
const DOCUMENT: &str = "docs/upgrade.md";
const MATRIX: Matrix = Matrix {
    step: "lab-upgrade",
    binary: "first_light",
    test: "upgrade::rows::all",
    begin: "=== table of upgrades ===",
    limit: Duration::from_secs(60 * 60),
};
/// The test that writes a recording.
const RECORDER: &str = "upgrade::record::a_conversation_of_the_old_programs";

/// From which release to upgrade.
#[derive(Args)]
pub(crate) struct Options {
    /// The revision to upgrade from; built from a git worktree on the first call.
    #[arg(long, value_name = "REVISION", default_value = RELEASED)]
    from: String,
    /// A binary of that revision, instead of building one. The table is then only printed, and the document stays unchanged.
    #[arg(long, value_name = "FILE")]
    old_binary: Option<PathBuf>,
    /// Builds that revision with full optimisation, as users have it. Takes several times as long.
    #[arg(long)]
    release: bool,
    /// Only records a conversation of two programs of that revision into this file, for crates/wire/testdata/recorded.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Options {
    fn profile(&self) -> Profile {
        if self.release {
            Profile::Release
        } else {
            Profile::Debug
        }
    }
}

/// Runs every row. Fails if a check of a row failed.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the run.
    let revision = machine::revision(layout);
    let venv = venv::ensure(layout)?;
    let old = match &options.old_binary {
        Some(binary) => std::path::absolute(binary).context("--old-binary is not a valid path")?,
        None => revision::binary_of(layout, &options.from, options.profile())?,
    };
    if let Some(file) = &options.record {
        return record(layout, &venv, &old, file);
    }
    let settings = [("LOCKSTEP_TEST_OLD_BINARY", old.display().to_string())];
    let (table, well) = MATRIX.run(layout, &venv, &settings)?;
    result(&table);
    if options.old_binary.is_none() {
        keep(layout, options, &revision, &table, well)?;
    } else {
        say(
            "upgrade",
            "docs/upgrade.md is unchanged: it contains only tables of revisions that were built here",
        );
    }
    Ok(exit_code(well))
}

fn record(layout: &Layout, venv: &Path, old: &Path, file: &Path) -> Result<ExitCode> {
    let file = std::path::absolute(file).context("--record is not a valid path")?;
    let recorder = (MATRIX.binary, RECORDER);
    ignored_test(layout, "lab-upgrade-record", recorder, MATRIX.limit, venv)?
        .env("LOCKSTEP_TEST_OLD_BINARY", old)
        .env("LOCKSTEP_RECORD_TO", &file)
        .succeed()?;
    say("upgrade", &format!("recorded into {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn keep(layout: &Layout, options: &Options, revision: &str, table: &str, well: bool) -> Result<()> {
    let command = format!("cargo xtask lab upgrade --from {}", options.from);
    let text = format!("{}\n\n{table}", machine::origin(&command, revision));
    let heading = format!("Results: {}", if well { "passed" } else { "failed" });
    let introduction = "# Upgrade Lockstep\n";
    section::keep(&layout.root.join(DOCUMENT), introduction, &heading, &text)
}
