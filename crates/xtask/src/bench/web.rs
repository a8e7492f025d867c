//! `cargo xtask bench web`: what the dashboard costs a browser, and how old a value is when the page shows it.
//!
//! ```text
//! first-paint   10 loads with an empty cache at 4× CPU throttle ─▶ ms until the sentence and the first ten rows are visible
//! grid          10,000 GPUs that change each second ─▶ a trace of Chromium: time of the main thread per frame
//! ranks         the page of a run with 1,024 live ranks ─▶ the same
//! heap          the overview and that page for half an hour ─▶ heap after garbage collection, and its growth
//! log           a run that has printed 1,000,000 lines ─▶ ms to open, find and jump; lines in the document
//! live          240,000 series, 19 stream clients and a browser ─▶ ms from sample to pixel; the collector's CPU
//! ```
//! Collector, generator and browser share this machine, so the figures of a small machine are upper bounds. Each part starts what it needs
//! and ends it.

mod api;
mod browser;
mod demo;
mod figures;
mod fleet;
mod node;
mod trace;

mod first_paint;
mod grid;
mod heap;
mod live;
mod log;
mod ranks;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::browser::Browser;
use self::figures::{Figure, Measured};
use super::chosen;
use super::report::Report;
use crate::layout::Layout;
use crate::measure::{build, machine};
use crate::progress::{block, exit_code, result, say};
use crate::toolchain::venv;

const EXAMPLES: &str = "Examples:
  cargo xtask bench web                                   all, on a quiet machine; about an hour; writes docs/benchmarks.md
  cargo xtask bench web --only first-paint,grid           two parts, five minutes, only prints
  cargo xtask bench web --only heap --heap-minutes 5      the heap for a shorter time, only prints
  cargo xtask bench web --only log --no-build             the release build that is there, with the dashboard in it

The command fails if a part fails or a target is not met.";

const ABOUT: &str = "Chromium without a GPU, the release build of the collector, and everything that sends to it share the machine. \
                     Main thread per frame: all work of the page's main thread since the frame before, from a trace. A page that draws \
                     nothing has no frames, so idle seconds do not count.";

/// What to measure.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Measures only these parts, separated by commas, and only prints.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// How long the heap is watched, after eleven minutes in which the charts fill up.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=720))]
    heap_minutes: u64,
    /// Measures the existing release build, whatever it was built from.
    #[arg(long)]
    no_build: bool,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// One part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The time until the overview shows its sentence and ten rows: empty cache, 4× CPU throttle.
    FirstPaint,
    /// The main thread per frame while a grid of 10,000 GPUs changes each second.
    Grid,
    /// The main thread per frame on the page of a run with 1,024 live ranks.
    Ranks,
    /// The heap of both pages over half an hour.
    Heap,
    /// A log of 1,000,000 lines: open, find, jump to the end, scroll.
    Log,
    /// The time from a sample to its pixel, and the collector's CPU for 20 clients.
    Live,
}

/// Builds, measures, prints, and writes the document. Fails if a target is not met.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    let parts = options.parts();
    if !options.no_build {
        build_all(layout)?;
    }
    let browser = fetch(layout, &parts)?;
    let (mut all, mut failed) = (Measured::default(), Vec::new());
    for part in parts {
        say("bench", &format!("{} begins", part.name()));
        match part.measure(layout, &browser, options) {
            Ok(measured) => {
                result(&figures::table(&measured.figures));
                all.add(measured);
            }
            Err(error) => {
                block(&format!("{} failed", part.name()), &format!("{error:#}"));
                all.notes.push(format!("{} failed: {error:#}", part.name()));
                failed.push(part.name());
            }
        }
    }
    let report = Report {
        heading: "Dashboard",
        revision,
        about: ABOUT.to_owned(),
    };
    let table = figures::table(&all.figures);
    report.finish_table(
        layout,
        &table,
        &all.notes,
        options.only.is_empty() && !options.dry,
    )?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(exit_code(all.figures.iter().all(Figure::is_met)))
}

/// The collector embeds the dashboard, so the dashboard is built first.
fn build_all(layout: &Layout) -> Result<()> {
    crate::web::build(layout, &crate::web::Options::default())?;
    let packages = ["lockstep", "loadgen", "sim-nvml"];
    build::release(layout, &packages.map(|package| ["--package", package]).concat())
}

/// Fetches the programs. Missing ones are reported before minutes of measuring, not after.
fn fetch(layout: &Layout, parts: &[Part]) -> Result<Browser> {
    if parts.iter().any(|part| matches!(part, Part::Log | Part::Live)) {
        venv::ensure(layout)?;
    }
    Browser::ensure(layout)
}

impl Options {
    fn parts(&self) -> Vec<Part> {
        chosen(&self.only)
    }
}

impl Part {
    /// Returns the name on a command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn measure(self, layout: &Layout, browser: &Browser, options: &Options) -> Result<Measured> {
        match self {
            Self::FirstPaint => first_paint::measure(layout, browser),
            Self::Grid => grid::measure(layout, browser),
            Self::Ranks => ranks::measure(layout, browser),
            Self::Heap => heap::measure(layout, browser, options.heap_minutes),
            Self::Log => log::measure(layout, browser),
            Self::Live => live::measure(layout, browser),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parts(arguments: &[&str]) -> Vec<String> {
        let line = ["web"].iter().chain(arguments).copied();
        let parts = Line::try_parse_from(line).unwrap().options.parts();
        parts.into_iter().map(Part::name).collect()
    }

    #[test]
    fn parts_are_chosen_by_name_and_run_in_their_order() {
        let all = ["first-paint", "grid", "ranks", "heap", "log", "live"];
        assert_eq!(parts(&[]), all);
        assert_eq!(parts(&["--only", "live,first-paint"]), ["first-paint", "live"]);
        assert_eq!(parts(&["--only", "log", "--only", "grid"]), ["grid", "log"]);
        assert!(Line::try_parse_from(["web", "--only", "pixels"]).is_err());
    }
}
