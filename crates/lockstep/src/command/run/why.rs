//! `lockstep run why RUN`: the diagnosis in a terminal.

use domain::api::alerts::Diagnosis;
use domain::api::runs::RunView;
use domain::event::Event;

use super::{run_path, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Says how the run stands or ended, and every active diagnosis of it.
pub(super) async fn why(client: &Client, run: &str) -> Result<(), Failure> {
    let view: RunView = client.get(&run_path(run)?, &[]).await?;
    let all: Vec<Diagnosis> = client.get("/api/diagnoses", &[]).await?;
    let ours: Vec<_> = all
        .iter()
        .filter(|diagnosis| diagnosis.alert.labels.get("run") == Some(run))
        .collect();
    show::run(&view);
    if let Some(outcome) = &view.summary.outcome {
        say!("\n{}", printable(&outcome.message));
    }
    // Where the ranks were when it last came to stand still.
    let query = [
        ("run", run.to_owned()),
        ("kind", "rank_stacks".to_owned()),
        ("limit", "1".to_owned()),
    ];
    for event in client.get::<Vec<Event>>("/api/events", &query).await? {
        say!("\n{}: {}", show::time(event.at_ms), printable(&event.message));
    }
    if ours.is_empty() {
        say!("\nNo diagnosis is active for this run.");
    }
    for diagnosis in ours {
        print(diagnosis);
    }
    Ok(())
}

fn print(diagnosis: &Diagnosis) {
    say!(
        "\n{} [{:?}]",
        printable(&diagnosis.summary),
        diagnosis.alert.severity
    );
    say!("  who     {}", printable(&diagnosis.culprit));
    say!("  why     {}", printable(&diagnosis.cause));
    say!("  do      {}", printable(&diagnosis.advice));
    for evidence in &diagnosis.alert.evidence {
        for value in &evidence.values {
            say!(
                "  seen    {} {} = {}",
                printable(&evidence.title),
                printable(&value.labels.to_string()),
                value.value
            );
        }
    }
}
