//! `lockstep run trace`: records a trace of PyTorch's profiler in running ranks.

use std::path::{Path, PathBuf};

use clap::Args;
use domain::api::inspect::{AskTrace, RanksView};
use domain::bytes::DisplayBytes;
use domain::ident::Rank;
use tokio::io::AsyncWriteExt;

use super::{flight, run_path};
use crate::client::Client;
use crate::failure::Failure;

/// Arguments of `trace`.
#[derive(Args)]
#[command(
    after_help = "The run must have been submitted with `kineto = true` (--kineto): PyTorch's profiler then waits in each rank for such a \
request, and receives it within 5 s. Open the file in https://ui.perfetto.dev or chrome://tracing. With several ranks, each has its own \
file, with -rank-N before the extension.

Examples:
  lockstep run trace RUN --rank 0 -o trace.json
  lockstep run trace RUN --steps 3 -o trace.json"
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
    #[arg(short, long)]
    output: PathBuf,
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
        let mut without = 0;
        for of in &view.ranks {
            let Some(trace) = &of.trace else {
                without += 1;
                flight::problem(of);
                continue;
            };
            let output = if several {
                beside(&self.output, of.rank)
            } else {
                self.output.clone()
            };
            let query = [
                ("node", of.node.clone()),
                ("file", trace.file.clone()),
                ("attempt", view.attempt.to_string()),
            ];
            let bytes = fetch(client, &path, &query, &output).await?;
            say!(
                "rank {}: {} in {}",
                of.rank.0,
                DisplayBytes(bytes),
                output.display()
            );
        }
        if without > 0 {
            return Err(Failure::Failed(anyhow::anyhow!(
                "{without} of {} ranks returned no trace",
                view.ranks.len()
            )));
        }
        Ok(())
    }
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
    use super::*;

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
