//! `lockstep run apply RUN KNOB=VALUE…`: changes knobs, in place or in a new attempt, and shows the verdict.

use std::collections::BTreeMap;

use clap::Args;
use domain::api::runs::{ApplyKnobs, AttemptView, RunView};
use domain::ident::AttemptNo;
use domain::run::knob::{ChangeId, Decision, InPlaceChange, InPlaceState, KNOBS, Verdict};

use super::submit::setting;
use super::{follow, run_path, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// How long to wait for a verdict after the end of a run, in seconds: its last samples may still arrive.
const VERDICT_GRACE_S: u64 = 30;

/// Arguments of `apply`.
#[derive(Args)]
#[command(after_help = knobs(), after_long_help = knobs())]
pub(super) struct Apply {
    /// ID of the run.
    run: String,
    /// A knob and its new value. Can be repeated.
    #[arg(required = true, value_name = "KNOB=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Revert the change automatically if the verdict is against it. Default: as the run's specification says, otherwise only for
    /// activation checkpointing.
    #[arg(long, conflicts_with = "no_auto_revert")]
    auto_revert: bool,
    /// Never revert the change automatically.
    #[arg(long)]
    no_auto_revert: bool,
    /// Start from step 0, without a checkpoint.
    #[arg(long)]
    from_start: bool,
    /// Start a new attempt even if the ranks could apply the change while they train.
    #[arg(long)]
    restart: bool,
    /// When activation_checkpointing is kept, try a doubled micro_batch. It is reverted automatically unless samples per second rise.
    #[arg(long, conflicts_with = "no_larger_batch")]
    try_larger_batch: bool,
    /// Do not try a larger micro_batch, even if the run's specification says so.
    #[arg(long)]
    no_larger_batch: bool,
    /// Apply the change only if this attempt is the current one.
    #[arg(long, value_name = "ATTEMPT")]
    expected: Option<u32>,
    /// Wait for the verdict. Exit code 1 if it is against the change, or if the knob could not be changed.
    #[arg(long)]
    wait: bool,
}

impl Apply {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let asked = ApplyKnobs {
            set: self.set.iter().cloned().collect::<BTreeMap<_, _>>(),
            expected: self.expected.map(AttemptNo),
            auto_revert: yes_or_no(self.auto_revert, self.no_auto_revert),
            restart: self.restart,
            try_larger_batch: yes_or_no(self.try_larger_batch, self.no_larger_batch),
            from_start: self.from_start,
        };
        let before: RunView = client.get(&run_path(&self.run)?, &[]).await?;
        let path = format!("{}/apply", run_path(&self.run)?);
        let view: RunView = client.post(&path, &asked).await?;
        print_change(&before, &view);
        if self.wait {
            let change = latest(&view);
            wait_for_verdict(client, &self.run, change).await
        } else {
            Ok(())
        }
    }
}

fn yes_or_no(yes: bool, no: bool) -> Option<bool> {
    (yes || no).then_some(yes)
}

/// Returns the change that a request created: the one that was just made or is pending, otherwise the last one of the current attempt.
fn latest(view: &RunView) -> ChangeId {
    let attempt = next_attempt(view);
    let last = view.attempts.iter().rfind(|made| made.attempt == attempt);
    let live = last.and_then(|made| made.live.last()).map_or(0, |live| live.no);
    ChangeId { attempt, live }
}

/// Returns the change that the request asked the ranks of the current attempt to apply in place, if any.
pub(super) fn requested_in_place_change<'a>(
    before: &RunView,
    view: &'a RunView,
) -> Option<&'a InPlaceChange> {
    let now = view.attempts.last()?;
    let known = before.attempts.iter().find(|made| made.attempt == now.attempt)?;
    now.live.get(known.live.len()..)?.last()
}

/// Returns the attempt that will have the pending change, or the current attempt if no change is pending.
pub(super) fn next_attempt(view: &RunView) -> AttemptNo {
    let current = view.summary.attempt;
    if view.pending.is_some() {
        AttemptNo(current.0 + 1)
    } else {
        current
    }
}

/// Returns when the current attempt ends, as text, if a change waits for its end.
pub(super) fn end_of_attempt(view: &RunView) -> String {
    let step = view.stop.as_ref().and_then(|stop| stop.after_step);
    step.map_or("when its processes have ended".to_owned(), |step| {
        format!("after step {step}")
    })
}

