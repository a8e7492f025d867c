//! `cargo xtask bench --against REV`: what agents cost the collector now, compared with the collector of an earlier revision.
//!
//! ```text
//! round 1:  REV and now live, at the same time ─▶ REV backfill ─▶ now backfill …       round 2: now first, and so on
//! per row:  ratio now ÷ REV of each round ─▶ median, and the interval of the order statistics around it
//! ```
//! The speed of a machine changes within minutes, so only values of one round are divided by each other. The generator of this checkout
//! feeds both collectors. Every run reads some nodes back, because a collector that loses samples is not cheaper.

pub(super) mod ratio;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::chosen;
use super::database::{Database, Retention};
use super::report::Report;
use super::store::agents::{self, Cost};
use super::table::{figure, grid};
use crate::layout::Layout;
use crate::measure::generator::{Fleet, number};
use crate::measure::revision::{self, Profile};
use crate::measure::{build, machine};
use crate::progress::{exit_code, result, say};
use ratio::Ratios;

/// The aim: the maximum cost of a row, as a multiple of the earlier revision's cost.
const RATIO_MAX: f64 = 1.05;

/// What to compare.
#[derive(Args)]
#[group(id = "comparison")]
pub(crate) struct Options {
    /// The earlier revision: anything that `git rev-parse` accepts.
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Rounds; each measures both collectors once. Fewer than five give no 90 % interval.
    #[arg(long, requires = "against", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Compares only these workloads, and only prints.
    #[arg(long, requires = "against", value_enum, value_name = "WORKLOAD")]
    only: Vec<Workload>,
    /// Nodes of 8 GPUs × 30 metrics.
    #[arg(long, requires = "against", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    nodes: u64,
    /// Uses the existing release build of this checkout, without building it.
    #[arg(long, requires = "against")]
    no_build: bool,
}

/// What agents send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Workload {
    /// One batch per second and node.
    Live,
    /// Agents that backfill in batches of one minute.
    BackfillMinutes,
    /// Agents that backfill in batches of one second.
    BackfillSeconds,
}

/// A measured quantity of one workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Quantity {
    CpuPerMillion,
    PeakMib,
    AckP50Ms,
    AckP99Ms,
}

type Rows = BTreeMap<(Workload, Quantity), Ratios>;

/// Builds both revisions, measures in rounds, and prints the ratios. Fails if a row misses its aim.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    let Some(against) = &options.against else {
        bail!("name what to measure (`cargo xtask bench --help` lists it), or a revision with --against");
    };
    let now = machine::revision(layout);
    let earlier = revision::resolve(layout, against)?;
    let before = revision::binary_of(layout, against, Profile::Release)?;
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    }
    let programs = [before, build::program(layout, "lockstep")];
    let fleet = Fleet::of_nodes(options.nodes).with_exporter_names();
    let mut rows = Rows::new();
    for round in 0..options.rounds {
        say("bench", &format!("round {} of {}", round + 1, options.rounds));
        for workload in chosen(&options.only) {
            let costs = measure_both(layout, fleet, workload, &programs, round)?;
            note(&mut rows, workload, &costs)?;
        }
        result(&table(&rows));
    }
    let heading = "Collector against an earlier revision";
    let report = Report {
        heading,
        revision: now,
        about: format!(
            "This revision ÷ {}, per round; {} rounds, live agents feed both at the same time, backfills take turns. {} series; live for {} s, backfill of {} s. {}",
            &earlier[..12],
            options.rounds,
            fleet.series(),
            Workload::Live.ticks(),
            Workload::BackfillMinutes.ticks(),
            ratio::about(options.rounds),
        ),
    };
    report.finish_table(layout, &table(&rows), &[], options.only.is_empty())?;
    Ok(exit_code(rows.iter().all(|(row, ratios)| is_met(*row, ratios))))
}

