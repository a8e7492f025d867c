//! `lockstep run why RUN`: shows the diagnoses of a run in the terminal.

use domain::api::alerts::Diagnosis;
use domain::api::findings::RunFindings;
use domain::api::runs::RunView;
use domain::event::Event;

use super::{run_path, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Prints the state or outcome of the run, its active diagnoses, and those of the nodes it runs on, because the cause may be there.
pub(super) async fn why(client: &Client, run: &str) -> Result<(), Failure> {
    let view: RunView = client.get(&run_path(run)?, &[]).await?;
    let all: Vec<Diagnosis> = client.get("/api/diagnoses", &[]).await?;
    let ours: Vec<_> = all
        .iter()
        .filter(|diagnosis| diagnosis.alert.labels.get("run") == Some(run))
        .collect();
    show::run(&view);
    if let Some(outcome) = &view.summary.outcome {
        say!("\n{}", printable(&outcome.message.to_string()));
    }
    // Where the ranks were at the last stall of the run.
    let query = [
        ("run", run.to_owned()),
        ("kind", "rank_stacks".to_owned()),
        ("limit", "1".to_owned()),
    ];
    for event in client.get::<Vec<Event>>("/api/events", &query).await? {
        say!("\n{}: {}", show::time(event.at_ms), printable(&event.message));
    }
    let found: RunFindings = client.get(&format!("{}/findings", run_path(run)?), &[]).await?;
    print_findings(&found);
    if ours.is_empty() {
        say!("\nNo active diagnoses for this run.");
    }
    for diagnosis in ours {
        print(diagnosis);
    }
    let of_nodes: Vec<_> = all
        .iter()
        .filter(|diagnosis| is_of_node(&view, diagnosis))
        .collect();
    if !of_nodes.is_empty() {
        say!("\nOn its nodes:");
    }
    for diagnosis in of_nodes {
        print(diagnosis);
    }
    Ok(())
}

/// Prints what the analysers found: the sentence, the start, the lost time and the evidence.
fn print_findings(found: &RunFindings) {
    if found.findings.is_empty() {
        return;
    }
    match found.over_since_ms {
        None => say!("\nFindings:"),
        Some(since) => say!(
            "\nFindings from before the attempt ended ({}):",
            show::time(since)
        ),
    }
    for view in &found.findings {
        let finding = &view.finding;
        say!("\n{}", printable(&view.sentence));
        let step = finding
            .since_step
            .map(|step| format!(", step {step}"))
            .unwrap_or_default();
        say!("  since     {}{step}", show::time(finding.since_ms));
        if finding.lost_seconds >= 0.05 {
            say!("  lost      {:.1} s of the run", finding.lost_seconds);
        }
        if finding.is_symptom {
            say!("  note      another finding of this run explains it");
        }
        for witness in &view.evidence {
            say!("  evidence  {}", printable(witness));
        }
    }
}

/// Returns true if the diagnosis belongs to no run, and names a node (or one of its GPUs) that has ranks of this run.
pub(super) fn is_of_node(run: &RunView, diagnosis: &Diagnosis) -> bool {
    let labels = &diagnosis.alert.labels;
    let Some(node) = labels.get("node").filter(|_| labels.get("run").is_none()) else {
        return false;
    };
    let attempt = run.attempts.last();
    !run.summary.state.is_final()
        && attempt.is_some_and(|attempt| attempt.nodes.iter().any(|task| task.node == node))
}

fn print(diagnosis: &Diagnosis) {
    say!(
        "\n{} [{:?}]",
        printable(&diagnosis.summary),
        diagnosis.alert.severity
    );
    say!("  id        {}", diagnosis.id);
    say!("  culprit   {}", printable(&diagnosis.culprit));
    say!("  cause     {}", printable(&diagnosis.cause));
    say!("  advice    {}", printable(&diagnosis.advice));
    for evidence in &diagnosis.alert.evidence {
        for line in &evidence.lines {
            say!("  log       {}", printable(line));
        }
        for value in &evidence.values {
            say!(
                "  evidence  {} {} = {}",
                printable(&evidence.title),
                printable(&value.labels.to_string()),
                value.value
            );
        }
    }
}
