//! `lockstep run fix RUN`: carries out an action that a diagnosis suggests.

use std::io::{IsTerminal, Write};

use clap::Args;
use domain::api::alerts::Diagnosis;
use domain::api::diagnoses::{ActAnswer, ActOnDiagnosis, DiagnosisView};
use domain::api::runs::RunView;
use domain::bytes::DisplayBytes;
use domain::incident::action::Action;

use super::run_path;
use super::why::is_of_node;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// The most diagnoses to read actions from, worst first.
const DIAGNOSES_MAX: usize = 10;

/// Arguments of `fix`.
#[derive(Args)]
pub(super) struct Fix {
    /// ID of the run.
    run: String,
    /// ID of the action, as listed. Default: the first action of the worst diagnosis.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

/// An action and the diagnosis that suggests it.
struct SuggestedAction {
    diagnosis: Diagnosis,
    action: Action,
}

impl Fix {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let suggested = suggested_actions(client, &self.run).await?;
        let chosen = match &self.action {
            None => suggested.first(),
            Some(id) => suggested.iter().find(|suggestion| suggestion.action.id == *id),
        };
        let Some(chosen) = chosen else {
            return Err(Failure::Failed(anyhow::anyhow!(
                "no such action is available for run {} now; `lockstep run why {}` shows its diagnoses",
                self.run,
                self.run
            )));
        };
        show(chosen);
        let others: Vec<&SuggestedAction> = suggested
            .iter()
            .filter(|suggestion| suggestion.action.id != chosen.action.id)
            .collect();
        if !others.is_empty() && self.action.is_none() {
            say!("\nOther actions (choose with --action):");
            for other in others {
                say!(
                    "  {}  {}",
                    printable(&other.action.id),
                    printable(&other.action.title)
                );
            }
        }
        if !self.yes && !confirmed()? {
            return Err(Failure::Failed(anyhow::anyhow!("nothing was done")));
        }
        let asked = ActOnDiagnosis {
            action: chosen.action.id.clone(),
            dry_run: false,
        };
        let path = format!("/api/diagnoses/{}/act", chosen.diagnosis.id);
        let answer: ActAnswer = client.post(&path, &asked).await?;
        print_result(&self.run, &chosen.diagnosis.id, &answer);
        Ok(())
    }
}

/// Returns the possible actions for the run and its nodes, each action once.
async fn suggested_actions(client: &Client, run: &str) -> Result<Vec<SuggestedAction>, Failure> {
    let view: RunView = client.get(&run_path(run)?, &[]).await?;
    let all: Vec<Diagnosis> = client.get("/api/diagnoses", &[]).await?;
    let ours = all
        .into_iter()
        .filter(|diagnosis| diagnosis.run.as_deref() == Some(run) || is_of_node(&view, diagnosis));
    let mut suggested: Vec<SuggestedAction> = Vec::new();
    for diagnosis in ours.take(DIAGNOSES_MAX) {
        let path = format!("/api/diagnoses/{}", diagnosis.id);
        let view: DiagnosisView = client.get(&path, &[]).await?;
        for action in view.actions {
            if suggested.iter().all(|known| known.action.id != action.id) {
                suggested.push(SuggestedAction {
                    diagnosis: diagnosis.clone(),
                    action,
                });
            }
        }
    }
    Ok(suggested)
}

fn show(suggestion: &SuggestedAction) {
    let action = &suggestion.action;
    say!("{}", printable(&suggestion.diagnosis.summary));
    say!("  action  {}", printable(&action.title));
    say!("  cost    {}", printable(&action.cost));
    say!("  undo    {}", printable(&action.undo));
    for warning in &action.warnings {
        say!("  warning {}", printable(warning));
    }
    for line in &action.removes {
        say!(
            "  removes {}  {}  {}",
            printable(&line.path),
            DisplayBytes(line.own_bytes),
            printable(&line.reason)
        );
    }
}

fn confirmed() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "nothing was done, because stdin is not a terminal; add --yes to skip the confirmation"
                .to_owned(),
        ));
    }
    eprint!("\nCarry out this action? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn print_result(run: &str, diagnosis: &str, answer: &ActAnswer) {
    for traced in &answer.traced {
        match &traced.trace {
            Some(trace) => say!(
                "rank {} on {}: {} ({})",
                traced.rank,
                printable(&traced.node),
                printable(&trace.file),
                DisplayBytes(trace.bytes)
            ),
            None => say!(
                "rank {} on {}: {}",
                traced.rank,
                printable(&traced.node),
                printable(&traced.problem)
            ),
        }
    }
    match answer.attempt {
        Some(attempt) => eprintln!(
            "done: started attempt {attempt} of {run}; `lockstep alert show {diagnosis}` compares it with the previous attempt"
        ),
        None => eprintln!("done"),
    }
}
