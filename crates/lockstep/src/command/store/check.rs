//! `lockstep store check`

use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use domain::api::store::{CheckLine, CheckProgress, CheckReport};
use domain::bytes::DisplayBytes;
use store::check::CheckError;

use super::Offline;
use super::progress::Progress;
use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// The longest line of the response: a report with a thousand problems.
const LINE_BYTES_MAX: usize = 4 << 20;

/// Read all stored data and report damage.
#[derive(Args)]
#[command(
    after_help = "Checks SQLite's structure, decodes every chunk and every write-ahead batch, and compares them with the tables.
With a running collector it uses at most half a core.
Exit codes: 0 no damage, 1 damage, 3 no collector answers."
)]
pub(super) struct Check {
    /// Also let SQLite compare its indexes with its tables. Takes several times as long.
    #[arg(long)]
    full: bool,
    /// With --data: remove chunks that cannot be read from the store, so that queries over their time range work again, without the samples
    /// of these chunks. The bytes are kept in DIR/damaged-chunks.
    #[arg(long, requires = "data")]
    set_damaged_aside: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    offline: Offline,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// The report as the API returns it.
    Json,
}

impl Check {
    pub(super) async fn execute(self, target: &Target) -> Result<(), Failure> {
        let progress = Mutex::new(Progress::new());
        let tell = |CheckProgress { part, done, of }| {
            let mut line = progress.lock().expect("nothing panics while holding it");
            line.things(&part, done, of);
        };
        let report = match &self.offline.data {
            Some(data) => offline(data, &self, &tell).await?,
            None => online(target, self.full, &tell).await?,
        };
        drop(progress);
        match self.format {
            Format::Json => crate::say::json(&report)?,
            Format::Table => print(&report),
        }
        if report.is_clean() {
            Ok(())
        } else {
            Err(Failure::Failed(anyhow!(
                "the store is damaged: {} problems",
                report.problems_total
            )))
        }
    }
}

async fn offline(
    data: &Path,
    options: &Check,
    tell: &(dyn Fn(CheckProgress) + Send + Sync),
) -> Result<CheckReport, Failure> {
    let checked = if options.set_damaged_aside {
        store::check::set_damaged_aside(data, options.full, tell).await
    } else {
        store::check::check_folder(data, options.full, tell).await
    };
    checked.map_err(|error| match error {
        CheckError::NoStore { .. } => Failure::Usage(error.to_string()),
        error => Failure::Failed(error.into()),
    })
}

async fn online(
    target: &Target,
    full: bool,
    tell: &(dyn Fn(CheckProgress) + Send + Sync),
) -> Result<CheckReport, Failure> {
    let query = [("full", full.to_string())];
    let mut response = target.client()?.stream("/api/store/check", &query).await?;
    let mut text = Vec::new();
    while let Some(piece) = response
        .chunk()
        .await
        .context("the collector's response was cut off")?
    {
        text.extend_from_slice(&piece);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: CheckLine = serde_json::from_slice(&text[..end])
                .context("the collector's response could not be parsed; check that the client and the collector have the same version")?;
            text.drain(..=end);
            match line {
                CheckLine::Progress(progress) => tell(progress),
                CheckLine::Report(report) => return Ok(report),
                CheckLine::Failed { message } => return Err(Failure::Failed(anyhow!(message))),
            }
        }
        if text.len() > LINE_BYTES_MAX {
            return Err(Failure::Failed(anyhow!(
                "the collector's response has no end of line"
            )));
        }
    }
    Err(Failure::Failed(anyhow!(
        "the collector stopped before the check was done; see its log"
    )))
}

fn print(report: &CheckReport) {
    let row = |what: &str, count: u64, holding: String| vec![what.to_owned(), count.to_string(), holding];
    let rows = [
        row("series", report.series, format!("in {} groups", report.groups)),
        row(
            "chunks",
            report.chunks,
            format!("{} samples, {}", report.samples, DisplayBytes(report.chunk_bytes)),
        ),
        row(
            "write-ahead batches",
            report.batches,
            format!("{} samples", report.batch_samples),
        ),
    ];
    table::print(&["CHECKED", "COUNT", "CONTENTS"], &rows);
    if report.is_clean() {
        say!("no damage found ({:.1} s)", report.took_ms as f64 / 1_000.0);
        return;
    }
    say!("");
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| vec![problem.file.clone(), problem.place.clone(), problem.what.clone()])
        .collect();
    table::print(&["FILE", "WHERE", "WHAT"], &problems);
    if report.problems_total > report.problems.len() as u64 {
        say!(
            "… and {} more",
            report.problems_total - report.problems.len() as u64
        );
    }
    if report.set_aside > 0 {
        say!("\n{} unreadable chunks were set aside", report.set_aside);
    }
    let mut advice: Vec<&str> = report
        .problems
        .iter()
        .map(|problem| problem.advice.as_str())
        .collect();
    advice.sort_unstable();
    advice.dedup();
    for text in advice {
        say!("\nWhat to do: {}", table::printable(text));
    }
}
