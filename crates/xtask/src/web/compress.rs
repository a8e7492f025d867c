//! Compressed copies beside each file, so that the collector does not compress while serving.
//!
//! Node does this: it contains both codecs compiled with optimisation, and the style sheet needs it anyway. Two crates for it would take
//! minutes at brotli's highest level in an unoptimised build.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::child::Child;
use crate::fingerprint;
use crate::layout::Layout;
use crate::toolchain::npm;

const LIMIT: Duration = Duration::from_secs(120);

/// Its arguments: first the brotli level, then the files.
const SCRIPT: &str = r#"
const { readFileSync, writeFileSync } = require("node:fs");
const { brotliCompressSync, gzipSync, constants } = require("node:zlib");
const [level, ...files] = process.argv.slice(1);
for (const file of files) {
  const plain = readFileSync(file);
  const params = { [constants.BROTLI_PARAM_QUALITY]: Number(level), [constants.BROTLI_PARAM_SIZE_HINT]: plain.length };
  writeFileSync(file + ".br", brotliCompressSync(plain, { params }));
  writeFileSync(file + ".gz", gzipSync(plain, { level: 9 }));
}
"#;

/// The sizes of a served file, in bytes.
pub(crate) struct Sizes {
    /// Its path below the dashboard's root.
    pub(crate) name: String,
    /// Uncompressed.
    pub(crate) plain: u64,
    /// With gzip.
    pub(crate) gzip: u64,
    /// With brotli.
    pub(crate) brotli: u64,
}

/// Compresses every file of the stage that becomes smaller.
pub(crate) fn run(layout: &Layout, stage: &Path, fast: bool) -> Result<Vec<Sizes>> {
    let files = fingerprint::files(stage, &[])?;
    let gaining: Vec<_> = files.iter().filter(|file| gains(file)).collect();
    Child::new(layout, "compress", npm::node()?, LIMIT)
        .args(["--eval", SCRIPT, if fast { "4" } else { "11" }])
        .args(gaining)
        .succeed()?;
    files.iter().map(|file| sizes(stage, file)).collect()
}

/// Returns false for images and fonts, which are compressed already.
fn gains(file: &Path) -> bool {
    let ending = file
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    matches!(
        ending,
        "html" | "css" | "js" | "wasm" | "svg" | "json" | "txt" | "webmanifest"
    )
}

fn sizes(stage: &Path, file: &Path) -> Result<Sizes> {
    let name = file
        .strip_prefix(stage)
        .context("a listed file lies below its folder")?
        .display()
        .to_string();
    let plain = length(file)?;
    let compressed = |ending: &str| {
        if gains(file) {
            length(&stage.join(format!("{name}.{ending}")))
        } else {
            Ok(plain)
        }
    };
    let (gzip, brotli) = (compressed("gz")?, compressed("br")?);
    Ok(Sizes {
        name,
        plain,
        gzip,
        brotli,
    })
}

fn length(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file)
        .with_context(|| format!("cannot measure {}", file.display()))?
        .len())
}
