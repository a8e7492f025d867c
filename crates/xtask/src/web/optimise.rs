//! wasm-opt, which takes another half off the program.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::child::Child;
use crate::layout::Layout;
use crate::toolchain::npm;

const LIMIT: Duration = Duration::from_secs(300);

/// What rustc emits by default since 1.82 and every browser of the last three years reads. wasm-opt refuses a program that
/// uses a feature it was not told of, so a new default of rustc shows as an error here, not in somebody's browser.
const FEATURES: [&str; 7] = [
    "--enable-bulk-memory",
    "--enable-bulk-memory-opt",
    "--enable-multivalue",
    "--enable-mutable-globals",
    "--enable-nontrapping-float-to-int",
    "--enable-reference-types",
    "--enable-sign-ext",
];

/// Shrinks the program in place; a fast build goes without.
pub(crate) fn run(layout: &Layout, modules: &Path, stage: &Path, fast: bool) -> Result<()> {
    if fast {
        return Ok(());
    }
    let program = stage.join("web_bg.wasm");
    let smaller = stage.join("web_bg.wasm.smaller");
    Child::new(layout, "wasm-opt", npm::node()?, LIMIT)
        .args([modules.join("binaryen/bin/wasm-opt")])
        // Rust puts its stack first: nothing lies below 1 KiB, and addresses may be folded into loads and stores.
        .args(["-Oz", "--strip-debug", "--strip-producers", "--low-memory-unused"])
        .args(FEATURES)
        .args([program.as_path(), Path::new("-o"), smaller.as_path()])
        .succeed()?;
    fs::rename(&smaller, &program).context("cannot replace the program by the smaller one")
}