/// Returns the costs of the earlier and of this revision, in this order.
///
/// Live agents leave the machine mostly idle: both collectors run at the same time, so that noise of the machine affects both. A backfill
/// uses all cores: the collectors run one after the other, and the first one alternates, because the second one finds a warmer machine.
fn measure_both(
    layout: &Layout,
    fleet: Fleet,
    workload: Workload,
    programs: &[PathBuf; 2],
    round: u32,
) -> Result<[Cost; 2]> {
    let one = |name: &str, program: &Path| {
        let server = Database::Lockstep.start_program(layout, Retention::Default, name, Some(program))?;
        agents::by_agents(layout, fleet, server, &workload.arguments(), workload.ticks())
            .map(|(cost, _)| cost)
    };
    let before = || one("before", &programs[0]);
    let now = || one("now", &programs[1]);
    match workload {
        Workload::Live => thread::scope(|scope| {
            let before = scope.spawn(before);
            let now = now();
            // A panic there is a bug of this program and must be visible.
            Ok([before.join().expect("the other collector's thread ends")?, now?])
        }),
        _ if round.is_multiple_of(2) => {
            let before = before()?;
            Ok([before, now()?])
        }
        _ => {
            let now = now()?;
            Ok([before()?, now])
        }
    }
}

fn note(rows: &mut Rows, workload: Workload, [before, now]: &[Cost; 2]) -> Result<()> {
    for quantity in workload.quantities() {
        let ratios = rows.entry((workload, *quantity)).or_default();
        ratios.add(quantity.of(before)?, quantity.of(now)?);
    }
    Ok(())
}

fn is_met((_, quantity): (Workload, Quantity), ratios: &Ratios) -> bool {
    !quantity.has_aim() || ratios.median() <= RATIO_MAX
}

fn table(rows: &Rows) -> String {
    let cells = rows.iter().map(|((workload, quantity), ratios)| {
        let (low, high) = ratios.interval();
        let aim = match (quantity.has_aim(), is_met((*workload, *quantity), ratios)) {
            (false, _) => String::new(),
            (true, true) => format!("≤ {RATIO_MAX}: yes"),
            (true, false) => format!("≤ {RATIO_MAX}: NO"),
        };
        vec![
            format!("{}, {}", workload.name(), quantity.name()),
            figure(ratios.before()),
            figure(ratios.now()),
            figure(ratios.median()),
            format!("{}–{}", figure(low), figure(high)),
            aim,
        ]
    });
    let head = ["", "before", "now", "ratio", "interval", "aim"];
    grid(&head, &cells.collect::<Vec<_>>())
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::BackfillMinutes => "backfill, one-minute batches",
            Self::BackfillSeconds => "backfill, one-second batches",
        }
    }

    /// Seconds of data.
    fn ticks(self) -> u64 {
        match self {
            Self::Live => 60,
            Self::BackfillMinutes | Self::BackfillSeconds => 300,
        }
    }

    /// Returns the arguments for `loadgen agents`.
    fn arguments(self) -> Vec<String> {
        let ticks = format!("--ticks={}", self.ticks());
        let mode = match self {
            Self::Live => vec!["--mode=live"],
            Self::BackfillMinutes => vec!["--mode=backfill", "--batch-ticks=60"],
            Self::BackfillSeconds => vec!["--mode=backfill", "--batch-ticks=1"],
        };
        [ticks]
            .into_iter()
            .chain(mode.into_iter().map(str::to_owned))
            .collect()
    }

    /// Latencies of a backfill show how full the queue was, not how long an agent waits.
    fn quantities(self) -> &'static [Quantity] {
        match self {
            Self::Live => &[
                Quantity::CpuPerMillion,
                Quantity::PeakMib,
                Quantity::AckP50Ms,
                Quantity::AckP99Ms,
            ],
            Self::BackfillMinutes | Self::BackfillSeconds => &[Quantity::CpuPerMillion, Quantity::PeakMib],
        }
    }
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Self::CpuPerMillion => "CPU-s per million samples",
            Self::PeakMib => "peak memory, MiB",
            Self::AckP50Ms => "acknowledged after, p50 ms",
            Self::AckP99Ms => "acknowledged after, p99 ms",
        }
    }

    /// Latencies vary too much between rounds on a shared machine for an aim of five per cent.
    fn has_aim(self) -> bool {
        matches!(self, Self::CpuPerMillion | Self::PeakMib)
    }

    fn of(self, cost: &Cost) -> Result<f64> {
        match self {
            Self::CpuPerMillion => Ok(cost.cpu_s_a_million),
            Self::PeakMib => Ok(cost.peak_mib),
            Self::AckP50Ms => number(&cost.outcome, "/ack/p50_ms"),
            Self::AckP99Ms => number(&cost.outcome, "/ack/p99_ms"),
        }
    }
}
