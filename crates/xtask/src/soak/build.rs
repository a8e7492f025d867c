//! What has to be built before something long can run.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;
use crate::progress::say;

/// A cold release build of everything on two slow cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Builds programs with full optimisation; `args` name them, as cargo does. Returns their folder.
pub(crate) fn release(layout: &Layout, args: &[&str]) -> Result<PathBuf> {
    // The collector embeds the dashboard; none is as good as one here, but its folder must be there.
    crate::web::ensure_folder(layout)?;
    say("build", &format!("cargo build --release {}", args.join(" ")));
    Child::new(layout, "soak-build", "cargo", LIMIT)
        .args(["build", "--locked", "--release"])
        .args(args)
        .succeed()?;
    Ok(layout.target().join("release"))
}
