//! `lockstep run flight`: shows each rank's last collectives, its position in each process group, or its wait counters.

use clap::Args;
use domain::api::inspect::{AskRanks, RankValue, RanksView};
use domain::ident::Rank;
use domain::run::inspect::FlightDigest;
use serde_json::Value;

use super::run_path;
use super::stacks::kernel_line;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::{printable, render};

/// Entries shown per rank. `--json` prints all entries.
const SHOWN: usize = 10;

/// Arguments of `flight`.
#[derive(Args)]
#[command(
    after_help = "The Flight Recorder is part of PyTorch (torch 2.8 or later; TORCH_FR_BUFFER_SIZE sets how much it keeps). With Gloo it \
records collectives too, but not when they begin and end. It is empty before the process group is created.

Examples:
  lockstep run flight RUN
  lockstep run flight RUN --rank 1 --json
  lockstep run flight RUN --digest
  lockstep run flight RUN --wait-counters"
)]
pub(super) struct Flight {
    /// ID of the run.
    run: String,
    /// Show only this rank.
    #[arg(long)]
    rank: Option<u32>,
    /// For each process group, show only the last collective enqueued, the last one completed, and the oldest one unfinished.
    #[arg(long, conflicts_with = "wait_counters")]
    digest: bool,
    /// Show PyTorch's wait counters (how often and how long each rank has waited) instead of collectives.
    #[arg(long)]
    wait_counters: bool,
    /// Print the collector's response as JSON.
    #[arg(long)]
    json: bool,
}

impl Flight {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let what = if self.wait_counters {
            "wait-counters"
        } else if self.digest {
            "flight-digest"
        } else {
            "flight"
        };
        let path = format!("{}/{what}", run_path(&self.run)?);
        let asked = AskRanks {
            rank: self.rank.map(Rank),
        };
        let view: RanksView = client.post(&path, &asked).await?;
        if self.json {
            return crate::say::json(&view);
        }
        for of in &view.ranks {
            if let Some(digest) = &of.digest {
                groups(of.rank, digest);
                continue;
            }
            match &of.value {
                Some(value) if self.wait_counters => counters(of.rank, value),
                Some(value) => collectives(of.rank, value),
                None => problem(of),
            }
            if of.value.is_some() && !of.problem.is_empty() {
                say!("  one of its recorders {}", printable(&of.problem));
            }
        }
        Ok(())
    }
}

/// Prints why a rank has no answer.
pub(super) fn problem(of: &RankValue) {
    say!(
        "rank {} on {}: {}",
        of.rank.0,
        printable(&of.node),
        printable(&of.problem)
    );
    if let Some(process) = &of.process {
        say!("    {}", printable(&kernel_line(process)));
    }
}

fn collectives(Rank(rank): Rank, value: &Value) {
    let entries = value["entries"].as_array().map_or(&[][..], Vec::as_slice);
    say!(
        "rank {rank}: {} collectives recorded, newest first",
        entries.len()
    );
    let text = |value: &Value| match value {
        Value::String(text) => printable(text),
        Value::Null => String::new(),
        other => printable(&other.to_string()),
    };
    let rows: Vec<Vec<String>> = entries
        .iter()
        .rev()
        .take(SHOWN)
        .map(|entry| {
            let columns = [
                "collective_seq_id",
                "profiling_name",
                "state",
                "input_sizes",
                "process_group",
            ];
            columns.iter().map(|name| text(&entry[name])).collect()
        })
        .collect();
    if !rows.is_empty() {
        say!(
            "{}",
            render(&["  NUMBER", "COLLECTIVE", "STATE", "SIZES", "GROUP"], &rows).trim_end()
        );
    }
}

fn groups(Rank(rank): Rank, digest: &FlightDigest) {
    say!("rank {rank}: {} process groups", digest.groups.len());
    let number = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
    let rows: Vec<Vec<String>> = digest
        .groups
        .iter()
        .map(|group| {
            let unfinished = group.oldest_unfinished.as_ref().map_or(String::new(), |oldest| {
                format!(
                    "{} {} {} {}",
                    oldest.sequence, oldest.name, oldest.sizes, oldest.dtypes
                )
            });
            vec![
                format!(
                    "  {}",
                    printable(&format!("{} {}", group.name, group.description))
                ),
                group.members.to_string(),
                number(group.last_enqueued),
                number(group.last_completed),
                printable(unfinished.trim_end()),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let head = ["  GROUP", "RANKS", "ENQUEUED", "COMPLETED", "OLDEST UNFINISHED"];
        say!("{}", render(&head, &rows).trim_end());
    }
    if digest.groups_left_out > 0 {
        say!(
            "  and {} groups without an unfinished operation",
            digest.groups_left_out
        );
    }
}

fn counters(Rank(rank): Rank, value: &Value) {
    say!("rank {rank}");
    let all = value.as_object().into_iter().flatten();
    let rows: Vec<Vec<String>> = all
        .map(|(name, counter)| {
            let number = |field: &str| counter[field].as_u64().unwrap_or(0);
            vec![
                format!(
                    "  {}",
                    printable(name.trim_start_matches("pytorch.wait_counter."))
                ),
                number("total_calls").to_string(),
                format!("{:.3}", number("total_time_us") as f64 / 1e6),
                format!("{:.3}", number("max_time_us") as f64 / 1e6),
                number("active_count").to_string(),
            ]
        })
        .collect();
    say!(
        "{}",
        render(&["  WAITED IN", "TIMES", "SECONDS", "LONGEST", "NOW"], &rows).trim_end()
    );
}
