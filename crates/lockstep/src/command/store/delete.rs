//! `lockstep store delete 'SELECTOR'…`

use std::io::{IsTerminal, Write};

use clap::Args;
use domain::api::prometheus::Answer;
use domain::series::Labels;

use crate::client::{Client, Target};
use crate::failure::Failure;
use crate::table;

/// Series shown before the question.
const SHOWN: usize = 10;

/// Delete samples for good, by what their series are called.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep store delete 'gpu_power_watts{node=\"n17\"}'
  lockstep store delete '{run=\"ddp-x7k2mq\"}' --start 2026-01-01T00:00:00Z --end 2026-01-02T00:00:00Z
  lockstep store delete '{job=\"old-exporter\"}' --yes

Says first how many series match, and asks. What is deleted is gone: only a backup has it.")]
pub(super) struct Delete {
    /// What to delete, like 'up{node=\"n1\"}'; what matches any of them goes.
    #[arg(required = true, value_name = "SELECTOR")]
    selectors: Vec<String>,
    /// From when: RFC 3339, or seconds since the epoch. From the beginning when left out.
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Until when. Until the end when left out.
    #[arg(long, value_name = "TIME")]
    end: Option<String>,
    /// Do not ask.
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
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "nobody is there to be asked; pass --yes to delete without a question".into(),
        ));
    }
    eprint!("Delete {span} of them for good? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
