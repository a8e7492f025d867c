//! Paths: the checkout, and the cache folder that all checkouts share.
//!
//! ```text
//! $LOCKSTEP_CACHE, else $XDG_CACHE_HOME/lockstep, else ~/.cache/lockstep
//!   wasm-toolchain/   a compiler for the dashboard, if rustup could not install one
//!   venv -> venv-…/   PyTorch and the Python test tools
//!   venv-torch-2.7/   the same with another release of PyTorch, for tests with that release
//!   apt/              Prometheus and similar servers, unpacked, not installed
//!   npm/              node_modules by the hash of their lock file
//!   all-smi-…/        another NVML client, for comparisons
//!   revisions/        binaries of earlier revisions, see `measure::revision`
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folders that every subcommand uses.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The root of the checkout.
    pub(crate) root: PathBuf,
    /// The folder for downloads that all checkouts share.
    pub(crate) cache: PathBuf,
}

impl Layout {
    /// Finds the checkout from which this program was started.
    pub(crate) fn of_this_checkout() -> Result<Self> {
        let root = checkout()?;
        let cache = cache_folder()?;
        fs::create_dir_all(&cache)
            .with_context(|| format!("cannot make the cache folder {}", cache.display()))?;
        Ok(Self { root, cache })
    }

    /// Returns the folder of the dashboard's sources.
    pub(crate) fn web(&self) -> PathBuf {
        self.root.join("web")
    }

    /// Returns the folder of the dashboard that the collector serves.
    pub(crate) fn dist(&self) -> PathBuf {
        self.root.join("web/dist")
    }

    /// Returns the folder of the children's output: one file per step, kept until the same step runs again.
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("target/xtask")
    }

    /// Returns cargo's target folder for this machine.
    pub(crate) fn target(&self) -> PathBuf {
        match env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => self.root.join(folder),
            None => self.root.join("target"),
        }
    }
}

/// `cargo run` gives the package's folder at run time; the path compiled into the binary is used if the binary is started by hand. The path
/// at run time is preferred, because another checkout may have built the binary in a shared target folder.
fn checkout() -> Result<PathBuf> {
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.ancestors().nth(2).map(Path::to_path_buf);
    root.filter(|root| root.join("Cargo.lock").is_file())
        .with_context(|| {
            format!(
                "{} is not in a Lockstep checkout; start this as `cargo xtask`",
                package.display()
            )
        })
}

fn cache_folder() -> Result<PathBuf> {
    if let Some(own) = env::var_os("LOCKSTEP_CACHE") {
        return std::path::absolute(&own).context("LOCKSTEP_CACHE is not a usable path");
    }
    if let Some(xdg) = env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(xdg).join("lockstep"));
    }
    let home = env::var_os("HOME")
        .context("neither LOCKSTEP_CACHE nor HOME is set: set one of them to store downloads")?;
    Ok(PathBuf::from(home).join(".cache/lockstep"))
}
