//! `cargo xtask generate`: files in the repository that are made from definitions. The tests that compare them write them instead.

use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;

/// A cold build of the tests of these crates on two cores.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Writes them all.
pub(crate) fn run(layout: &Layout) -> Result<()> {
    let tests = Child::new(layout, "generate", "cargo", LIMIT)
        .args(["test", "--locked", "--package", "domain", "--package", "agent"])
        .args(["--package", "collector", "--package", "lockstep"])
        // All but the large tests over several processes, which generate nothing.
        .args(["--lib", "--bins", "--test", "repository"])
        .args(["--", "made_from"])
        .env("LOCKSTEP_GENERATE", "1");
    tests.succeed().map(drop)
}
