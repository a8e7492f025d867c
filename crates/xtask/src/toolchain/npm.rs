//! Packages from npm: the compiler of the style sheet, the chart library, wasm-opt, and the browser driver of the tests.
//!
//! A folder of the checkout lists them in a lock file. They are installed into the cache folder under the hash of that lock file, never
//! into the checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::fingerprint::Fingerprint;
use crate::layout::Layout;
use crate::lock;
use crate::progress;

const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// Returns the `node_modules` for `folder`'s package-lock.json.
pub(crate) fn ensure(layout: &Layout, folder: &str) -> Result<PathBuf> {
    let source = layout.root.join(folder);
    let lock_file = source.join("package-lock.json");
    let hash = Fingerprint::default().contents(&lock_file)?.hex();
    let home = layout.cache.join("npm").join(format!("{folder}-{}", &hash[..12]));
    let modules = home.join("node_modules");
    let _lock = lock::hold(&layout.cache, &format!("npm-{folder}"))?;
    if !modules.is_dir() {
        install(layout, folder, &source, &home)?;
    }
    Ok(modules)
}

/// Returns Node, which this program cannot install.
pub(crate) fn node() -> Result<PathBuf> {
    child::on_path("node").context("node is not on PATH; the dashboard's build needs Node 20 or newer with npm (Debian: apt-get install nodejs npm)")
}

fn install(layout: &Layout, name: &str, source: &Path, home: &Path) -> Result<()> {
    if child::on_path("npm").is_none() {
        bail!("npm is not on PATH; install Node 20 or newer with npm (Debian: apt-get install nodejs npm)");
    }
    progress::say(
        &format!("npm-{name}"),
        "installing the packages in package-lock.json",
    );
    let unfinished = home.with_extension(format!("unfinished-{}", process::id()));
    fs::create_dir_all(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(source.join(file), unfinished.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    // Versions and checksums still come from the lock file. `npm ci` would also require the packages for other systems, which a site's
    // mirror may lack.
    // No install scripts: none of these packages needs one, and they are third-party code.
    Child::new(layout, &format!("npm-{name}"), "npm", INSTALL_LIMIT)
        .folder(&unfinished)
        .args("install --no-save --ignore-scripts --no-audit --no-fund".split(' '))
        .succeed()?;
    fs::rename(&unfinished, home).with_context(|| format!("cannot put {} in place", home.display()))
}
