//! `cargo xtask run`: from a fresh clone to a running collector and agent. Downloads everything that can be downloaded.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;

use crate::child::{self, Child};
use crate::layout::Layout;
use crate::progress::say;
use crate::toolchain::venv;
use crate::web;

/// Options of this command, and arguments for `lockstep up`.
#[derive(Args)]
pub(crate) struct Options {
    /// Builds the binary with full optimisation: a slower build, for use on a cluster.
    #[arg(long)]
    release: bool,
    /// Does not install PyTorch. Runs then need an environment of their own.
    #[arg(long)]
    no_venv: bool,
    /// Passed to `lockstep up`, such as `--listen 127.0.0.1:9000` or `--simulate h100x8:throttle`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Libraries that the binary loads or contains; built before it.
const COMPANIONS: [&str; 2] = ["sim-nvml", "nccl-probe"];
/// A cold build of 650 crates took three minutes on two cores; slow laptops and `--release` need longer.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);
/// The simulation if there is no GPU: one healthy node.
const SIMULATION: &str = "h100x8:healthy";

/// Sets everything up and replaces this process with `lockstep up`. Returns only on failure.
pub(crate) fn start(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let python = set_up(layout, options)?;
    let mut lockstep = Command::new(binary(layout, options.release));
    lockstep.arg("up");
    if let Some(why) = simulation_reason(&options.args) {
        say(
            "run",
            &format!("{why}: SIMULATING {SIMULATION}; every figure about GPUs is made up"),
        );
        lockstep.args(["--simulate", SIMULATION]);
    }
    if let Some(python) = python {
        lockstep.env("LOCKSTEP_PYTHON", python);
    }
    lockstep.args(&options.args);
    say("run", &format!("starting {}", lockstep.get_program().display()));
    Err(anyhow!(lockstep.exec()).context("cannot start lockstep"))
}

/// Downloads and compilers run at the same time. The compilers run one after the other, because they would share the cores anyway.
fn set_up(layout: &Layout, options: &Options) -> Result<Option<PathBuf>> {
    thread::scope(|scope| {
        let python = scope.spawn(|| python(layout, options.no_venv));
        web::build(layout, &web::Options::default())?;
        build(layout, options.release)?;
        python
            .join()
            .map_err(|_| anyhow!("the set-up of PyTorch panicked"))?
    })
}

/// Keeps an interpreter that the user chose.
fn python(layout: &Layout, no_venv: bool) -> Result<Option<PathBuf>> {
    if no_venv || env::var_os("LOCKSTEP_PYTHON").is_some() {
        return Ok(None);
    }
    let venv = venv::ensure(layout).context("PyTorch could not be set up; `--no-venv` starts without it")?;
    Ok(Some(venv::python(&venv)))
}

fn build(layout: &Layout, release: bool) -> Result<()> {
    for package in COMPANIONS.into_iter().chain(["lockstep"]) {
        say("build", &format!("cargo build --package {package}"));
        Child::new(layout, &format!("build-{package}"), "cargo", BUILD_LIMIT)
            .args(["build", "--locked", "--package", package])
            .args(release.then_some("--release"))
            .succeed()?;
    }
    Ok(())
}

fn binary(layout: &Layout, release: bool) -> PathBuf {
    layout
        .target()
        .join(if release { "release" } else { "debug" })
        .join("lockstep")
}

/// Returns why GPUs have to be simulated; `None` if there are real GPUs, or if the user decided.
fn simulation_reason(args: &[OsString]) -> Option<&'static str> {
    let decided = args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        arg == "--simulate" || arg.starts_with("--simulate=") || arg.starts_with("--nvml-library")
    });
    if decided || env::var_os("LOCKSTEP_SIMULATE").is_some() {
        return None;
    }
    if !Path::new("/dev/nvidiactl").exists() {
        return Some("no NVIDIA driver on this machine (/dev/nvidiactl is missing)");
    }
    (!has_nvml()).then_some("NVIDIA's driver is here but its library libnvidia-ml.so.1 is not")
}

fn has_nvml() -> bool {
    const NAME: &str = "libnvidia-ml.so.1";
    let known = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].iter().any(|ldconfig| {
        child::output(Command::new(ldconfig).arg("-p")).is_ok_and(|libraries| libraries.contains(NAME))
    });
    let named = env::var_os("LD_LIBRARY_PATH");
    known || named.is_some_and(|folders| env::split_paths(&folders).any(|folder| folder.join(NAME).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_decided_is_not_decided_again() {
        for args in [
            &["--simulate", "h100x8"][..],
            &["--simulate=h100x8:throttle"],
            &["--nvml-library", "/x.so"],
        ] {
            let args: Vec<_> = args.iter().map(OsString::from).collect();
            assert_eq!(simulation_reason(&args), None, "{args:?}");
        }
    }
}