/// Prints what will happen, and from which checkpoint the run continues.
pub(super) fn print_change(before: &RunView, view: &RunView) {
    let run = &view.summary.id;
    if let Some(change) = &view.pending {
        eprintln!(
            "{run} continues {} as attempt {}:",
            end_of_attempt(view),
            next_attempt(view)
        );
        show::change(change);
        return;
    }
    if let Some(live) = requested_in_place_change(before, view) {
        eprintln!(
            "{run} keeps training; each rank of attempt {} applies the change at the end of its next step (`lockstep run show {run}` shows which ranks have):",
            view.summary.attempt
        );
        show::change(&live.change);
        return;
    }
    if view.summary.attempt == before.summary.attempt {
        eprintln!("{run}: the knobs already have these values; nothing was changed");
        return;
    }
    let Some(attempt) = view.attempts.last() else {
        return;
    };
    let from = attempt.resumed_from.as_ref();
    let from = from.map_or(
        "from the start, because no complete checkpoint is known".to_owned(),
        |from| format!("from {}", printable(&from.path)),
    );
    eprintln!("{run} attempt {} {from}:", attempt.attempt);
    if let Some(change) = &attempt.change {
        show::change(change);
    }
}

/// Waits for the verdict on a change, and prints it.
async fn wait_for_verdict(client: &Client, run: &str, id: ChangeId) -> Result<(), Failure> {
    let (mut ended, mut printed) = (None, false);
    let verdict = follow::until(client, run, |view| {
        let made = view.attempts.iter().find(|made| made.attempt == id.attempt);
        let live = made.and_then(|made| in_place(made, id.live));
        if let Some(live) = live.filter(|live| live.state != InPlaceState::Asked) {
            if !std::mem::replace(&mut printed, true) {
                eprintln!("{run}: {}", printable(&live.words()));
            }
            if live.state == InPlaceState::Refused {
                return Some(Err(live.words()));
            }
        }
        let change = match id.live {
            0 => made.and_then(|made| made.change.as_ref()),
            _ => live.map(|live| &live.change),
        };
        let verdict = change.and_then(|change| change.verdict.clone());
        let verdict = verdict.filter(|verdict| verdict.decision != Decision::NotYet);
        if verdict.is_some() {
            return Some(Ok(verdict));
        }
        if !view.summary.state.is_final() {
            return None;
        }
        let since = *ended.get_or_insert_with(tokio::time::Instant::now);
        (since.elapsed().as_secs() > VERDICT_GRACE_S || made.is_none()).then_some(Ok(None))
    })
    .await?;
    let verdict = match verdict {
        Ok(Some(verdict)) => verdict,
        Ok(None) => {
            return Err(Failure::Failed(anyhow::anyhow!(
                "{run} ended without a verdict on the change; `lockstep run show {run}` shows how it ended"
            )));
        }
        Err(refused) => return Err(Failure::Failed(anyhow::anyhow!("{refused}"))),
    };
    say!("{}", words(&verdict));
    if verdict.decision.is_against()
        || matches!(verdict.decision, Decision::NotApplied | Decision::NotRecovered)
    {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{}; `lockstep run revert {run}` reverts the change",
            verdict.decision.words()
        )));
    }
    Ok(())
}

/// Returns the in-place change of an attempt with number `no`.
pub(super) fn in_place(made: &AttemptView, no: u32) -> Option<&InPlaceChange> {
    made.live.iter().find(|live| live.no == no)
}

/// Formats a verdict as one line.
pub(super) fn words(verdict: &Verdict) -> String {
    format!(
        "verdict: {}: {}",
        verdict.decision.words(),
        printable(&verdict.summary)
    )
}

fn knobs() -> String {
    let line = |knob: &domain::run::knob::Knob| {
        let live = if knob.live {
            "; ranks apply it while they train"
        } else {
            ""
        };
        format!(
            "  {}={}\n      {}{live}\n",
            knob.name,
            knob.values.words(),
            knob.what
        )
    };
    let lines: String = KNOBS.iter().map(line).collect();
    format!(
        "Knobs:\n{lines}
A knob that the run declares ([knobs] num_workers = \"--num-workers\") is set through the script's own flag or variable. Others are set
through the environment, or the probe changes objects of the script, which is shown as injected.

Examples:
  lockstep run apply RUN grad_clip_norm=1.0 --wait
  lockstep run apply RUN activation_checkpointing=block --try-larger-batch
  lockstep run apply RUN process_group_timeout_s=1200      # in place, while the ranks train; --restart starts a new attempt"
    )
}
