//! `cargo xtask web`: the dashboard, from Rust sources to the compressed files that the collector serves.
//!
//! ```text
//! compile (wasm32) → split (pages) → bindgen (web.js, web_bg.wasm) → wasm-opt → style sheet → page and public files → minified scripts → .br and .gz → web/dist
//! ```
//! The build uses a separate folder and moves it into place at the end, so that `web/dist` is always complete. Nothing is built if the
//! inputs are unchanged since `web/dist` or a cached dashboard was built.

mod assets;
mod bindgen;
mod cache;
mod compile;
mod compress;
mod minify;
mod optimise;
mod split;
mod style;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::fingerprint::{Fingerprint, files};
use crate::layout::Layout;
use crate::lock;
use crate::measure::folder;
use crate::progress::{result, say};
use crate::toolchain::{npm, wasm};

/// Options of the build.
#[derive(Args, Clone, Default)]
pub(crate) struct Options {
    /// Less optimisation and no wasm-opt: for development of the dashboard, not for release.
    #[arg(long)]
    pub(crate) fast: bool,
    /// Builds even if nothing changed since the last build.
    #[arg(long)]
    pub(crate) force: bool,
}

/// The size limits in bytes, compressed.
const BUDGETS: [Budget; 2] = [
    Budget {
        what: "of the first load",
        bytes: 250 << 10,
        contains: |name| !split::is_on_demand(name),
    },
    Budget {
        what: "of all files",
        bytes: 742 << 10,
        contains: |_| true,
    },
];

/// A limit for some of the files.
struct Budget {
    what: &'static str,
    bytes: u64,
    contains: fn(&str) -> bool,
}

/// Contains the fingerprint of the inputs of a finished `web/dist`.
const STAMP: &str = ".stamp";
const STEP: &str = "web";

/// Builds the dashboard unless it is up to date.
pub(crate) fn build(layout: &Layout, options: &Options) -> Result<()> {
    let _lock = lock::hold(&layout.logs(), STEP)?;
    if !options.force && is_fresh(layout, options)? {
        say(STEP, "web/dist is up to date");
        return Ok(());
    }
    let inputs = fingerprint(layout, options.fast)?;
    let stage = empty_stage(layout)?;
    if !options.force && cache::restore(layout, &inputs, &stage)? {
        say(STEP, "restored from the cache: the inputs are unchanged");
        return put_in_place(&stage, &layout.dist());
    }
    let mut steps = Steps::default();
    let files = fill(layout, options, &stage, &mut steps)?;
    fs::write(stage.join(STAMP), &inputs).context("cannot stamp the dashboard")?;
    cache::keep(layout, &inputs, &stage)?;
    put_in_place(&stage, &layout.dist())?;
    report(&files, &steps)
}

/// Creates `web/dist` if it is missing, because the collector embeds the folder when it is compiled, with any contents.
pub(crate) fn ensure_folder(layout: &Layout) -> Result<()> {
    fs::create_dir_all(layout.dist()).context("cannot make web/dist")
}

fn fill(layout: &Layout, options: &Options, stage: &Path, steps: &mut Steps) -> Result<Vec<compress::Sizes>> {
    let fast = options.fast;
    let modules = steps.time("npm packages", || npm::ensure(layout, "web"))?;
    let toolchain = steps.time("wasm toolchain", || wasm::ensure(layout))?;
    say(STEP, &format!("compiling with {}", toolchain.name()));
    let program = steps.time("compile", || compile::run(layout, &toolchain, fast))?;
    let split::Split { program, pages } = steps.time("split", || split::run(&program, stage))?;
    steps.time("bindgen", || bindgen::run(&program, stage, fast))?;
    steps.time("wasm-opt", || {
        optimise::run(layout, &modules, stage, &pages, fast)
    })?;
    split::rename(stage, &pages)?;
    steps.time("style sheet", || style::run(layout, &modules, stage))?;
    steps.time("assets", || assets::copy(layout, &modules, stage))?;
    steps.time("minify", || minify::run(layout, &modules, stage, fast))?;
    steps.time("compress", || compress::run(layout, stage, fast))
}

