//! What has to be built before it can be measured.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;
use crate::progress::say;

/// A cold release build of everything on two slow cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Builds with full optimisation what `args` name, as cargo takes them. Together, so that what they share is built once.
pub(crate) fn release(layout: &Layout, args: &[&str]) -> Result<()> {
    // The collector embeds the dashboard; none is as good as one here, but its folder must be there.
    crate::web::ensure_folder(layout)?;
    say("build", &format!("cargo build --release {}", args.join(" ")));
    Child::new(layout, "build-release", "cargo", LIMIT)
        .args(["build", "--locked", "--release"])
        .args(args)
        .succeed()?;
    Ok(())
}

/// A program that was built so.
pub(crate) fn program(layout: &Layout, name: &str) -> PathBuf {
    layout.target().join("release").join(name)
}
