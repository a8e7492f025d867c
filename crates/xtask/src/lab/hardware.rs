//! `cargo xtask lab hardware`: one folder for a machine with NVIDIA GPUs and PyTorch that may have no network. It contains Lockstep, and
//! checks of what Lockstep reads and reports there. The checks are Python, in crates/xtask/hardware.
//!
//! ```text
//! target/hardware/
//!   confirm   README.md   REVISION
//!   checks/                    the steps
//!   bin/                       lockstep, libsim_nvml.so, libnccl_probe.so
//!   inject/                    the probe, for trainings that are started without Lockstep
//!   measuring/                 modules of the probe's own tests: the model for checks of the planner, intervals of medians
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::child;
use crate::fingerprint;
use crate::layout::Layout;
use crate::measure::{build, folder, machine, section};
use crate::progress::{result, say};
use crate::web;

const FOLDER: &str = "target/hardware";
const SOURCE: &str = "crates/xtask/hardware";
const MEASURING: [&str; 2] = ["plan_model.py", "interval.py"];
const BINARIES: [&str; 3] = ["lockstep", "libsim_nvml.so", "libnccl_probe.so"];
const PACKAGES: [&str; 6] = [
    "--package",
    "lockstep",
    "--package",
    "sim-nvml",
    "--package",
    "nccl-probe",
];
/// Borrowed machines accept 64 MiB of files in total.
const BYTES_MAX: u64 = 50_000_000;
/// The second number of the newest glibc that the binaries may need: Debian 12, Ubuntu 22.10.
const GLIBC_MINOR_MAX: u32 = 36;
/// The introduction of a new file; the file in the repository has a longer one.
const INTRODUCTION: &str = "# What hardware has confirmed\n";

/// What to do.
#[derive(Args)]
pub(crate) struct Options {
    /// Puts the results from a machine into docs/hardware.md and docs/hardware/, instead of building the folder.
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Uses the existing release build.
    #[arg(long, conflicts_with = "results")]
    no_build: bool,
}

/// How the binaries get into the folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binaries {
    /// Copied without symbols, for another machine.
    Stripped,
    /// Links to cargo's output, for use on this machine.
    Linked,
}

/// Builds the folder, or stores results.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    if let Some(results) = &options.results {
        return keep(layout, results);
    }
    if !options.no_build {
        web::build(layout, &web::Options::default())?;
        build::release(layout, &PACKAGES)?;
    }
    let folder = layout.root.join(FOLDER);
    assemble(
        layout,
        &folder,
        &layout.target().join("release"),
        Binaries::Stripped,
    )?;
    let mut bytes = 0;
    for file in fingerprint::files(&folder, &[])? {
        bytes += fs::metadata(file)?.len();
    }
    ensure!(
        bytes <= BYTES_MAX,
        "{} has {bytes} bytes, more than the limit of {BYTES_MAX}",
        folder.display()
    );
    for name in BINARIES {
        let minor = newest_glibc(&fs::read(folder.join("bin").join(name))?);
        ensure!(
            minor <= GLIBC_MINOR_MAX,
            "{name} asks for glibc 2.{minor}; build on a system with 2.{GLIBC_MINOR_MAX} or older"
        );
    }
    result(&format!(
        "{FOLDER}: {:.1} MB. Copy it to a machine with an NVIDIA GPU and PyTorch, run ./confirm 1, 2 and 3 there, copy its folder `results` back, and store \
         it with `cargo xtask lab hardware --results DIR`.",
        bytes as f64 / 1e6
    ));
    Ok(ExitCode::SUCCESS)
}

/// Fills the folder. Removes its previous contents.
pub(crate) fn assemble(layout: &Layout, folder: &Path, built: &Path, binaries: Binaries) -> Result<()> {
    folder::empty(folder)?;
    fs::create_dir(folder.join("bin"))?;
    let probe = layout.root.join("crates/torch-probe");
    copy(&layout.root.join(SOURCE), folder)?;
    copy(&probe.join("inject"), &folder.join("inject"))?;
    fs::create_dir(folder.join("measuring"))?;
    for name in MEASURING {
        let module = probe.join("tests").join(name);
        fs::copy(&module, folder.join("measuring").join(name))
            .with_context(|| format!("cannot copy {}", module.display()))?;
    }
    fs::write(folder.join("REVISION"), machine::revision(layout))?;
    for name in BINARIES {
        let (from, to) = (built.join(name), folder.join("bin").join(name));
        ensure!(from.is_file(), "there is no {}", from.display());
        match binaries {
            Binaries::Linked => {
                symlink(&from, &to).with_context(|| format!("cannot link {}", to.display()))?
            }
            Binaries::Stripped => {
                child::output(Command::new("strip").arg("-o").arg(&to).arg(&from))
                    .with_context(|| format!("cannot strip {}", from.display()))?;
            }
        }
    }
    Ok(())
}