/// The duration of each step, in the order of the steps.
#[derive(Default)]
struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        say(STEP, name);
        let start = Instant::now();
        let value = work()?;
        self.0.push((name, start.elapsed()));
        Ok(value)
    }
}

/// Returns true if `web/dist` is up to date. A full build is also valid if a fast one is requested.
fn is_fresh(layout: &Layout, options: &Options) -> Result<bool> {
    let Ok(stamp) = fs::read_to_string(layout.dist().join(STAMP)) else {
        return Ok(false);
    };
    Ok(stamp == fingerprint(layout, false)? || (options.fast && stamp == fingerprint(layout, true)?))
}

fn fingerprint(layout: &Layout, fast: bool) -> Result<String> {
    let aside = [layout.dist(), layout.web().join("node_modules")];
    let builder = layout.root.join("crates/xtask/src");
    let domain = layout.root.join("crates/domain");
    let recipes = files(&layout.root.join("crates/torch-probe/recipes"), &[])?;
    let mut recipes = recipes.iter().filter(|file| file.ends_with("recipe.toml"));
    let recipes = recipes.try_fold(Fingerprint::default(), |all, recipe| all.contents(recipe))?;
    Ok(Fingerprint::default()
        .word(if fast { "fast" } else { "full" })
        .path(&layout.web(), &aside)?
        .path(&domain.join("src"), &[])?
        .contents(&domain.join("build.rs"))?
        .word(&recipes.hex())
        .path(&layout.root.join(".cargo/config.toml"), &[])?
        .path(&layout.root.join("Cargo.lock"), &[])?
        .path(&layout.root.join("Cargo.toml"), &[])?
        .path(&builder.join("web.rs"), &[])?
        .path(&builder.join("web"), &[])?
        .hex())
}

fn empty_stage(layout: &Layout) -> Result<PathBuf> {
    let stage = layout.logs().join("dist");
    folder::empty(&stage)?;
    Ok(stage)
}

fn put_in_place(stage: &Path, dist: &Path) -> Result<()> {
    if dist.exists() {
        fs::remove_dir_all(dist).with_context(|| format!("cannot remove the former {}", dist.display()))?;
    }
    fs::rename(stage, dist).with_context(|| format!("cannot put {} in place", dist.display()))
}

/// Prints what was built. Fails if it is larger than the size limit.
fn report(files: &[compress::Sizes], Steps(times): &Steps) -> Result<()> {
    result("step               seconds");
    for (name, time) in times {
        result(&format!("{name:<18} {:>7.1}", time.as_secs_f64()));
    }
    let sum: Duration = times.iter().map(|(_, time)| *time).sum();
    result(&format!("{:<18} {:>7.1}\n", "all", sum.as_secs_f64()));
    result(&format!(
        "{:<28} {:>10} {:>10} {:>10}",
        "file (bytes)", "plain", "gzip", "brotli"
    ));
    for file in files {
        result(&format!(
            "{:<28} {:>10} {:>10} {:>10}",
            file.name, file.plain, file.gzip, file.brotli
        ));
    }
    for Budget {
        what,
        bytes,
        contains,
    } in BUDGETS
    {
        let counted = files.iter().filter(|file| contains(&file.name));
        let size: u64 = counted.map(|file| file.brotli).sum();
        ensure!(
            size <= bytes,
            "{:.1} KB {what}, compressed: over the budget of {:.1} KB",
            kilo(size),
            kilo(bytes)
        );
        result(&format!(
            "{:.1} KB {what}, compressed: within the budget of {:.1} KB",
            kilo(size),
            kilo(bytes)
        ));
    }
    Ok(())
}

fn kilo(bytes: u64) -> f64 {
    bytes as f64 / 1000.0
}
