//! Debian packages: unpacked into the cache folder if that is enough, else installed.
//!
//! Servers that tests start (Prometheus, Alertmanager, VictoriaMetrics) are only unpacked: this needs no root and starts no daemon on the
//! machine. Chromium needs about a hundred libraries, so it is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::layout::Layout;
use crate::lock;
use crate::progress;

/// Enough for the largest set (137 MB) from a mirror at 1 MB/s.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(300);
const INSTALL_LIMIT: Duration = Duration::from_secs(600);
const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// A program from a Debian package.
pub(crate) struct Tool {
    /// The Debian package.
    pub(crate) package: &'static str,
    /// The file name in its `usr/bin`.
    pub(crate) program: &'static str,
}

impl Tool {
    /// Returns a program that has the name of its package.
    const fn named(name: &'static str) -> Self {
        Self {
            package: name,
            program: name,
        }
    }
}

pub(crate) const PROMETHEUS: Tool = Tool::named("prometheus");
pub(crate) const PROMTOOL: Tool = Tool {
    package: "prometheus",
    program: "promtool",
};
pub(crate) const ALERTMANAGER: Tool = Tool::named("prometheus-alertmanager");
pub(crate) const VICTORIA_METRICS: Tool = Tool::named("victoria-metrics");
pub(crate) const CHROMIUM: Tool = Tool::named("chromium");
pub(crate) const STRACE: Tool = Tool::named("strace");

pub(crate) const PODMAN: Tool = Tool::named("podman");
/// Podman's other low-level runtime, crun, refuses machines with both kinds of cgroups.
pub(crate) const RUNC: Tool = Tool::named("runc");
pub(crate) const DEBOOTSTRAP: Tool = Tool::named("debootstrap");

/// Returns true if this system has Debian's package tools.
pub(crate) fn is_debian() -> bool {
    child::on_path("apt-get").is_some() && child::on_path("dpkg-deb").is_some()
}

/// Returns a program that runs without installation: from PATH, else from the cache folder, else downloaded into it.
pub(crate) fn unpacked(layout: &Layout, tool: &Tool) -> Result<PathBuf> {
    if let Some(found) = child::on_path(tool.program) {
        return Ok(found);
    }
    let folder = layout.cache.join("apt").join(tool.package);
    let program = folder.join("usr/bin").join(tool.program);
    let _lock = lock::hold(&layout.cache, &format!("apt-{}", tool.package))?;
    if program.is_file() {
        return Ok(program);
    }
    if !is_debian() {
        bail!(
            "{} is not on PATH; install it (on Debian it is fetched by itself, package {})",
            tool.program,
            tool.package
        );
    }
    if !offers(tool.package) {
        update(layout)?;
    }
    progress::say(tool.package, "fetching Debian's package");
    let unfinished = unpack(layout, tool.package, &[tool.package.to_owned()])?;
    fs::create_dir_all(layout.cache.join("apt")).context("cannot make the folder of unpacked packages")?;
    fs::rename(&unfinished, &folder).with_context(|| format!("cannot put {} in place", folder.display()))?;
    if !program.is_file() {
        bail!("Debian's package {} has no {}", tool.package, program.display());
    }
    Ok(program)
}

/// Returns a program whose package must be installed with its dependencies.
pub(crate) fn installed(layout: &Layout, tool: &Tool) -> Result<PathBuf> {
    if let Some(found) = child::on_path(tool.program) {
        return Ok(found);
    }
    let by_hand = format!(
        "`apt-get install --no-install-recommends {}` as root",
        tool.package
    );
    if !is_debian() || !rustix::process::geteuid().is_root() {
        bail!(
            "{} is not on PATH, and this is not root on Debian, so it cannot be installed here; get it with {by_hand}",
            tool.program
        );
    }
    let _lock = lock::hold(&layout.cache, "apt-install")?;
    if !offers(tool.package) {
        update(layout)?;
    }
    progress::say(tool.package, "installing Debian's package");
    Child::new(layout, &format!("apt-{}", tool.package), "apt-get", INSTALL_LIMIT)
        .args(["install", "--yes", "--no-install-recommends", tool.package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .succeed()?;
    child::on_path(tool.program).with_context(|| format!("{} was installed but is not on PATH", tool.package))
}

/// Returns true if apt has a version of the package.
pub(crate) fn offers(package: &str) -> bool {
    let policy = child::output(
        Command::new("apt-cache")
            .args(["policy", package])
            .env("LC_ALL", "C"),
    );
    policy.is_ok_and(|text| candidate(&text).is_some())
}

/// Returns a direct dependency of a package: the first name with that prefix.
pub(crate) fn dependency(package: &str, prefix: &str) -> Result<String> {
    let listed = child::output(
        Command::new("apt-cache")
            .args(["depends", package])
            .env("LC_ALL", "C"),
    )?;
    depends(&listed)
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .with_context(|| format!("Debian's package {package} depends on no {prefix}…"))
}

/// Downloads the lists of packages, which a fresh image lacks. Needs root.
pub(crate) fn update(layout: &Layout) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    progress::say("apt", "downloading the package lists");
    Child::new(layout, "apt-update", "apt-get", DOWNLOAD_LIMIT)
        .args(["update"])
        .succeed()
        .map(drop)
}

/// Downloads packages and unpacks them together into a new folder, which the caller moves into place.
pub(crate) fn unpack(layout: &Layout, step: &str, packages: &[String]) -> Result<PathBuf> {
    let folder = layout.cache.join(format!("{step}.unfinished"));
    let downloads = folder.join("downloads");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&downloads).with_context(|| format!("cannot make {}", downloads.display()))?;
    Child::new(layout, &format!("{step}-download"), "apt-get", DOWNLOAD_LIMIT)
        .folder(&downloads)
        .args(["download"])
        .args(packages)
        .succeed()?;
    for file in crate::fingerprint::files(&downloads, &[])? {
        extract(layout, step, &file, &folder)?;
    }
    fs::remove_dir_all(&downloads).context("cannot remove the downloaded packages")?;
    Ok(folder)
}

fn extract(layout: &Layout, step: &str, package: &Path, into: &Path) -> Result<()> {
    Child::new(layout, &format!("{step}-unpack"), "dpkg-deb", UNPACK_LIMIT)
        .args([Path::new("-x"), package, into])
        .succeed()
        .map(drop)
}

fn candidate(policy: &str) -> Option<&str> {
    let version = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then_some(version)
}

fn depends(listed: &str) -> impl Iterator<Item = &str> {
    listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_read_and_its_absence_too() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n";
        assert_eq!(candidate(policy), Some("1.96.0+dfsg1-1~deb12u2"));
        assert_eq!(candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn only_hard_dependencies_count() {
        let listed =
            "libstd-rust-web-1.96\n  Depends: libc6\n  Depends: libllvm22\n  Recommends: libllvm99\n";
        assert_eq!(depends(listed).collect::<Vec<_>>(), ["libc6", "libllvm22"]);
    }
}