/// Copies the files of a folder, without compiled Python files and without tests.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if name == "__pycache__" || name == "tests" {
            continue;
        }
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the largest N of `GLIBC_2.N` in a binary's table of strings.
fn newest_glibc(binary: &[u8]) -> u32 {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let places = binary.windows(PREFIX.len()).enumerate();
    let versions = places
        .filter(|(_, window)| *window == PREFIX)
        .filter_map(|(place, _)| {
            let digits = binary[place + PREFIX.len()..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            let digits: Vec<u8> = digits.copied().collect();
            std::str::from_utf8(&digits).ok()?.parse().ok()
        });
    versions.max().unwrap_or(0)
}

/// Puts the table into docs/hardware.md and the raw values beside it, by kind of GPU.
fn keep(layout: &Layout, results: &Path) -> Result<ExitCode> {
    let table = fs::read_to_string(results.join("table.md"))
        .with_context(|| format!("{} contains no results of ./confirm", results.display()))?;
    let heading = table.lines().next().and_then(|line| line.strip_prefix("## "));
    let heading = heading.context("table.md does not begin with a heading")?;
    let raw = layout.root.join("docs/hardware").join(file_name(heading));
    fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
    for part in 1..=3 {
        let name = format!("part-{part}.json");
        if !results.join(&name).is_file() {
            say("hardware", &format!("part {part} was not run"));
            continue;
        }
        let found = fs::read_to_string(results.join(&name))?;
        let found: Value = serde_json::from_str(&found).with_context(|| format!("cannot read {name}"))?;
        if found["machine"]["simulated"] != "" {
            bail!("{name} is from simulated GPUs; only results from real GPUs are stored");
        }
        fs::write(raw.join(&name), format!("{}\n", serde_json::to_string(&found)?))?;
    }
    let text = table.split_once('\n').map_or("", |(_, text)| text.trim_start());
    section::keep(&layout.root.join("docs/hardware.md"), INTRODUCTION, heading, text)?;
    result(&format!("written to docs/hardware.md and {}", raw.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns `1-nvidia-h200` for `1 × NVIDIA H200`.
fn file_name(heading: &str) -> String {
    let words = heading.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found_among_the_versions_that_a_binary_names() {
        assert_eq!(
            newest_glibc(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_PRIVATE\0"),
            34
        );
        assert_eq!(newest_glibc(b"static"), 0);
    }

    #[test]
    fn a_kind_of_gpu_becomes_a_folder_name() {
        assert_eq!(file_name("1 × NVIDIA H200"), "1-nvidia-h200");
        assert_eq!(file_name("8 × Tesla V100-SXM2-16GB"), "8-tesla-v100-sxm2-16gb");
    }

    #[test]
    fn results_of_simulated_gpus_are_not_kept() {
        let folder = std::env::temp_dir().join(format!("xtask-hardware-{}", std::process::id()));
        let layout = Layout {
            root: folder.join("checkout"),
            cache: folder.join("cache"),
        };
        let results = folder.join("results");
        fs::create_dir_all(layout.root.join("docs")).expect("made");
        fs::create_dir_all(&results).expect("made");
        let write = |simulated: &str| {
            fs::write(results.join("table.md"), "## 1 × NVIDIA H200\n\nWords.\n").expect("written");
            let part = format!("{{\"machine\":{{\"simulated\":\"{simulated}\"}}}}");
            fs::write(results.join("part-1.json"), part).expect("written");
        };
        write("h200x1");
        let refused = keep(&layout, &results).expect_err("refused").to_string();
        assert!(refused.contains("simulated"), "{refused}");
        assert!(!layout.root.join("docs/hardware.md").exists());
        write("");
        keep(&layout, &results).expect("kept");
        let kept = fs::read_to_string(layout.root.join("docs/hardware.md")).expect("there");
        assert!(kept.contains("## 1 × NVIDIA H200\n\nWords."), "{kept}");
        assert!(
            layout
                .root
                .join("docs/hardware/1-nvidia-h200/part-1.json")
                .is_file()
        );
        fs::remove_dir_all(folder).expect("removed");
    }
}
