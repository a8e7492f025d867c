//! Files that are not built: the page, the chart library, and everything in `web/public`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::fingerprint;
use crate::layout::Layout;

/// From node_modules to the name in the address.
const LIBRARIES: [(&str, &str); 2] = [
    ("uplot/dist/uPlot.iife.min.js", "uplot.js"),
    ("uplot/dist/uPlot.min.css", "uplot.css"),
];

/// Copies them into the stage.
pub(crate) fn copy(layout: &Layout, modules: &Path, stage: &Path) -> Result<()> {
    copy_file(&layout.web().join("index.html"), &stage.join("index.html"))?;
    for (from, to) in LIBRARIES {
        copy_file(&modules.join(from), &stage.join(to))?;
    }
    let public = layout.web().join("public");
    if !public.is_dir() {
        return Ok(());
    }
    for file in fingerprint::files(&public, &[])? {
        let name = file
            .strip_prefix(&public)
            .context("a listed file lies below its folder")?;
        copy_file(&file, &stage.join(name))?;
    }
    Ok(())
}

/// Returns true if the file of the stage comes from a package, which has minified it.
pub(crate) fn is_library(stage: &Path, file: &Path) -> bool {
    LIBRARIES.iter().any(|(_, name)| file == stage.join(name))
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
