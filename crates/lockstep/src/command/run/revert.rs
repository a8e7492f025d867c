//! `lockstep run revert RUN`: reverts the last change of knobs.

use clap::Args;
use domain::api::runs::{RevertKnobs, RunView};
use domain::ident::AttemptNo;
use domain::run::knob::{Change, ChangeId, InPlaceState};

use super::{apply, follow, run_path};
use crate::client::Client;
use crate::failure::Failure;

/// Arguments of `revert`.
#[derive(Args)]
pub(super) struct Revert {
    /// ID of the run.
    run: String,
    /// Attempt whose change to revert. Default: the last change that is not reverted.
    #[arg(long)]
    attempt: Option<u32>,
    /// Number of the in-place change of that attempt, counted from 1.
    #[arg(long, value_name = "N", requires = "attempt")]
    live: Option<u32>,
    /// Start from step 0, without a checkpoint.
    #[arg(long)]
    from_start: bool,
    /// Start a new attempt even if the ranks could revert the change while they train.
    #[arg(long)]
    restart: bool,
    /// Wait until the next attempt runs, or until every rank has reverted the change in place.
    #[arg(long)]
    wait: bool,
}

impl Revert {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = run_path(&self.run)?;
        let before: RunView = client.get(&path, &[]).await?;
        // The request names the change, so that a repeated request reverts one change only.
        let given = self.attempt.map(|attempt| ChangeId {
            attempt: AttemptNo(attempt),
            live: self.live.unwrap_or(0),
        });
        let change = given.or_else(|| last_change(&before));
        let asked = RevertKnobs {
            attempt: change.map(|id| id.attempt),
            live: change.map(|id| id.live).filter(|live| *live > 0),
            from_start: self.from_start,
            restart: self.restart,
        };
        let view: RunView = client.post(&format!("{path}/revert"), &asked).await?;
        apply::print_change(&before, &view);
        let in_place = apply::requested_in_place_change(&before, &view).map(|live| live.no);
        if let Some(no) = in_place.filter(|_| self.wait) {
            let attempt = view.summary.attempt;
            let words = follow::until(client, &self.run, |view| {
                let made = view.attempts.iter().find(|made| made.attempt == attempt)?;
                let live = apply::in_place(made, no)?;
                (live.state != InPlaceState::Asked).then(|| (live.state, live.words()))
            })
            .await?;
            return match words {
                (InPlaceState::Refused, why) => Err(Failure::Failed(anyhow::anyhow!("{why}"))),
                (_, words) => {
                    eprintln!("{}: {words}", self.run);
                    Ok(())
                }
            };
        }
        if self.wait {
            follow::until_attempt_runs(client, &self.run, apply::next_attempt(&view)).await?;
        }
        Ok(())
    }
}

/// Returns the last change that is not reverted.
fn last_change(view: &RunView) -> Option<ChangeId> {
    let reverted: Vec<ChangeId> = changes(view)
        .filter_map(|(_, change)| change.reverted_change())
        .collect();
    let stands = |(id, change): &(ChangeId, &Change)| change.reverts.is_none() && !reverted.contains(id);
    changes(view).filter(stands).map(|(id, _)| id).last()
}

fn changes(view: &RunView) -> impl Iterator<Item = (ChangeId, &Change)> {
    view.attempts.iter().flat_map(|made| {
        let own = made.change.iter().map(|change| (0, change));
        let live = made.live.iter().filter(|live| live.is_made());
        let live = live.map(|live| (live.no, &live.change));
        let attempt = made.attempt;
        own.chain(live)
            .map(move |(live, change)| (ChangeId { attempt, live }, change))
    })
}
