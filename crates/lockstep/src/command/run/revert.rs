//! `lockstep run revert RUN`: takes the last change of knobs back.

use clap::Args;
use domain::api::runs::{AttemptView, RevertKnobs, RunView};
use domain::ident::AttemptNo;

use super::{apply, follow, run_path};
use crate::client::Client;
use crate::failure::Failure;

/// Arguments of `revert`.
#[derive(Args)]
pub(super) struct Revert {
    /// The run's id.
    run: String,
    /// The attempt whose change is taken back. Default: the last that was not.
    #[arg(long)]
    attempt: Option<u32>,
    /// Begin anew, from no checkpoint.
    #[arg(long)]
    from_start: bool,
    /// Wait until the next attempt runs.
    #[arg(long)]
    wait: bool,
}

impl Revert {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = run_path(&self.run)?;
        let before: RunView = client.get(&path, &[]).await?;
        // Named, so that the same request sent twice takes back one change.
        let attempt = self.attempt.map(AttemptNo).or_else(|| last_change(&before));
        let asked = RevertKnobs {
            attempt,
            from_start: self.from_start,
        };
        let view: RunView = client.post(&format!("{path}/revert"), &asked).await?;
        apply::told(&before, &view);
        if self.wait {
            let wanted = apply::next_attempt(&view);
            let runs = |attempt: &AttemptView| {
                let mut ranks = attempt.nodes.iter().flat_map(|node| &node.ranks);
                attempt.attempt >= wanted && ranks.any(|rank| rank.pid.is_some())
            };
            follow::until(client, &self.run, |view| {
                let over = view.summary.state.is_final();
                (over || view.attempts.iter().any(runs)).then_some(())
            })
            .await?;
        }
        Ok(())
    }
}

/// The last attempt whose change nobody has taken back.
fn last_change(view: &RunView) -> Option<AttemptNo> {
    let changes = || {
        let attempts = view.attempts.iter();
        attempts.filter_map(|attempt| Some((attempt.attempt, attempt.change.as_ref()?)))
    };
    let reverted = |no: AttemptNo| changes().any(|(_, change)| change.reverts == Some(no));
    changes()
        .rfind(|(no, change)| change.reverts.is_none() && !reverted(*no))
        .map(|(no, _)| no)
}
