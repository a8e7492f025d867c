//! One file per lazily loaded page: what only that page needs leaves the program.
//!
//! ```text
//! web.wasm → program (for wasm-bindgen) + split_PAGE.wasm + chunk_N.wasm (needed by several pages) + pages.js, which loads them
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use wasm_split_cli_support::{Options, transform};

use crate::fingerprint::Fingerprint;

/// The module that loads the pages. The program imports its functions.
const LOADER: &str = "pages.js";
/// Hexadecimal digits in the name of a page's file.
const HASH_DIGITS: usize = 12;

/// The program without its pages.
pub(crate) struct Split {
    /// The input of wasm-bindgen.
    pub(crate) program: PathBuf,
    /// The pages' files, in the stage.
    pub(crate) pages: Vec<PathBuf>,
}

/// Splits the compiled program. The pages and their loader are written into the stage.
pub(crate) fn run(program: &Path, stage: &Path) -> Result<Split> {
    let compiled = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let without_pages = program.with_file_name("web_without_pages.wasm");
    let link_name = format!("./{LOADER}");
    let mut options = Options::new(&compiled);
    options.output_dir = stage;
    options.main_out_path = &without_pages;
    options.link_name = &link_name;
    options.main_module = "./web.js";
    let split =
        transform(options).map_err(|error| anyhow!("cannot split {}: {error:#}", program.display()))?;
    Ok(Split {
        program: without_pages,
        pages: split.split_modules,
    })
}

/// Puts a hash into the pages' names. It covers the program and all pages, because they fit together only if they come from one build: after
/// an upgrade of the collector, an open dashboard gets an error for a page that it has not loaded, and not a page of another build.
pub(crate) fn rename(stage: &Path, pages: &[PathBuf]) -> Result<()> {
    let build = pages
        .iter()
        .try_fold(
            Fingerprint::default().contents(&stage.join("web_bg.wasm"))?,
            |build, page| build.contents(page),
        )?
        .hex();
    let loader = stage.join(LOADER);
    let mut script = fs::read_to_string(&loader).context("cannot read the pages' loader")?;
    for page in pages {
        let stem = page
            .file_stem()
            .and_then(|stem| stem.to_str())
            .with_context(|| format!("{} has no readable name", page.display()))?;
        let name = format!("{stem}-{}.wasm", &build[..HASH_DIGITS]);
        fs::rename(page, stage.join(&name)).with_context(|| format!("cannot rename {}", page.display()))?;
        script = script.replace(&format!("\"./{stem}.wasm\""), &format!("\"./{name}\""));
    }
    fs::write(&loader, script).context("cannot write the pages' loader")
}

/// What pages with charts load.
const CHARTS: [&str; 4] = ["uplot.js", "legend.js", "map.js", "chart.js"];
/// The texts of another language, which only its readers load.
const TEXTS: &str = "zh.json";

/// Returns true for a file that is loaded on demand, and that is not part of the first load.
pub(crate) fn is_on_demand(name: &str) -> bool {
    let is_split = name.ends_with(".wasm") && (name.starts_with("split_") || name.starts_with("chunk_"));
    is_split || CHARTS.contains(&name) || name == TEXTS
}

#[cfg(test)]
mod tests {
    use super::is_on_demand;

    #[test]
    fn the_first_load_is_what_every_reader_needs() {
        for name in [
            "split_run-0123456789ab.wasm",
            "chunk_0-0123456789ab.wasm",
            "chart.js",
            "zh.json",
        ] {
            assert!(is_on_demand(name), "{name}");
        }
        for name in ["index.html", "web_bg.wasm", "web.js", "pages.js", "start.js"] {
            assert!(!is_on_demand(name), "{name}");
        }
    }
}
