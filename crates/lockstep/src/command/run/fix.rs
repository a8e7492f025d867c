//! `lockstep run fix RUN`: carries out what a diagnosis suggests.

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

/// Diagnoses that are looked at, the worst first.
const DIAGNOSES_MAX: usize = 10;

/// Arguments of `fix`.
#[derive(Args)]
pub(super) struct Fix {
    /// The run's id.
    run: String,
    /// Which action, as listed. Default: the first of the worst diagnosis.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// An action of a diagnosis.
struct Choice {
    diagnosis: Diagnosis,
    action: Action,
}

impl Fix {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let choices = choices(client, &self.run).await?;
        let chosen = match &self.action {
            None => choices.first(),
            Some(id) => choices.iter().find(|choice| choice.action.id == *id),
        };
        let Some(chosen) = chosen else {
            return Err(Failure::Failed(anyhow::anyhow!(
                "no such action is possible for run {} now; `lockstep run why {}` says what is known",
                self.run,
                self.run
            )));
        };
        show(chosen);
        let others: Vec<&Choice> = choices
            .iter()
            .filter(|choice| choice.action.id != chosen.action.id)
            .collect();
        if !others.is_empty() && self.action.is_none() {
            say!("\nAlso possible, with --action:");
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
        told(&self.run, &chosen.diagnosis.id, &answer);
        Ok(())
    }
}

/// What is possible for the run and the nodes it runs on, each action once.
async fn choices(client: &Client, run: &str) -> Result<Vec<Choice>, Failure> {
    let view: RunView = client.get(&run_path(run)?, &[]).await?;
    let all: Vec<Diagnosis> = client.get("/api/diagnoses", &[]).await?;
    let ours = all
        .into_iter()
        .filter(|diagnosis| diagnosis.run.as_deref() == Some(run) || is_of_node(&view, diagnosis));
    let mut choices: Vec<Choice> = Vec::new();
    for diagnosis in ours.take(DIAGNOSES_MAX) {
        let path = format!("/api/diagnoses/{}", diagnosis.id);
        let view: DiagnosisView = client.get(&path, &[]).await?;
        for action in view.actions {
            if choices.iter().all(|known| known.action.id != action.id) {
                choices.push(Choice {
                    diagnosis: diagnosis.clone(),
                    action,
                });
            }
        }
    }
    Ok(choices)
}

fn show(choice: &Choice) {
    let action = &choice.action;
    say!("{}", printable(&choice.diagnosis.summary));
    say!("  action  {}", printable(&action.title));
    say!("  cost    {}", printable(&action.cost));
    say!("  undo    {}", printable(&action.undo));
    for warning in &action.warnings {
        say!("  mind    {}", printable(warning));
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
            "nothing was done: add --yes to carry it out without being asked".to_owned(),
        ));
    }
    eprint!("\nDo it? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn told(run: &str, diagnosis: &str, answer: &ActAnswer) {
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
            "done: attempt {attempt} of {run}; `lockstep alert show {diagnosis}` compares it with the one before"
        ),
        None => eprintln!("done"),
    }
}
