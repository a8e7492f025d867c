//! A history like that of a monitored cluster, in small: the last hour of all nodes, six hours of some nodes, one month of some
//! GPUs.
//!
//! ```text
//!          30 days and 2 h            6 h 10 min         70 min   end
//!  month   ●    ●    ●    ●    ●    ●                               some GPUs of the first node, every minute
//!  recent                             ● ● ● ● ● ● ● ● ●             some nodes, every 15 s
//!  dense                                                ●●●●●●●●●   all nodes, every second or every few seconds
//! ```
//! Oldest first, and all connections in step: Prometheus refuses samples that are an hour older than its newest. The end is an
//! argument, not "now", so that servers that are filled one after another get the same samples at the same times.

use std::io::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::fleet::TICK_MS;
use crate::http::Server;
use crate::{Fleet, process, remote_write};

/// All ticks: one month, and two hours for windows and for ends on whole hours.
const TICKS: u64 = 30 * 86_400 + 7_200;
/// Six hours, and ten minutes for different ends.
const RECENT_TICKS: u64 = 6 * 3_600 + 600;
const RECENT_SPACING: u64 = 15;
/// One hour, five minutes for different ends, and five for the window of a rate.
const DENSE_TICKS: u64 = 70 * 60;
const MONTH_SPACING: u64 = 60;
/// Connections wait for each other every ten minutes of data: a sixth of what Prometheus tolerates.
const ABREAST_TICKS: u64 = 600;

/// The size of the history.
#[derive(Debug, Clone, Copy, Args)]
// clap makes a group of each struct and each subcommand, with its name. The name of this struct is already in use.
#[group(id = "extent")]
pub struct History {
    /// The end of the newest second, in seconds since the epoch.
    #[arg(long)]
    pub end_s: i64,
    /// Seconds between samples in the last 70 minutes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=15))]
    pub spacing_s: u64,
    /// Number of nodes that have six hours of samples.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub recent_nodes: u32,
    /// Number of GPUs of the first node that have one month of samples.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub month_gpus: u32,
}

/// The history, and how to send it.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    #[command(flatten)]
    history: History,
    /// Samples per request.
    #[arg(long, default_value_t = 10_000)]
    samples_per_request: usize,
    /// Number of connections. Each sends its own nodes.
    #[arg(long, default_value_t = 4)]
    connections: u32,
    /// The id of a process on this machine whose CPU time is measured.
    #[arg(long)]
    server_pid: Option<u32>,
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// The time of tick 0, in milliseconds since the epoch.
    pub start_ms: i64,
    /// Samples that were accepted.
    pub samples: u64,
    /// Requests that were refused permanently. Their samples are not counted.
    pub refused: u64,
    /// The response of the server to the first refused request.
    pub first_refusal: Option<String>,
    /// The duration in seconds.
    pub seconds: f64,
    /// CPU seconds of the generator.
    pub cpu_s: f64,
    /// CPU seconds of the server before the first request and after the last.
    pub server_cpu_s: Option<(f64, f64)>,
}

/// A period with its own density of samples.
#[derive(Debug, Clone, Copy)]
struct Period {
    name: &'static str,
    fleet: Fleet,
    first_tick: u64,
    ticks: u64,
    spacing: u64,
}

impl History {
    /// Returns the time of tick 0.
    #[must_use]
    pub fn start_ms(&self) -> i64 {
        self.end_s * 1_000 - TICKS as i64 * TICK_MS
    }

    /// Returns the number of nodes of a fleet that have six hours.
    #[must_use]
    pub fn recent_nodes_of(&self, fleet: Fleet) -> u32 {
        self.recent_nodes.min(fleet.nodes)
    }

    /// Returns the number of GPUs of a fleet's first node that have one month.
    #[must_use]
    pub fn month_gpus_of(&self, fleet: Fleet) -> u32 {
        self.month_gpus.min(fleet.gpus)
    }

