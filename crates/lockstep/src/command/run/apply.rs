//! `lockstep run apply RUN KNOB=VALUE…`: other knobs, in place or by another attempt, and whether that was worth it.

use std::collections::BTreeMap;

use clap::Args;
use domain::api::runs::{ApplyKnobs, AttemptView, RunView};
use domain::ident::AttemptNo;
use domain::run::knob::{ChangeId, Decision, KNOBS, LiveChange, LiveState, Verdict};

use super::submit::setting;
use super::{follow, run_path, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Seconds behind the end of a run in which its last samples may still decide.
const LATE_S: u64 = 30;

/// Arguments of `apply`.
#[derive(Args)]
#[command(after_help = knobs(), after_long_help = knobs())]
pub(super) struct Apply {
    /// The run's id.
    run: String,
    /// A knob and its value. May be repeated.
    #[arg(required = true, value_name = "KNOB=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Take it back when the verdict is against it. Only activation checkpointing is otherwise, or as the run says.
    #[arg(long, conflicts_with = "no_auto_revert")]
    auto_revert: bool,
    /// Never take it back by itself.
    #[arg(long)]
    no_auto_revert: bool,
    /// Begin anew, from no checkpoint.
    #[arg(long)]
    from_start: bool,
    /// Another attempt, also where the ranks could take it over while they train.
    #[arg(long)]
    restart: bool,
    /// Once activation_checkpointing is kept, try a doubled micro_batch; taken back by itself unless samples a second rise.
    #[arg(long, conflicts_with = "no_larger_batch")]
    try_larger_batch: bool,
    /// Try none, though the run says so.
    #[arg(long)]
    no_larger_batch: bool,
    /// Only while this attempt is the current one.
    #[arg(long, value_name = "ATTEMPT")]
    expected: Option<u32>,
    /// Wait for the verdict; exit code 1 when it is against the change, or the knob could not be turned.
    #[arg(long)]
    wait: bool,
}

impl Apply {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let asked = ApplyKnobs {
            set: self.set.iter().cloned().collect::<BTreeMap<_, _>>(),
            expected: self.expected.map(AttemptNo),
            auto_revert: chosen(self.auto_revert, self.no_auto_revert),
            restart: self.restart,
            try_larger_batch: chosen(self.try_larger_batch, self.no_larger_batch),
            from_start: self.from_start,
        };
        let before: RunView = client.get(&run_path(&self.run)?, &[]).await?;
        let path = format!("{}/apply", run_path(&self.run)?);
        let view: RunView = client.post(&path, &asked).await?;
        told(&before, &view);
        if self.wait {
            let change = latest(&view);
            wait_for_verdict(client, &self.run, change).await
        } else {
            Ok(())
        }
    }
}

fn chosen(yes: bool, no: bool) -> Option<bool> {
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// The change that a request came to: the one just made or waited for, else the last of the current attempt.
fn latest(view: &RunView) -> ChangeId {
    let attempt = next_attempt(view);
    let last = view.attempts.iter().rfind(|made| made.attempt == attempt);
    let live = last.and_then(|made| made.live.last()).map_or(0, |live| live.no);
    ChangeId { attempt, live }
}

/// What the ranks of the current attempt have just been asked to take over.
pub(super) fn made_in_place<'a>(before: &RunView, view: &'a RunView) -> Option<&'a LiveChange> {
    let now = view.attempts.last()?;
    let known = before.attempts.iter().find(|made| made.attempt == now.attempt)?;
    now.live.get(known.live.len()..)?.last()
}

/// The attempt that a change waits for, or that has made it.
pub(super) fn next_attempt(view: &RunView) -> AttemptNo {
    let current = view.summary.attempt;
    if view.pending.is_some() {
        AttemptNo(current.0 + 1)
    } else {
        current
    }
}

/// What will happen, and from where the run goes on.
pub(super) fn told(before: &RunView, view: &RunView) {
    let run = &view.summary.id;
    if let Some(change) = &view.pending {
        let when = view
            .stop
            .as_ref()
            .and_then(|stop| stop.after_step)
            .map_or("when its processes have ended".to_owned(), |step| {
                format!("after step {step}")
            });
        eprintln!("{run} goes on {when} as attempt {}:", next_attempt(view));
        show::change(change);
        return;
    }
    if let Some(live) = made_in_place(before, view) {
        eprintln!(
            "{run} trains on; each rank of attempt {} takes it over at the end of its next step (`lockstep run show {run}` says who has):",
            view.summary.attempt
        );
        show::change(&live.change);
        return;
    }
    if view.summary.attempt == before.summary.attempt {
        eprintln!("{run}: it is so already, nothing was changed");
        return;
    }
    let Some(attempt) = view.attempts.last() else {
        return;
    };
    let from = attempt.resumed_from.as_ref();
    let from = from.map_or(
        "from the start, as no complete checkpoint is known".to_owned(),
        |from| format!("from {}", printable(&from.path)),
    );
    eprintln!("{run} attempt {} {from}:", attempt.attempt);
    if let Some(change) = &attempt.change {
        show::change(change);
    }
}

/// Waits until a change is judged, and says how.
async fn wait_for_verdict(client: &Client, run: &str, id: ChangeId) -> Result<(), Failure> {
    let (mut ended, mut told) = (None, false);
    let verdict = follow::until(client, run, |view| {
        let made = view.attempts.iter().find(|made| made.attempt == id.attempt);
        let live = made.and_then(|made| in_place(made, id.live));
        if let Some(live) = live.filter(|live| live.state != LiveState::Asked) {
            if !std::mem::replace(&mut told, true) {
                eprintln!("{run}: {}", printable(&live.words()));
            }
            if live.state == LiveState::Refused {
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
        (since.elapsed().as_secs() > LATE_S || made.is_none()).then_some(Ok(None))
    })
    .await?;
    let verdict = match verdict {
        Ok(Some(verdict)) => verdict,
        Ok(None) => {
            return Err(Failure::Failed(anyhow::anyhow!(
                "{run} has ended, and nothing tells whether the change was worth it; `lockstep run show {run}` says how it ended"
            )));
        }
        Err(refused) => return Err(Failure::Failed(anyhow::anyhow!("{refused}"))),
    };
    say!("{}", words(&verdict));
    if verdict.decision.is_against() || verdict.decision == Decision::NotApplied {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{}; `lockstep run revert {run}` takes it back",
            verdict.decision.words()
        )));
    }
    Ok(())
}

/// A change in place of an attempt by its number.
pub(super) fn in_place(made: &AttemptView, no: u32) -> Option<&LiveChange> {
    made.live.iter().find(|live| live.no == no)
}

/// A verdict in a line.
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
            "; ranks take it over while they train"
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
A knob that the run declares ([knobs] num_workers = \"--num-workers\") is the script's own flag or variable; others go to the
environment, or the probe changes what the script makes, which is shown as injected.

Examples:
  lockstep run apply RUN grad_clip_norm=1.0 --wait
  lockstep run apply RUN activation_checkpointing=block --try-larger-batch
  lockstep run apply RUN process_group_timeout_s=1200      # in place: the ranks train on; --restart for another attempt"
    )
}
