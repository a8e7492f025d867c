//! `cargo xtask bench query`: how fast PromQL is answered, beside Prometheus and VictoriaMetrics.
//!
//! ```text
//! each server in its turn:             history by remote write ─▶ quiet ─▶ merge ─▶ quiet ─▶ stopped
//! each kind of query, four rounds of:  each server in its turn: goes on ─▶ some to warm up ─▶ timed ─▶ stopped
//!                                      in the first round before all, the first answers, compared with Prometheus'
//! ```
//! All get the same samples at the same times, merged before the first query, and the same questions by the same client. A ratio
//! counts only where the answers are the same: otherwise the aim says so.

mod answers;
mod history;
mod kind;
mod server;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::answers::Answers;
use self::history::History;
use self::kind::Kind;
use self::server::Fed;
use super::peer::Peer;
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
  cargo xtask bench query --quick --no-build --dry   the release build that is there

A figure of a busy machine says nothing of latencies; its CPU times still hold.";

/// Rounds of each kind, in which the servers take turns.
const ROUNDS: u64 = 4;

/// What to ask, and how often.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A few minutes: a thinner history, fewer questions. Its figures have a section of their own.
    #[arg(long)]
    quick: bool,
    /// Asks only queries of this kind, and only prints.
    #[arg(long, value_enum, value_name = "KIND")]
    only: Vec<Kind>,
    /// Timed answers of most kinds; a quick run has 50, a full one 200.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    repeats: Option<u64>,
    /// Nodes of 8 GPUs × 30 metrics.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    nodes: u64,
    /// Measures the release build that is there, whatever it was built from.
    #[arg(long)]
    no_build: bool,
    /// Only prints; leaves docs/benchmarks.md as it is.
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

/// Builds, measures, prints and keeps.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Now, and not at the end: the checkout may go on while this measures.
    let revision = machine::revision(layout);
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    }
    // Missing ones are said before minutes of measuring, not after.
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
    for peer in Peer::ALL {
        say("bench", &format!("{} begins", peer.name()));
        match Fed::start(layout, &scale, peer, &mut answers) {
            Ok(server) => servers.push(server),
            Err(error) => note(peer.name(), &error, &mut answers),
        }
    }
    // Kind by kind and in rounds, and not server by server: a machine's speed changes within minutes, and ratios are what counts.
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
        let wanted = |kind: &Kind| self.only.is_empty() || self.only.contains(kind);
        Scale {
            fleet: Fleet::of_nodes(self.nodes),
            history: History::until_now(self.quick),
            repeats: self.repeats.unwrap_or(if self.quick { 50 } else { 200 }),
            kinds: Kind::value_variants().iter().copied().filter(wanted).collect(),
        }
    }

    fn heading(&self) -> &'static str {
        if self.quick { "PromQL, quick run" } else { "PromQL" }
    }
}

impl Scale {
    fn about(&self) -> String {
        format!(
            "{} nodes × 8 GPUs × 30 metrics: 70 minutes of all at {} s, six hours of {} nodes at 15 s, 30 days of {} GPUs at 60 s. Each \
             server in its turn, kind by kind and round by round, with the client beside it and the others stopped.",
            self.fleet.nodes, self.history.spacing_s, self.history.recent_nodes, self.history.month_gpus,
        )
    }
}
