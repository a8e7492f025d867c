//! wasm-opt, which halves the size of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::child::Child;
use crate::layout::Layout;
use crate::toolchain::npm;

const LIMIT: Duration = Duration::from_secs(300);

/// The features that rustc uses by default since 1.82 and that every browser of the last three years supports. wasm-opt refuses a program
/// with another feature, so a new default of rustc causes an error here, not in a user's browser.
const FEATURES: [&str; 7] = [
    "--enable-bulk-memory",
    "--enable-bulk-memory-opt",
    "--enable-multivalue",
    "--enable-mutable-globals",
    "--enable-nontrapping-float-to-int",
    "--enable-reference-types",
    "--enable-sign-ext",
];

/// Shrinks the program and its pages in place; does nothing in a fast build.
pub(crate) fn run(
    layout: &Layout,
    modules: &Path,
    stage: &Path,
    pages: &[PathBuf],
    fast: bool,
) -> Result<()> {
    if fast {
        return Ok(());
    }
    shrink(layout, modules, &stage.join("web_bg.wasm"))?;
    pages.iter().try_for_each(|page| shrink(layout, modules, page))
}

fn shrink(layout: &Layout, modules: &Path, file: &Path) -> Result<()> {
    let smaller = file.with_extension("smaller");
    Child::new(layout, "wasm-opt", npm::node()?, LIMIT)
        .args([modules.join("binaryen/bin/wasm-opt")])
        // Rust puts its stack first: nothing lies below 1 KiB, so addresses may be folded into loads and stores.
        .args(["-Oz", "--strip-debug", "--strip-producers", "--low-memory-unused"])
        .args(FEATURES)
        .args([file, Path::new("-o"), smaller.as_path()])
        .succeed()?;
    fs::rename(&smaller, file)
        .with_context(|| format!("cannot replace {} with the smaller one", file.display()))
}
