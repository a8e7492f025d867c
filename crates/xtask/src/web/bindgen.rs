//! The glue between WebAssembly and the browser, by wasm-bindgen as a library: Cargo.lock holds it at the version of the
//! `wasm-bindgen` that the dashboard was compiled with, so the two cannot disagree.

use std::path::Path;

use anyhow::{Context as _, Result};
use wasm_bindgen_cli_support::Bindgen;

/// Writes `web.js` and `web_bg.wasm`, and `snippets/` when the dashboard brings JavaScript of its own.
pub(crate) fn run(program: &Path, stage: &Path, fast: bool) -> Result<()> {
    let mut bindgen = Bindgen::new();
    bindgen.input_path(program).out_name("web").typescript(false);
    // Names of functions make a panic's trace readable; they are a third of the file.
    bindgen.remove_name_section(!fast).remove_producers_section(!fast);
    bindgen
        .web(true)
        .and_then(|bindgen| bindgen.generate(stage))
        .with_context(|| format!("wasm-bindgen cannot read {}", program.display()))
}
