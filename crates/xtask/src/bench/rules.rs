//! `cargo xtask bench rules`: what rules and analysers cost a collector, and how far their results are behind.
//!
//! ```text
//! agents   ─────────────────── 240,000 series at 1 Hz ───────────────────────────────────────▶
//!          warm-up │ without │ with: rules, a run of 8,000 ranks │ without │ with │ …
//!                     └ settle, then slices of CPU time               └ the same, and how late the results are
//! ```
//! There is one collector and one load. *Without*, no rule file is loaded and no run is active, so the analysers drop what they get. The
//! samples are the same all the time, so the windows of the rules are as full as the time since the start allows.

mod collector;
mod figures;
mod lag;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::collector::LoadedCollector;
use self::figures::Measured;
use self::lag::Lags;
use super::report::Report;
use crate::layout::Layout;
use crate::measure::generator::{Fleet, RunningGenerator, number};
use crate::measure::{build, machine};
use crate::progress::{exit_code, say};

const EXAMPLES: &str = "Examples:
  cargo xtask bench rules                          three rounds, about an hour; writes docs/benchmarks.md
  cargo xtask bench rules --quick --dry            one short round, about eight minutes, only prints
  cargo xtask bench rules --warm-up 3600           with full windows of one hour

The command fails if a target is not met.";

/// Time for the ranks to run beyond the slices, and for all of them to end.
const MARGIN: Duration = Duration::from_secs(20);
const END_WITHIN: Duration = Duration::from_secs(660);
/// Time in each round for which the agents send longer than planned, because ranks take their time to start and to end.
const SLACK: Duration = Duration::from_secs(120);
/// Time for the agents to send what is left.
const DRAIN_WITHIN: Duration = Duration::from_secs(600);

/// How much to measure, and for how long.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// One short round, with windows that are not full. The results have their own section.
    #[arg(long)]
    quick: bool,
    /// Number of nodes with 8 GPUs each, and one rank on each GPU.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    nodes: u64,
    /// Series per GPU. The first 30 are those that most rules read; `loadgen agents` says how many there are.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    metrics: u64,
    /// Rounds; each measures without and with rules and analysers. Default: 3.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: Option<u32>,
    /// Seconds before the first round, in which the windows of the rules fill up. Default: 600.
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<u64>,
    /// Measures the existing release build, whatever it was built from.
    #[arg(long)]
    no_build: bool,
    /// Only prints; does not change docs/benchmarks.md.
    #[arg(long)]
    dry: bool,
}

/// The load and the durations of a measurement.
#[derive(Debug, Clone, Copy)]
struct Scale {
    fleet: Fleet,
    warm_up: Duration,
    rounds: u32,
    /// From a change until it no longer costs anything: ranks that start, rules that are evaluated for the first time.
    settle: Duration,
    /// Slices of CPU time on each side of a round.
    slices: u32,
    slice: Duration,
}

/// Builds, measures, prints, and writes the document.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the measurement.
    let revision = machine::revision(layout);
    if !options.no_build {
        build::release(layout, &["--package", "lockstep", "--package", "loadgen"])?;
    }
    let scale = options.scale();
    let measured = measure(layout, &scale)?;
    let report = Report {
        heading: options.heading(),
        revision,
        about: scale.about(),
    };
    report.finish_table(layout, &measured.table(), &measured.notes(), !options.dry)?;
    Ok(exit_code(measured.is_met()))
}

fn measure(layout: &Layout, scale: &Scale) -> Result<Measured> {
    let mut collector = LoadedCollector::start(layout, scale.fleet, scale.sends_for())?;
    say("bench", &format!("warming up for {} s", scale.warm_up.as_secs()));
    collector.wait(scale.warm_up)?;
    let mut measured = Measured::new(scale.slice);
    for round in 1..=scale.rounds {
        say("bench", &format!("round {round} of {}", scale.rounds));
        measured.without.extend(without(scale, &mut collector)?);
        let with = with(layout, scale, &mut collector, &mut measured.lags, round)?;
        measured.with.extend(with);
        say("bench", &measured.progress());
    }
    measured.finish(collector, DRAIN_WITHIN)
}

