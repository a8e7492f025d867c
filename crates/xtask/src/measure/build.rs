//! Builds the programs to measure.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;
use crate::progress::say;

/// A cold release build of everything on two slow cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Builds what the cargo arguments `args` name, with full optimisation. One call builds shared dependencies only once.
pub(crate) fn release(layout: &Layout, args: &[&str]) -> Result<()> {
    // The collector embeds the dashboard. It may be empty here, but its folder must exist.
    crate::web::ensure_folder(layout)?;
    say("build", &format!("cargo build --release {}", args.join(" ")));
    Child::new(layout, "build-release", "cargo", LIMIT)
        .args(["build", "--locked", "--release"])
        .args(args)
        .succeed()?;
    Ok(())
}

/// Returns the path of a program built this way.
pub(crate) fn program(layout: &Layout, name: &str) -> PathBuf {
    layout.target().join("release").join(name)
}