    fn periods(&self, fleet: Fleet) -> [Period; 3] {
        let (recent, dense) = (TICKS - RECENT_TICKS, TICKS - DENSE_TICKS);
        [
            Period {
                name: "month",
                // A part of the first node's series, which are numbered from its first GPU on.
                fleet: Fleet {
                    nodes: 1,
                    gpus: self.month_gpus_of(fleet),
                    ..fleet
                },
                first_tick: 0,
                ticks: recent,
                spacing: MONTH_SPACING,
            },
            Period {
                name: "recent",
                fleet: Fleet {
                    nodes: self.recent_nodes_of(fleet),
                    ..fleet
                },
                first_tick: recent,
                ticks: dense - recent,
                spacing: RECENT_SPACING,
            },
            Period {
                name: "dense",
                fleet,
                first_tick: dense,
                ticks: DENSE_TICKS,
                spacing: self.spacing_s,
            },
        ]
    }
}

/// Sends the whole history. Writes a line about each period to standard error.
///
/// # Errors
/// Fails if the server does not accept a request within two minutes.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    let server_before = plan.server_pid.and_then(process::cpu_s);
    let mut outcome = Outcome {
        start_ms: plan.history.start_ms(),
        ..Outcome::default()
    };
    for period in plan.history.periods(fleet) {
        let sent = remote_write::run(server, period.fleet, &plan.of(&period), 0).await?;
        let line = format!(
            "{}: {} samples in {:.1} s",
            period.name, sent.samples, sent.seconds
        );
        writeln!(std::io::stderr(), "{line}").ok();
        outcome.add(sent);
    }
    if outcome.samples == 0 {
        bail!(
            "no samples were accepted: {}",
            outcome.first_refusal.unwrap_or_default()
        );
    }
    outcome.server_cpu_s = server_before.zip(plan.server_pid.and_then(process::cpu_s));
    Ok(outcome)
}

impl Plan {
    fn of(&self, period: &Period) -> remote_write::Plan {
        remote_write::Plan {
            start_ms: Some(self.history.start_ms()),
            first_tick: period.first_tick,
            ticks: period.ticks,
            spacing: period.spacing,
            abreast: Some(ABREAST_TICKS),
            samples_per_request: self.samples_per_request,
            connections: self.connections,
            ..remote_write::Plan::default()
        }
    }
}

impl Outcome {
    fn add(&mut self, sent: remote_write::Outcome) {
        self.samples += sent.samples;
        self.refused += sent.refused;
        self.seconds += sent.seconds;
        self.cpu_s += sent.cpu_s;
        self.first_refusal = self.first_refusal.take().or(sent.first_refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;

    const FLEET: Fleet = Fleet {
        nodes: 32,
        gpus: 8,
        metrics: 30,
        seed: 1,
        names: Names::Dcgm,
        runs: 1,
    };
    const HISTORY: History = History {
        end_s: 1_790_000_000,
        spacing_s: 5,
        recent_nodes: 4,
        month_gpus: 2,
    };

    #[test]
    fn periods_follow_each_other_to_the_end() {
        let periods = HISTORY.periods(FLEET);
        for pair in periods.windows(2) {
            assert_eq!(pair[0].first_tick + pair[0].ticks, pair[1].first_tick);
        }
        let last = &periods[2];
        let newest = last.first_tick + last.ticks - last.spacing;
        let newest_ms = FLEET.time_ms(HISTORY.start_ms(), 0, newest);
        assert!((1_789_999_994_000..1_790_000_000_000).contains(&newest_ms));
    }

    #[test]
    fn a_part_of_the_first_node_has_the_same_series() {
        let part = HISTORY.periods(FLEET)[0].fleet;
        assert_eq!(part.series(), 60);
        for series in 0..part.series() {
            assert_eq!(part.labels(series), FLEET.labels(series));
            assert_eq!(
                part.signal(series).at(9).to_bits(),
                FLEET.signal(series).at(9).to_bits()
            );
        }
    }
}
