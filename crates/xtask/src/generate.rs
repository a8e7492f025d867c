//! `cargo xtask generate`: files in the repository that are generated from definitions. The tests that compare the files write them
//! instead.

use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;

/// A cold build of the tests of these crates on two cores.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Writes all generated files.
pub(crate) fn run(layout: &Layout) -> Result<()> {
    let tests = Child::new(layout, "generate", "cargo", LIMIT)
        .args(["test", "--locked", "--package", "domain", "--package", "agent"])
        .args(["--package", "collector", "--package", "lockstep"])
        // All tests except the large ones with several processes, which generate nothing.
        .args(["--lib", "--bins", "--test", "repository"])
        .args(["--", "made_from"])
        .env("LOCKSTEP_GENERATE", "1");
    tests.succeed().map(drop)
}
