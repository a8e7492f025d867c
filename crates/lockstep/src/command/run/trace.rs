//! `lockstep run trace`: records a trace of PyTorch's profiler in running ranks, and prints how much communication is exposed in it.

use std::path::{Path, PathBuf};

use clap::Args;
use domain::api::inspect::{AskTrace, LanesView, RanksView};
use domain::bytes::DisplayBytes;
use domain::ident::Rank;
use domain::run::inspect::{LaneKind, LaneSource, StepLanes, TraceLanes};
use tokio::io::AsyncWriteExt;

use super::{flight, run_path};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::{printable, render};

/// Arguments of `trace`.
#[derive(Args)]
#[command(
    after_help = "The run must have been submitted with `kineto = true` (--kineto): PyTorch's profiler then waits in each rank for such a \
request, and receives it within 5 s. Open the file in https://ui.perfetto.dev or chrome://tracing. With several ranks, each has its own \
file, with -rank-N before the extension.

With --lanes, each rank's trace is read on its node. Exposed is the communication during which the rank does not compute; a collective \
also lasts while it waits for other ranks. Record at least two steps: a step lasts from the end of one optimizer step to the end of the next.

Examples:
  lockstep run trace RUN --rank 0 -o trace.json
  lockstep run trace RUN --steps 3 -o trace.json
  lockstep run trace RUN --steps 4 --lanes"
)]
pub(super) struct Trace {
    /// ID of the run.
    run: String,
    /// Record only this rank.
    #[arg(long)]
    rank: Option<u32>,
    /// Duration of the recording in seconds. Default: 2, unless --steps is given.
    #[arg(long, conflicts_with = "steps")]
    seconds: Option<u32>,
    /// Number of optimizer steps to record instead.
    #[arg(long)]
    steps: Option<u32>,
    /// File for the trace.
    #[arg(short, long, required_unless_present = "lanes")]
    output: Option<PathBuf>,
    /// Print for each step how long the rank computed and communicated, and how much of the communication is exposed.
    #[arg(long)]
    lanes: bool,
}

impl Trace {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = format!("{}/trace", run_path(&self.run)?);
        let asked = AskTrace {
            rank: self.rank.map(Rank),
            seconds: self.seconds,
            steps: self.steps,
        };
        eprintln!("recording; the ranks receive the request within 5 s");
        let view: RanksView = client.post(&path, &asked).await?;
        let several = view.ranks.len() > 1;
        let (mut without, mut without_lanes) = (0, 0);
        for of in &view.ranks {
            let Some(trace) = &of.trace else {
                without += 1;
                flight::problem(of);
                continue;
            };
            let query = [
                ("node", of.node.clone()),
                ("file", trace.file.clone()),
                ("attempt", view.attempt.to_string()),
            ];
            if let Some(output) = &self.output {
                let output = if several {
                    beside(output, of.rank)
                } else {
                    output.clone()
                };
                let bytes = fetch(client, &path, &query, &output).await?;
                say!(
                    "rank {}: {} in {}",
                    of.rank.0,
                    DisplayBytes(bytes),
                    output.display()
                );
            }
            if self.lanes {
                match lanes(client, &path, &query).await? {
                    Ok(lanes) => say!("{}", table(of.rank, &lanes)),
                    Err(problem) => {
                        without_lanes += 1;
                        say!("rank {}: no lanes: {}", of.rank.0, printable(&problem));
                    }
                }
            }
        }
        if without > 0 {
            return Err(Failure::Failed(anyhow::anyhow!(
                "{without} of {} ranks returned no trace",
                view.ranks.len()
            )));
        }
        if without_lanes > 0 {
            return Err(Failure::Failed(anyhow::anyhow!(
                "the traces of {without_lanes} of {} ranks have no lanes",
                view.ranks.len()
            )));
        }
        Ok(())
    }
}

