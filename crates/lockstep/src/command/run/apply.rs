//! `lockstep run apply RUN KNOB=VALUE…`: another attempt with other knobs, and whether that was worth it.

use std::collections::BTreeMap;

use clap::Args;
use domain::api::runs::{ApplyKnobs, RunView};
use domain::ident::AttemptNo;
use domain::run::knob::{Decision, KNOBS, Verdict};

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
            auto_revert: match (self.auto_revert, self.no_auto_revert) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            from_start: self.from_start,
        };
        let before: RunView = client.get(&run_path(&self.run)?, &[]).await?;
        let path = format!("{}/apply", run_path(&self.run)?);
        let view: RunView = client.post(&path, &asked).await?;
        told(&before, &view);
        if self.wait {
            let attempt = next_attempt(&view);
            wait_for_verdict(client, &self.run, attempt).await
        } else {
            Ok(())
        }
    }
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

/// Waits until the change of an attempt is judged, and says how.
async fn wait_for_verdict(client: &Client, run: &str, attempt: AttemptNo) -> Result<(), Failure> {
    let mut ended = None;
    let verdict = follow::until(client, run, |view| {
        let made = view.attempts.iter().find(|made| made.attempt == attempt);
        let verdict = made
            .and_then(|made| made.change.as_ref()?.verdict.clone())
            .filter(|verdict| verdict.decision != Decision::NotYet);
        if verdict.is_some() {
            return Some(verdict);
        }
        if !view.summary.state.is_final() {
            return None;
        }
        let since = *ended.get_or_insert_with(tokio::time::Instant::now);
        (since.elapsed().as_secs() > LATE_S || made.is_none()).then_some(None)
    })
    .await?;
    let Some(verdict) = verdict else {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{run} has ended, and nothing tells whether the change was worth it; `lockstep run show {run}` says how it ended"
        )));
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
        format!("  {}={}\n      {}\n", knob.name, knob.values.words(), knob.what)
    };
    let lines: String = KNOBS.iter().map(line).collect();
    format!(
        "Knobs:\n{lines}
A knob that the run declares ([knobs] num_workers = \"--num-workers\") is the script's own flag or variable; others go to the
environment, or the probe changes what the script makes, which is shown as injected.

Examples:
  lockstep run apply RUN grad_clip_norm=1.0 --wait
  lockstep run apply RUN activation_checkpointing=block micro_batch=16"
    )
}