/// Returns the slices without rules and without the run.
fn without(scale: &Scale, collector: &mut LoadedCollector) -> Result<Vec<f64>> {
    collector.unload_rules()?;
    collector.wait(scale.settle)?;
    collector.slices(scale.slices, scale.slice, |_| Ok(()))
}

/// Returns the slices with rules and with the run, and adds how late the results were.
fn with(
    layout: &Layout,
    scale: &Scale,
    collector: &mut LoadedCollector,
    lags: &mut Lags,
    attempt: u32,
) -> Result<Vec<f64>> {
    collector.load_rules(layout)?;
    let seconds = (scale.settle + scale.slices * scale.slice + MARGIN).as_secs();
    let args = [format!("--seconds={seconds}"), format!("--attempt={attempt}")];
    let ranks = RunningGenerator::start(layout, collector.server(), scale.fleet, "ranks", &args)?;
    collector.wait(scale.settle)?;
    let run = lag::newest_run(collector.server().address())?;
    let slices = collector.slices(scale.slices, scale.slice, |address| lags.read(address, &run))?;
    let outcome = ranks.finish(END_WITHIN).context("the ranks did not end")?;
    let start_s = number(&outcome, "/start_s")?;
    ensure!(
        start_s < scale.settle.as_secs_f64(),
        "the ranks took {start_s:.0} s to start, so their start was measured too; use fewer --nodes"
    );
    Ok(slices)
}

impl Options {
    fn scale(&self) -> Scale {
        let (warm_up, rounds, settle, slices, slice) = if self.quick {
            (60, 1, 90, 4, 15)
        } else {
            (600, 3, 120, 10, 30)
        };
        Scale {
            fleet: Fleet {
                metrics: self.metrics,
                ..Fleet::of_nodes(self.nodes)
            },
            warm_up: Duration::from_secs(self.warm_up.unwrap_or(warm_up)),
            rounds: self.rounds.unwrap_or(rounds),
            settle: Duration::from_secs(settle),
            slices,
            slice: Duration::from_secs(slice),
        }
    }

    fn heading(&self) -> &'static str {
        if self.quick {
            "Rules and analysers, quick run"
        } else {
            "Rules and analysers"
        }
    }
}

impl Scale {
    /// Returns the time for which the agents send: until the last round has ended.
    fn sends_for(&self) -> Duration {
        let side = self.settle + self.slices * self.slice;
        self.warm_up + self.rounds * (2 * side + SLACK)
    }

    fn about(&self) -> String {
        let Fleet {
            nodes, gpus, metrics, ..
        } = self.fleet;
        format!(
            "{nodes} nodes × {gpus} GPUs × {metrics} series at 1 Hz, values of a healthy training. After {} s, {} rounds: {} s without rules \
             and without an active run; then as long with all shipped rules and a run of {} ranks, whose samples are sent all the time. Each \
             begins {} s before it is measured.",
            self.warm_up.as_secs(),
            self.rounds,
            (self.slices * self.slice).as_secs(),
            nodes * gpus,
            self.settle.as_secs(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool) -> Options {
        Options {
            quick,
            nodes: 1_000,
            metrics: 30,
            rounds: None,
            warm_up: None,
            no_build: false,
            dry: false,
        }
    }

    #[test]
    fn a_full_run_measures_ten_minutes_and_more_with_full_windows() {
        let scale = options(false).scale();
        assert!(scale.warm_up >= Duration::from_secs(600));
        assert!(scale.rounds * scale.slices * scale.slice >= Duration::from_secs(600));
        assert_eq!(scale.fleet.series(), 240_000);
        assert!(scale.about().contains("run of 8000 ranks"), "{}", scale.about());
    }

    #[test]
    fn agents_send_until_the_last_round_has_ended() {
        for quick in [true, false] {
            let scale = options(quick).scale();
            let measured = scale.rounds * 2 * (scale.settle + scale.slices * scale.slice);
            assert!(scale.sends_for() > scale.warm_up + measured + scale.rounds * MARGIN);
        }
    }
}
