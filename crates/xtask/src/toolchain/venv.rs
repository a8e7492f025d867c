//! The Python environment of managed runs and of the Python tests: PyTorch, pytest, and other NVML clients. Also small environments for
//! programs that are only measured.
//!
//! `venv` is a link to a folder named after the hash of the requirements. Changed requirements create a new folder and move the link, so
//! that a training process keeps the old folder while it runs. A stamp, written last, marks a complete folder. A `venv` folder created by
//! hand is completed in place and stamped.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::fingerprint::Fingerprint;
use crate::layout::Layout;
use crate::lock;
use crate::progress;

/// PyTorch with CUDA has about 5 GB, which takes long on a slow connection.
const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);
const CREATE_LIMIT: Duration = Duration::from_secs(120);
const STAMP: &str = ".lockstep-complete";
const STEP: &str = "venv";

/// Returns the environment's folder with all requirements installed.
pub(crate) fn ensure(layout: &Layout) -> Result<PathBuf> {
    let requirements = layout.root.join("crates/torch-probe/requirements-test.txt");
    let wanted = Fingerprint::default().contents(&requirements)?.hex();
    let _lock = lock::hold(&layout.cache, STEP)?;
    let venv = layout.cache.join("venv");
    if is_complete(&venv, &wanted) {
        return Ok(venv);
    }
    let made_by_hand = venv.is_dir() && !venv.is_symlink();
    let home = if made_by_hand {
        venv.clone()
    } else {
        layout.cache.join(format!("venv-{}", &wanted[..12]))
    };
    fill(layout, &home, &requirements)?;
    fs::write(home.join(STAMP), &wanted).with_context(|| format!("cannot stamp {}", home.display()))?;
    if !made_by_hand {
        point(&venv, &home)?;
    }
    Ok(venv)
}

/// Returns an environment with another release of PyTorch, `2.7` or `2.7.1`, for tests with that release.
pub(crate) fn with_torch(layout: &Layout, release: &str) -> Result<PathBuf> {
    let ours = layout.root.join("crates/torch-probe/requirements-test.txt");
    let ours = fs::read_to_string(&ours).with_context(|| format!("cannot read {}", ours.display()))?;
    let text = requirements_with_torch(&ours, release)?;
    let wanted = Fingerprint::default().word(&text).hex();
    let name = format!("venv-torch-{release}");
    let _lock = lock::hold(&layout.cache, &name)?;
    let home = layout.cache.join(&name);
    if !is_complete(&home, &wanted) {
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let requirements = home.join("requirements.txt");
        fs::write(&requirements, text).with_context(|| format!("cannot write {}", requirements.display()))?;
        fill(layout, &home, &requirements)?;
        fs::write(home.join(STAMP), &wanted).with_context(|| format!("cannot stamp {}", home.display()))?;
    }
    Ok(home)
}

/// Returns the release of PyTorch in the requirements.
pub(crate) fn torch_release(layout: &Layout) -> Result<String> {
    let requirements = layout.root.join("crates/torch-probe/requirements-test.txt");
    let text = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let release = text.lines().find_map(|line| line.strip_prefix("torch=="));
    Ok(release
        .context("the requirements contain no torch==…")?
        .trim()
        .to_owned())
}

