//! Minifies the scripts with esbuild: the generated ones and those of `web/public`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::assets;
use crate::child::Child;
use crate::fingerprint;
use crate::layout::Layout;
use crate::toolchain::npm;

const LIMIT: Duration = Duration::from_secs(60);

/// Minifies the scripts of the stage in place; does nothing in a fast build.
pub(crate) fn run(layout: &Layout, modules: &Path, stage: &Path, fast: bool) -> Result<()> {
    if fast {
        return Ok(());
    }
    let files = fingerprint::files(stage, &[])?;
    let is_ours = |file: &&PathBuf| {
        file.extension().is_some_and(|ending| ending == "js") && !assets::is_library(stage, file)
    };
    Child::new(layout, "minify", npm::node()?, LIMIT)
        .args([modules.join("esbuild/bin/esbuild")])
        .args(files.iter().filter(is_ours))
        // The scripts share no names: they import each other, or set properties of `globalThis`. So names at the top level may be short too.
        .args(["--minify", "--format=esm", "--charset=utf8", "--allow-overwrite"])
        // wasm-bindgen repeats the name of a module in its list of imports, which causes warnings.
        .args(["--log-level=error"])
        .args([
            format!("--outdir={}", stage.display()),
            format!("--outbase={}", stage.display()),
        ])
        .succeed()
        .map(drop)
}
