//! `cargo xtask test`: all checks and tests, with everything they need set up first.
//!
//! Set-up runs in three lanes at once: downloads, the dashboard, and all native code. The tests run afterwards, one part at a time, because
//! several of them measure time. A part without its tools fails and says how to get them; only `--skip` leaves a part out.

mod count;
mod examples;
mod lanes;
mod parts;
mod rules;
mod setup;
mod slowest;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::layout::Layout;
use crate::measure::machine;
use crate::progress::{block, say};
use setup::Setup;
use table::{Count, Row};

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Runs only these parts.
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Leaves these parts out.
    #[arg(long, value_enum, value_name = "PART")]
    skip: Vec<Part>,
    /// Runs only Rust tests whose name contains this (with `--only`: also Python and browser tests).
    filter: Option<String>,
}

/// One row of the result, in the order of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// `cargo fmt --check`.
    Fmt,
    /// Clippy over every target; a warning is a failure.
    Clippy,
    /// Licences, bans and sources, if cargo-deny is installed.
    Deny,
    /// The dashboard builds, within its size limit.
    Web,
    /// Every Rust test: units, integration, peers.
    Rust,
    /// The examples in doc comments.
    Doc,
    /// torch-probe's tests.
    Python,
    /// Other NVML clients read the simulator.
    NvmlClients,
    /// The checks for machines with GPUs run to their end here, on simulated GPUs.
    Hardware,
    /// The shipped rules and their tests, with promtool and with `lockstep rules`.
    Rules,
    /// Chromium uses the dashboard.
    Browser,
}

/// Sets up, runs and counts.
pub(crate) fn all(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let start = Instant::now();
    let parts = options.parts();
    crate::web::ensure_folder(layout)?;
    let (mut rows, setup) = setup::run(layout, &parts);
    for part in parts.iter().filter(|part| !setup::is_done_in_setup(**part)) {
        rows.push(run_part(layout, *part, &setup, options.filter.as_deref()));
    }
    rows.sort_by_key(|row| row.part as usize);
    Ok(table::print(&rows, start.elapsed()))
}

impl Options {
    fn parts(&self) -> Vec<Part> {
        let only_rust = self.only.is_empty() && self.filter.is_some();
        let wanted = |part: &Part| {
            if only_rust {
                *part == Part::Rust
            } else {
                self.only.is_empty() || self.only.contains(part)
            }
        };
        Part::value_variants()
            .iter()
            .filter(|part| wanted(part) && !self.skip.contains(part))
            .copied()
            .collect()
    }
}

impl Part {
    /// Returns the name for `--only`.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// Runs one part. Any error becomes a failed row.
pub(crate) fn run_part(layout: &Layout, part: Part, setup: &Setup, filter: Option<&str>) -> Row {
    say(&part.name(), "begins");
    let start = Instant::now();
    let result = parts::run(layout, part, setup, filter);
    let count = result.unwrap_or_else(|error| {
        block(&format!("{} failed", part.name()), &format!("{error:#}"));
        Count::failed(format!("{error:#}"))
    });
    say(&part.name(), &count.summary());
    if count.failed > 0 {
        say(&part.name(), &machine::state(&std::env::temp_dir()));
    }
    Row {
        part,
        count,
        took: start.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[Part], skip: &[Part], filter: Option<&str>) -> Options {
        Options {
            only: only.to_vec(),
            skip: skip.to_vec(),
            filter: filter.map(str::to_owned),
        }
    }

    #[test]
    fn parts_are_chosen_by_only_skip_and_filter() {
        assert_eq!(
            options(&[], &[], None).parts().len(),
            Part::value_variants().len()
        );
        assert_eq!(
            options(&[Part::Web, Part::Fmt], &[Part::Web], None).parts(),
            [Part::Fmt]
        );
        assert_eq!(options(&[], &[], Some("spool")).parts(), [Part::Rust]);
        assert_eq!(
            options(&[Part::Python], &[], Some("spool")).parts(),
            [Part::Python]
        );
    }
}
