//! `cargo xtask bench query`: the speed of PromQL, compared with Prometheus and VictoriaMetrics.
//!
//! ```text
//! each server in its turn:             history by remote write ─▶ quiet ─▶ merge ─▶ quiet ─▶ paused
//! each kind of query, four rounds of:  each server in its turn: resumed ─▶ some to warm up ─▶ timed ─▶ paused
//!                                      in the first round before all, the first answers, compared with Prometheus'
//! ```
//! All servers get the same samples at the same times, merged before the first query, and the same queries from the same client. A ratio
//! counts only if the answers are equal; otherwise the table says so instead of the aim.

mod answers;
mod history;
mod kind;
mod server;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use self::answers::Answers;
use self::history::History;
use self::kind::Kind;
use self::server::LoadedServer;
use super::chosen;
use super::database::Database;
use super::report::{Measured, Report};
use super::table;
use crate::layout::Layout;
use crate::measure::generator::Fleet;
use crate::measure::{build, machine};
use crate::progress::{block, result, say};
use crate::toolchain::apt;

const EXAMPLES: &str = "Examples:
  cargo xtask bench query                            all, on a quiet machine; 10 to 15 minutes; writes docs/benchmarks.md
  cargo xtask bench query --quick --dry              a few minutes, only prints
  cargo xtask bench query --only rate --only topk    two kinds, only prints
  cargo xtask bench query --quick --no-build --dry   the existing release build

Latencies from a busy machine are not valid; CPU times are.";

/// Rounds of each kind, in which the servers alternate.
const ROUNDS: u64 = 4;

/// What to query, and how often.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Takes a few minutes: less history, fewer queries. The results have their own section.
    #[arg(long)]
    quick: bool,
    /// Runs only queries of this kind, and only prints.
    #[arg(long, value_enum, value_name = "KIND")]
    only: Vec<Kind>,
    /// Number of timed answers of most kinds; a quick run has 50, a full one 200.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    repeats: Option<u64>,
    /// Nodes of 8 GPUs × 30 metrics.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    nodes: u64,
    /// Measures the existing release build, whatever it was built from.
    #[arg(long)]
    no_build: bool,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// The sizes of a run.
#[derive(Debug, Clone)]
struct Scale {
    fleet: Fleet,
    history: History,
    repeats: u64,
    kinds: Vec<Kind>,
}

/// Builds, measures, prints, and writes the document.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    }
    // Missing programs are reported before minutes of measuring, not after.
    apt::unpacked(layout, &apt::PROMETHEUS)?;
    apt::unpacked(layout, &apt::VICTORIA_METRICS)?;
    let scale = options.scale();
    let mut answers = Answers::new(layout, scale.repeats)?;
    let mut failed = Vec::new();
    let mut servers = Vec::new();
    let mut note = |name, error: &anyhow::Error, answers: &mut Answers| {
        block(&format!("{name} failed"), &format!("{error:#}"));
        answers.note(format!("{name} failed: {error:#}"));
        failed.push(name);
    };
    for database in Database::ALL {
        say("bench", &format!("{} begins", database.name()));
        match LoadedServer::start(layout, &scale, database, &mut answers) {
            Ok(server) => servers.push(server),
            Err(error) => note(database.name(), &error, &mut answers),
        }
    }
    // By kind and in rounds, not by server: the speed of a machine changes within minutes, and only ratios matter.
    for kind in &scale.kinds {
        for _ in 0..ROUNDS {
            for mut server in std::mem::take(&mut servers) {
                match server.ask(layout, &scale, *kind, &mut answers) {
                    Ok(()) => servers.push(server),
                    Err(error) => note(server.name(), &error, &mut answers),
                }
            }
        }
        result(&table::render(&answers.rows()));
    }
    for server in servers {
        let name = server.name();
        if let Err(error) = server.end(&mut answers) {
            note(name, &error, &mut answers);
        }
    }
    let different = answers.different();
    let report = Report {
        heading: options.heading(),
        revision,
        about: scale.about(),
    };
    let measured = Measured {
        rows: answers.rows(),
        notes: answers.notes(),
    };
    report.finish(layout, &measured, options.only.is_empty() && !options.dry)?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    if !different.is_empty() {
        bail!("Lockstep's answers differ from Prometheus': {different:?}");
    }
    Ok(ExitCode::SUCCESS)
}

impl Options {
    fn scale(&self) -> Scale {
        Scale {
            fleet: Fleet::of_nodes(self.nodes).with_exporter_names(),
            history: History::until_now(self.quick),
            repeats: self.repeats.unwrap_or(if self.quick { 50 } else { 200 }),
            kinds: chosen(&self.only),
        }
    }

    fn heading(&self) -> &'static str {
        if self.quick { "PromQL, quick run" } else { "PromQL" }
    }
}

impl Scale {
    fn about(&self) -> String {
        format!(
            "{} nodes × 8 GPUs × 30 metrics: 70 minutes of all at {} s, six hours of {} nodes at 15 s, 30 days of {} GPUs at 60 s. The \
             servers take turns in each round of each kind of query. While the client queries one of them, the others are stopped.",
            self.fleet.nodes, self.history.spacing_s, self.history.recent_nodes, self.history.month_gpus,
        )
    }
}
