//! Requirements of the container tests: Podman, and a root file system of this Debian to import as an image.
//!
//! ```text
//! container-root-bookworm.tar      debootstrap's smallest variant: a shell and a C library, no Python, no PyTorch
//! ```
//! The container mounts the tests' virtual environment with PyTorch, so no image of gigabytes is downloaded. Creating the root takes about
//! one minute, in parallel with the build; it is reused.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::Child;
use crate::layout::Layout;
use crate::lock;
use crate::progress;
use crate::toolchain::apt;

/// Enough for forty megabytes from a mirror at 1 MB/s.
const MAKE_LIMIT: Duration = Duration::from_secs(600);
const PACK_LIMIT: Duration = Duration::from_secs(120);
const STEP: &str = "container-root";

/// Returns the root file system as a tar archive; creates it if needed.
pub(crate) fn ensure(layout: &Layout) -> Result<PathBuf> {
    if !apt::is_debian() || !rustix::process::geteuid().is_root() {
        bail!("container tests need root on Debian, where Podman and debootstrap can be installed");
    }
    for tool in [&apt::PODMAN, &apt::RUNC, &apt::DEBOOTSTRAP] {
        apt::installed(layout, tool)?;
    }
    let suite = suite()?;
    let archive = layout.cache.join(format!("{STEP}-{suite}.tar"));
    let _lock = lock::hold(&layout.cache, STEP)?;
    if archive.is_file() {
        return Ok(archive);
    }
    progress::say(STEP, "making a root file system with debootstrap");
    let folder = layout.cache.join(format!("{STEP}.unfinished"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Child::new(layout, STEP, "debootstrap", MAKE_LIMIT)
        .args(["--variant=minbase", suite.as_str()])
        .args([&folder])
        .succeed()?;
    let unfinished = archive.with_extension("tar.unfinished");
    Child::new(layout, &format!("{STEP}-pack"), "tar", PACK_LIMIT)
        .args([
            "--create",
            "--exclude=./var/cache/apt",
            "--exclude=./var/lib/apt/lists",
            "--file",
        ])
        .args([&unfinished])
        .args(["--directory"])
        .args([&folder])
        .args(["."])
        .succeed()?;
    fs::rename(&unfinished, &archive)
        .with_context(|| format!("cannot put {} in place", archive.display()))?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(archive)
}

/// Returns `bookworm`, from `/etc/os-release`.
fn suite() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned)
        .context("/etc/os-release contains no Debian release")
}