/// The requirements are the same except for the line of PyTorch.
fn requirements_with_torch(ours: &str, release: &str) -> Result<String> {
    if !ours.lines().any(|line| line.starts_with("torch==")) {
        bail!("the requirements contain no torch==…, so it cannot be replaced by another release");
    }
    // A release of two parts means its newest patch.
    let any_patch = if release.matches('.').count() == 1 {
        ".*"
    } else {
        ""
    };
    let lines = ours.lines().map(|line| match line.strip_prefix("torch==") {
        Some(_) => format!("torch=={release}{any_patch}\n"),
        None => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// A program from the Python package index, in its own environment, so that PyTorch's environment stays as the tests need it.
pub(crate) struct Tool {
    pub(crate) package: &'static str,
    /// The package's program.
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
}

/// A third-party exporter of NVML.
pub(crate) const NVITOP_EXPORTER: Tool = Tool {
    package: "nvitop-exporter",
    program: "nvitop-exporter",
    version: "1.7.2",
};

/// A third-party diagnosis of slow training.
pub(crate) const TRACEML: Tool = Tool {
    package: "traceml-ai",
    program: "traceml",
    version: "0.5.0",
};

/// Returns the program of a package; installs it if needed.
pub(crate) fn tool(layout: &Layout, tool: &Tool) -> Result<PathBuf> {
    let _lock = lock::hold(&layout.cache, tool.package)?;
    let home = layout.cache.join(format!("{}-{}", tool.package, tool.version));
    let program = home.join("bin").join(tool.program);
    if is_complete(&home, tool.version) && program.is_file() {
        return Ok(program);
    }
    if !python(&home).exists() {
        create(layout, &home)?;
    }
    progress::say(tool.package, "installing it from the package index");
    let package = format!("{}=={}", tool.package, tool.version);
    pip(
        layout,
        &format!("pip-{}", tool.package),
        &home,
        &[OsStr::new(&package)],
    )?;
    fs::write(home.join(STAMP), tool.version).with_context(|| format!("cannot stamp {}", home.display()))?;
    Ok(program)
}

/// Returns the interpreter of an environment.
pub(crate) fn python(venv: &Path) -> PathBuf {
    venv.join("bin/python")
}

fn is_complete(venv: &Path, wanted: &str) -> bool {
    fs::read_to_string(venv.join(STAMP)).is_ok_and(|stamp| stamp == wanted) && python(venv).exists()
}

fn fill(layout: &Layout, home: &Path, requirements: &Path) -> Result<()> {
    if !python(home).exists() {
        create(layout, home)?;
    }
    progress::say(
        STEP,
        "installing PyTorch and the test tools (up to 5 GB, once; a minute on a fast line)",
    );
    pip(
        layout,
        "pip",
        home,
        &[OsStr::new("--requirement"), requirements.as_os_str()],
    )
}

fn pip(layout: &Layout, step: &str, home: &Path, what: &[&OsStr]) -> Result<()> {
    Child::new(layout, step, python(home), INSTALL_LIMIT)
        .args("-m pip install --no-input --disable-pip-version-check --progress-bar off".split(' '))
        .args(what)
        .succeed()
        .context("pip could not install the requirements; it needs a reachable package index")
        .map(drop)
}

fn create(layout: &Layout, home: &Path) -> Result<()> {
    let Some(python) = child::on_path("python3") else {
        bail!(
            "python3 is not on PATH; install Python 3.10 or newer (Debian: apt-get install python3 python3-venv)"
        );
    };
    Child::new(layout, "venv", python, CREATE_LIMIT)
        .args([Path::new("-m"), Path::new("venv"), home])
        .succeed()
        .context("python3 cannot make an environment (Debian: apt-get install python3-venv)")
        .map(drop)
}

/// Moves the link in one step, so that it always points to a complete environment. The old environment stays for processes that use it.
fn point(venv: &Path, home: &Path) -> Result<()> {
    let fresh = venv.with_extension("fresh");
    fs::remove_file(&fresh).ok();
    symlink(home, &fresh).with_context(|| format!("cannot link {}", fresh.display()))?;
    fs::rename(&fresh, venv).with_context(|| format!("cannot move the link {}", venv.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn another_release_of_torch_changes_that_line_alone() {
        let ours = "# tools\ntorch==2.15.0\nnumpy==2.4.6\n";
        let with = |release| requirements_with_torch(ours, release).unwrap();
        assert_eq!(with("2.7"), "# tools\ntorch==2.7.*\nnumpy==2.4.6\n");
        assert_eq!(with("2.7.1"), "# tools\ntorch==2.7.1\nnumpy==2.4.6\n");
        assert!(requirements_with_torch("numpy==2.4.6\n", "2.7").is_err());
    }

    #[test]
    fn the_link_moves_to_the_newer_environment_and_a_stale_stamp_is_noticed() {
        let folder = std::env::temp_dir().join(format!("xtask-venv-{}", std::process::id()));
        let venv = folder.join("venv");
        for name in ["old", "new"] {
            let home = folder.join(name);
            fs::create_dir_all(home.join("bin")).unwrap();
            fs::write(home.join("bin/python"), "").unwrap();
            fs::write(home.join(STAMP), name).unwrap();
            point(&venv, &home).unwrap();
            assert!(is_complete(&venv, name));
        }
        assert!(!is_complete(&venv, "old"));
        fs::remove_dir_all(folder).unwrap();
    }
}
