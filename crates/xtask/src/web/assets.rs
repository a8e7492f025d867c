//! Files that are not built: the page, the chart library, and everything in `web/public`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::cache;
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
    if public.is_dir() {
        cache::copy(&public, stage)?;
    }
    Ok(())
}

/// Returns true if the file of the stage comes from a package, which has minified it.
pub(crate) fn is_library(stage: &Path, file: &Path) -> bool {
    LIBRARIES.iter().any(|(_, name)| file == stage.join(name))
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
