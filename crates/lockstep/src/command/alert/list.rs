//! `lockstep alert list`.

use clap::Args;
use domain::api::alerts::{AlertState, Diagnosis};
use domain::time::TimestampMs;

use crate::client::Client;
use crate::failure::Failure;
use crate::table;

/// Arguments of `list`.
#[derive(Args)]
pub(super) struct List {
    /// Include diagnoses that have ended, newest first.
    #[arg(long)]
    all: bool,
    /// Show only the diagnoses of this run.
    #[arg(long)]
    run: Option<String>,
}

impl List {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let state = if self.all { "all" } else { "firing" };
        let mut query = vec![("state", state.to_owned())];
        query.extend(self.run.map(|run| ("run", run)));
        let all: Vec<Diagnosis> = client.get("/api/diagnoses", &query).await?;
        if all.is_empty() {
            let which = if self.all { "" } else { "active " };
            say!("No {which}diagnoses.");
            return Ok(());
        }
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        table::print(&["ID", "SEVERITY", "SINCE", "ENDED", "STATUS", "SUMMARY"], &rows);
        Ok(())
    }
}

fn row(diagnosis: &Diagnosis) -> Vec<String> {
    let alert = &diagnosis.alert;
    vec![
        diagnosis.id.clone(),
        format!("{:?}", alert.severity).to_lowercase(),
        time(alert.fired_ms.unwrap_or(alert.active_ms)),
        alert.resolved_ms.map_or("-".to_owned(), time),
        marks(diagnosis),
        diagnosis.summary.clone(),
    ]
}

/// What people did about the diagnosis, in a few words.
fn marks(diagnosis: &Diagnosis) -> String {
    let handling = &diagnosis.handling;
    let mut marks = Vec::new();
    if let Some(mark) = &handling.acknowledged {
        marks.push(format!("acknowledged by {}", mark.who));
    }
    if handling.silenced_until_ms.is_some() && diagnosis.alert.state == AlertState::Firing {
        marks.push("silenced".to_owned());
    }
    if handling.not_a_problem.is_some() {
        marks.push("not a problem".to_owned());
    }
    if marks.is_empty() {
        return "-".to_owned();
    }
    marks.join(", ")
}

/// Formats a time to the second. Users do not type these times back.
pub(super) fn time(ms: TimestampMs) -> String {
    let seconds = ms.div_euclid(1_000);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| ms.to_string(), |time| time.to_string())
}
