//! `lockstep alert …`: shows diagnoses in the terminal, and acknowledges or silences them.

mod list;
mod show;
mod silence;

use clap::{Args, Subcommand};
use domain::api::diagnoses::DiagnosisView;
use domain::api::silences::{AcknowledgeDiagnosis, NoteOnDiagnosis};
use domain::incident::DiagnosisId;

use crate::client::{Client, Target};
use crate::failure::Failure;

/// List and acknowledge diagnoses, and silence their alerts.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep alert list
  lockstep alert show 00ff00ff00ff00ff-1764076535123
  lockstep alert ack 00ff00ff00ff00ff-1764076535123 --note \"fan ordered\"
  lockstep alert silence 00ff00ff00ff00ff-1764076535123 --for 2h --comment \"fan ordered\"
  lockstep alert silence alertname=GpuThrottled node=~\"rack1-.*\" --for 8h --comment \"cooling works\"
  lockstep alert silences
  lockstep alert unsilence si-0123456789ab")]
pub(crate) struct Alert {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Action {
    /// List firing diagnoses, worst first, or those that have ended.
    List(list::List),
    /// Show one diagnosis: culprit, evidence, actions, and what changed before it.
    Show {
        /// ID of the diagnosis, from `list`.
        id: String,
    },
    /// Acknowledge a diagnosis, so that others know who works on it.
    Ack {
        /// ID of the diagnosis, from `list`.
        id: String,
        /// What you are going to do.
        #[arg(long, default_value = "")]
        note: String,
        /// Withdraw the acknowledgement.
        #[arg(long)]
        release: bool,
    },
    /// Write a note on a diagnosis.
    Note {
        /// ID of the diagnosis, from `list`.
        id: String,
        /// Text of the note.
        #[arg(default_value = "")]
        note: String,
        /// Mark the diagnosis as a false alarm.
        #[arg(long)]
        not_a_problem: bool,
    },
    /// Send no notifications about matching alerts for a while. The alerts stay visible.
    Silence(silence::CreateArgs),
    /// List silences, those that end last first.
    Silences,
    /// End a silence now.
    Unsilence {
        /// ID of the silence, from `silences`.
        id: String,
    },
}

impl Alert {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let client = self.target.client()?;
        match self.action {
            Action::List(list) => list.execute(&client).await,
            Action::Show { id } => {
                let view: DiagnosisView = client.get(&diagnosis_path(&id)?, &[]).await?;
                show::diagnosis(&view);
                Ok(())
            }
            Action::Ack { id, note, release } => {
                let asked = AcknowledgeDiagnosis { note, release };
                act(&client, &id, "acknowledge", &asked).await
            }
            Action::Note {
                id,
                note,
                not_a_problem,
            } => {
                let asked = NoteOnDiagnosis { note, not_a_problem };
                act(&client, &id, "note", &asked).await
            }
            Action::Silence(args) => args.execute(&client).await,
            Action::Silences => silence::list(&client).await,
            Action::Unsilence { id } => silence::end(&client, &id).await,
        }
    }
}

async fn act(client: &Client, id: &str, what: &str, asked: &impl serde::Serialize) -> Result<(), Failure> {
    let path = format!("{}/{what}", diagnosis_path(id)?);
    let _shown: DiagnosisView = client.post(&path, asked).await?;
    Ok(())
}

fn diagnosis_path(id: &str) -> Result<String, Failure> {
    let id: DiagnosisId = id.parse().map_err(|_| {
        Failure::Usage(format!(
            "{id:?} is not the ID of a diagnosis; `lockstep alert list` shows the IDs"
        ))
    })?;
    Ok(format!("/api/diagnoses/{id}"))
}
