//! `lockstep store delete 'SELECTOR'…`

use clap::Args;
use domain::api::prometheus::Answer;
use domain::series::Labels;

use crate::client::{Client, Target};
use crate::failure::Failure;
use crate::table;

/// Number of series shown before the confirmation.
const SHOWN: usize = 10;

/// Delete samples permanently, by label matchers of their series.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep store delete 'gpu_power_watts{node=\"n17\"}'
  lockstep store delete '{run=\"ddp-x7k2mq\"}' --start 2026-01-01T00:00:00Z --end 2026-01-02T00:00:00Z
  lockstep store delete '{job=\"old-exporter\"}' --yes

Shows how many series match, and asks for confirmation. Deleted samples remain only in backups.")]
pub(super) struct Delete {
    /// Series selector, for example 'up{node="n1"}'. With several selectors, series that match any of them are deleted.
    #[arg(required = true, value_name = "SELECTOR")]
    selectors: Vec<String>,
    /// Start of the time range: RFC 3339, or seconds since the epoch. Default: the first sample.
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// End of the time range. Default: the last sample.
    #[arg(long, value_name = "TIME")]
    end: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

impl Delete {
    pub(super) async fn execute(self, target: &Target) -> Result<(), Failure> {
        let client = target.client()?;
        let parameters = self.parameters();
        let matching = matching(&client, &parameters).await?;
        if matching.is_empty() {
            say!("no series match; nothing to delete");
            return Ok(());
        }
        if !self.yes && !confirmed(&matching, &self.span())? {
            return Err(Failure::Failed(anyhow::anyhow!("nothing was deleted")));
        }
        client
            .post_form("/api/v1/admin/tsdb/delete_series", &parameters)
            .await?;
        say!("deleted {} of {} series", self.span(), matching.len());
        Ok(())
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let selectors = self.selectors.iter().map(|text| ("match[]", text.clone()));
        let start = self.start.iter().map(|time| ("start", time.clone()));
        let end = self.end.iter().map(|time| ("end", time.clone()));
        selectors.chain(start).chain(end).collect()
    }

    fn span(&self) -> String {
        match (&self.start, &self.end) {
            (None, None) => "all samples".into(),
            (Some(start), None) => format!("samples from {start} on"),
            (None, Some(end)) => format!("samples until {end}"),
            (Some(start), Some(end)) => format!("samples from {start} to {end}"),
        }
    }
}

async fn matching(client: &Client, parameters: &[(&str, String)]) -> Result<Vec<Labels>, Failure> {
    let answer: Answer<Vec<Labels>> = client.get("/api/v1/series", parameters).await?;
    Ok(answer.data.unwrap_or_default())
}

fn confirmed(matching: &[Labels], span: &str) -> Result<bool, Failure> {
    eprintln!("{} series match:", matching.len());
    for labels in matching.iter().take(SHOWN) {
        eprintln!("  {}", table::printable(&labels.to_string()));
    }
    if matching.len() > SHOWN {
        eprintln!("  … and {} more", matching.len() - SHOWN);
    }
    let question = format!("Delete {span} of these series permanently? [y/N] ");
    crate::say::confirmed(
        &question,
        "stdin is not a terminal; pass --yes to delete without confirmation",
    )
}
