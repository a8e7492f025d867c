//! `lockstep run fix RUN`: lists the actions that diagnoses suggest, and carries out the one that the user chooses.

use std::io::IsTerminal;

use clap::Args;
use domain::api::alerts::Diagnosis;
use domain::api::checkpoints::PruneLine;
use domain::api::diagnoses::{ActAnswer, ActOnDiagnosis, DiagnosisView};
use domain::api::runs::RunView;
use domain::bytes::DisplayBytes;
use domain::incident::action::{Action, ActionKind};

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
    /// Number or ID of the action, as listed. Without it, the actions are listed, and you choose one in a terminal. A number may mean
    /// another action when the diagnoses have changed; in a program, use the ID.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Do not ask. Without `--action`, the first action of the worst diagnosis is carried out.
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
        if suggested.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!(
                "no action is available for run {} now; `lockstep run why {}` shows its diagnoses",
                self.run,
                self.run
            )));
        }
        let chosen = match &self.action {
            Some(action) => find(&suggested, action).ok_or_else(|| self.unknown(action))?,
            None if self.yes => &suggested[0],
            None => {
                list(&suggested);
                if !std::io::stdin().is_terminal() {
                    eprintln!("\nnothing was done; carry one out with `--action NUMBER --yes`");
                    return Ok(());
                }
                let answer = crate::say::ask("\nNumber or ID of the action to carry out (Enter for none): ")?;
                if answer.is_empty() {
                    return Err(nothing_done());
                }
                find(&suggested, &answer).ok_or_else(|| self.unknown(&answer))?
            }
        };
        show(chosen);
        if !self.yes && !confirmed()? {
            return Err(nothing_done());
        }
        let asked = ActOnDiagnosis {
            action: chosen.action.id.clone(),
            dry_run: false,
            removes: PruneLine::paths(&chosen.action.removes),
        };
        let path = format!("/api/diagnoses/{}/act", chosen.diagnosis.id);
        let answer: ActAnswer = client.post(&path, &asked).await?;
        print_result(&self.run, &chosen.diagnosis.id, &answer);
        Ok(())
    }

    fn unknown(&self, action: &str) -> Failure {
        Failure::Failed(anyhow::anyhow!(
            "run {} has no action {action:?} now; `lockstep run fix {}` lists its actions",
            self.run,
            self.run
        ))
    }
}

/// Finds an action by its number in the list, from 1, or by its ID.
fn find<'a>(suggested: &'a [SuggestedAction], action: &str) -> Option<&'a SuggestedAction> {
    let at: Option<usize> = action.parse().ok();
    let by_number = at.and_then(|number| suggested.get(number.checked_sub(1)?));
    by_number.or_else(|| suggested.iter().find(|suggestion| suggestion.action.id == action))
}

/// Prints the actions with their numbers, below the diagnoses that suggest them.
fn list(suggested: &[SuggestedAction]) {
    let mut diagnosis = None;
    for (number, suggestion) in (1..).zip(suggested) {
        if diagnosis != Some(&suggestion.diagnosis.id) {
            diagnosis = Some(&suggestion.diagnosis.id);
            say!("{}", printable(&suggestion.diagnosis.summary));
        }
        let action = &suggestion.action;
        say!(
            "  {number}  {}  [{}]",
            printable(&action.title),
            printable(&action.id)
        );
        say!("     {}", printable(&action.cost));
        say!("     Undo: {}", printable(&action.undo));
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
    crate::say::confirmed(
        "\nCarry out this action? [y/N] ",
        "nothing was done, because stdin is not a terminal; add --yes to skip the confirmation",
    )
}

fn nothing_done() -> Failure {
    Failure::Failed(anyhow::anyhow!("nothing was done"))
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
    match (answer.attempt, answer.action.kind) {
        (Some(attempt), _) => eprintln!(
            "done: started attempt {attempt} of {run}; `lockstep alert show {diagnosis}` compares it with the previous attempt"
        ),
        (None, ActionKind::PruneCheckpoints) => eprintln!(
            "done; `lockstep alert show {diagnosis}` shows how much space is free and whether the next save succeeds"
        ),
        (None, _) => eprintln!("done"),
    }
}
