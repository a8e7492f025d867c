//! `lockstep run resume RUN [--checkpoint PATH | --from-start]`

use clap::Args;
use domain::api::checkpoints::ResumeRun;
use domain::api::runs::RunView;

use super::{follow, run_path};
use crate::client::Client;
use crate::failure::Failure;

/// Continue an ended run from the last complete checkpoint that it wrote itself.
#[derive(Args)]
pub(super) struct Resume {
    /// ID of the run.
    run: String,
    /// Continue from this checkpoint: an absolute path on the nodes. Another run may have written it.
    #[arg(
        long,
        visible_alias = "from",
        value_name = "PATH",
        conflicts_with = "from_start"
    )]
    checkpoint: Option<String>,
    /// Start from step 0, without a checkpoint.
    #[arg(long)]
    from_start: bool,
    /// Follow the run until it ends. Exit code 1 if it fails.
    #[arg(long)]
    wait: bool,
}

impl Resume {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let request = ResumeRun {
            checkpoint: self.checkpoint,
            from_start: self.from_start,
        };
        let path = run_path(&self.run)?;
        let view: RunView = client.post(&format!("{path}/resume"), &request).await?;
        let from = view
            .attempts
            .last()
            .and_then(|attempt| attempt.resumed_from.as_ref());
        let from = from.map_or("from the start".to_owned(), |from| format!("from {}", from.path));
        eprintln!("{} attempt {} {from}", self.run, view.summary.attempt);
        if self.wait {
            follow::to_success(client, &self.run).await
        } else {
            Ok(())
        }
    }
}
