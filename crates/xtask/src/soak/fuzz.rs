//! libFuzzer on every parser of bytes from outside. The targets are in `fuzz/`, a separate workspace that only the nightly compiler builds.
//! Findings stay in `fuzz/corpus`, and ordinary tests run that corpus on every change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::report::PartReport;
use crate::child::{self, Child};
use crate::layout::Layout;
use crate::progress::say;

/// One file each in `fuzz/fuzz_targets`.
const TARGETS: [&str; 4] = ["remote_write", "wal_batch", "chunk", "wire_batch"];
/// Building cargo-fuzz, or everything with the sanitizer.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The largest input: larger ones find no more than these.
const INPUT_BYTES_MAX: &str = "-max_len=65536";
/// A run that takes longer on one input is a finding.
const INPUT_SECONDS_MAX: &str = "-timeout=20";

/// How long to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Only these targets.
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
}

/// Fuzzes one target after the other.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let only: String = options
        .only
        .iter()
        .map(|target| format!(" --only {target}"))
        .collect();
    let mut report = PartReport::new("fuzz", format!("fuzz --seconds {}{only}", options.seconds));
    let cargo_fuzz = cargo_fuzz(layout)?;
    crate::web::ensure_folder(layout)?;
    // The versions that the product is built with; libFuzzer is added to them.
    fs::copy(
        layout.root.join("Cargo.lock"),
        layout.root.join("fuzz/Cargo.lock"),
    )
    .context("cannot copy Cargo.lock")?;
    let targets = TARGETS
        .iter()
        .filter(|target| options.only.is_empty() || options.only.iter().any(|only| only == *target));
    for target in targets {
        fuzz(layout, &cargo_fuzz, target, options.seconds, &mut report)?;
    }
    if report.lines.is_empty() {
        bail!("no such target; available targets: {}", TARGETS.join(", "));
    }
    Ok(report)
}

fn fuzz(
    layout: &Layout,
    cargo_fuzz: &Path,
    target: &str,
    seconds: u64,
    report: &mut PartReport,
) -> Result<()> {
    let arguments = |command: &str| -> Vec<String> {
        let target_dir = layout.target().join("fuzz").display().to_string();
        [command, "--fuzz-dir", "fuzz", "--target-dir", &target_dir, target]
            .map(str::to_owned)
            .into()
    };
    let fuzz = |step: &str, limit| {
        Child::new(layout, step, cargo_fuzz, limit)
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .args(["fuzz"])
    };
    fuzz("soak-fuzz-build", BUILD_LIMIT)
        .args(arguments("build"))
        .succeed()?;
    let seeds = layout.root.join("fuzz/corpus").join(target);
    // libFuzzer writes its findings into its first folder: thousands of files that do not belong in the repository.
    let grown = layout.target().join("fuzz-corpus").join(target);
    let crashes = layout.target().join("fuzz-crashes").join(target);
    for folder in [&grown, &crashes] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let ended = fuzz(
        &format!("soak-fuzz-{target}"),
        Duration::from_secs(seconds) + BUILD_LIMIT,
    )
    .args(arguments("run"))
    .args([&grown, &seeds])
    .args(["--", INPUT_BYTES_MAX, INPUT_SECONDS_MAX, "-print_final_stats=1"])
    .args([
        format!("-max_total_time={seconds}"),
        format!("-artifact_prefix={}/", crashes.display()),
    ])
    .end()?;
    let printed = ended.printed()?;
    let kept = keep(&crashes, &seeds)?;
    let runs = final_stat(&printed, "number_of_executed_units").unwrap_or_default();
    if ended.status.success() && kept.is_empty() {
        report.check(
            runs > 0,
            format!("`{target}`: {runs} inputs in {seconds} s, no crash."),
        );
    } else if kept.is_empty() {
        bail!(
            "{target}: libFuzzer failed ({}) and left no input; log: {}",
            ended.status,
            ended.log.display()
        );
    } else {
        report.check(
            false,
            format!(
                "`{target}`: crashed on {}; why is in {}",
                kept.join(", "),
                ended.log.display()
            ),
        );
    }
    Ok(())
}

/// Copies crashing inputs into the corpus, so that the tests run them from now on. Returns their names.
fn keep(crashes: &Path, seeds: &Path) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    for file in fs::read_dir(crashes).with_context(|| format!("cannot read {}", crashes.display()))? {
        let file = file.context("cannot read a folder")?;
        fs::rename(file.path(), seeds.join(file.file_name())).context("cannot store a crashing input")?;
        kept.push(file.file_name().to_string_lossy().into_owned());
    }
    kept.sort_unstable();
    Ok(kept)
}

/// Returns a number that libFuzzer prints at its end.
fn final_stat(printed: &str, name: &str) -> Option<u64> {
    let line = printed
        .lines()
        .find(|line| line.starts_with("stat::") && line.contains(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Returns cargo-fuzz; installs it into the cache folder if there is none.
fn cargo_fuzz(layout: &Layout) -> Result<PathBuf> {
    child::output(Command::new("rustup").args(["run", "nightly", "rustc", "--version"]))
        .context("libFuzzer needs the nightly compiler; install it with `rustup toolchain install nightly --profile minimal`")?;
    if let Some(installed) = child::on_path("cargo-fuzz") {
        return Ok(installed);
    }
    let root = layout.cache.join("cargo-fuzz");
    let program = root.join("bin/cargo-fuzz");
    if !program.is_file() {
        say("fuzz", "installing cargo-fuzz");
        Child::new(layout, "soak-cargo-fuzz", "cargo", BUILD_LIMIT)
            .args(["install", "cargo-fuzz", "--locked", "--root"])
            .args([&root])
            .succeed()?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_at_the_end_are_read() {
        let printed = "Done 12 runs\nstat::number_of_executed_units: 12345\nstat::average_exec_per_sec: 7\n";
        assert_eq!(final_stat(printed, "number_of_executed_units"), Some(12_345));
        assert_eq!(final_stat(printed, "peak"), None);
    }
}