/// Requests the lanes of a trace. Returns the reason as text if its node has none, or does not answer: other nodes may have theirs.
async fn lanes(
    client: &Client,
    path: &str,
    query: &[(&str, String)],
) -> Result<Result<TraceLanes, String>, Failure> {
    match client.get::<LanesView>(&format!("{path}/lanes"), query).await {
        Ok(view) => Ok(view.lanes.ok_or(view.problem)),
        Err(Failure::Failed(error)) => Ok(Err(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

/// Returns the lanes of a rank as text, one line per step.
fn table(Rank(rank): Rank, lanes: &TraceLanes) -> String {
    let source = match lanes.source {
        LaneSource::GpuKernels => "kernels on the GPU",
        LaneSource::CpuRanges => "ranges on the CPU",
    };
    let row = |(number, step): (usize, &StepLanes)| {
        let busy = |kind: LaneKind| {
            let lane = step.lanes.iter().find(|lane| lane.kind == kind);
            lane.map_or(String::new(), |lane| milliseconds(lane.busy_ns))
        };
        let share = step.exposed_ratio.map_or("no communication".to_owned(), |ratio| {
            format!(
                "{} ({:.1}% of {})",
                milliseconds(step.exposed_ns),
                100.0 * ratio,
                milliseconds(step.communication_ns)
            )
        });
        vec![
            if step.whole_trace {
                "  whole trace".to_owned()
            } else {
                format!("  {}", number + 1)
            },
            milliseconds(step.duration_ns),
            busy(LaneKind::AllGather),
            busy(LaneKind::Compute),
            busy(LaneKind::ReduceScatter),
            busy(LaneKind::OtherCommunication),
            share,
        ]
    };
    let rows: Vec<Vec<String>> = lanes.steps.iter().enumerate().map(row).collect();
    let head = [
        "  STEP",
        "LENGTH",
        "ALL-GATHER",
        "COMPUTE",
        "REDUCE-SCATTER",
        "OTHER",
        "EXPOSED",
    ];
    let mut text = format!(
        "rank {rank}: {source}, in ms\n{}",
        render(&head, &rows).trim_end()
    );
    if lanes.steps_left_out > 0 {
        text.push_str(&format!("\n  and {} more steps", lanes.steps_left_out));
    }
    text
}

fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.2}", nanoseconds as f64 / 1e6)
}

async fn fetch(client: &Client, path: &str, query: &[(&str, String)], output: &Path) -> Result<u64, Failure> {
    let failed = |error: anyhow::Error| Failure::Failed(error.context(format!("{}", output.display())));
    let mut answer = client.stream(path, query).await?;
    let mut file = tokio::fs::File::create(output)
        .await
        .map_err(|error| failed(error.into()))?;
    let mut bytes = 0;
    while let Some(piece) = answer.chunk().await.map_err(|error| failed(error.into()))? {
        bytes += piece.len() as u64;
        file.write_all(&piece)
            .await
            .map_err(|error| failed(error.into()))?;
    }
    file.flush().await.map_err(|error| failed(error.into()))?;
    Ok(bytes)
}

/// Inserts the rank into the file name: `trace.json` → `trace-rank-3.json`.
fn beside(output: &Path, Rank(rank): Rank) -> PathBuf {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let ending = output
        .extension()
        .map(|ending| format!(".{}", ending.to_string_lossy()));
    output.with_file_name(format!("{stem}-rank-{rank}{}", ending.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use domain::run::inspect::Lane;

    use super::*;

    #[test]
    fn lanes_are_printed_per_step_with_what_is_exposed() {
        let lane = |kind, busy_ns, exposed_ns| Lane {
            kind,
            busy_ns,
            exposed_ns,
            spans: Vec::new(),
        };
        let step = StepLanes {
            whole_trace: false,
            duration_ns: 412_300_000,
            communication_ns: 80_000_000,
            exposed_ns: 12_000_000,
            exposed_ratio: Some(0.15),
            lanes: vec![
                lane(LaneKind::AllGather, 50_000_000, Some(2_000_000)),
                lane(LaneKind::Compute, 390_000_000, None),
                lane(LaneKind::ReduceScatter, 30_000_000, Some(10_000_000)),
                lane(LaneKind::OtherCommunication, 0, Some(0)),
            ],
        };
        let silent = StepLanes {
            whole_trace: true,
            exposed_ratio: None,
            ..step.clone()
        };
        let lanes = TraceLanes {
            source: LaneSource::GpuKernels,
            steps: vec![step, silent],
            steps_left_out: 3,
        };
        let text = table(Rank(1), &lanes);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(text.lines().next(), Some("rank 1: kernels on the GPU, in ms"));
        assert_eq!(
            lines[2],
            [
                "1", "412.30", "50.00", "390.00", "30.00", "0.00", "12.00", "(15.0%", "of", "80.00)"
            ]
        );
        assert_eq!(lines[3][..2], ["whole", "trace"]);
        assert!(
            text.contains("no communication") && text.ends_with("and 3 more steps"),
            "{text}"
        );
    }

    #[test]
    fn each_rank_gets_a_file_of_its_own() {
        for (output, expected) in [
            ("a/t.json", "a/t-rank-3.json"),
            ("t", "t-rank-3"),
            ("t.x.gz", "t.x-rank-3.gz"),
        ] {
            assert_eq!(beside(Path::new(output), Rank(3)), Path::new(expected));
        }
    }
}
