//! `lockstep run stop`: at once, or at a moment where nothing is lost. Also stops what nodes hold of a run without the collector
//! knowing it.

use clap::Args;
use std::time::Duration;

use domain::api::runs::{RunView, StopAfter, StopRun, StopUnknown, UnknownAttemptView};
use domain::time::parse_duration_ms;

use super::{follow, run_path, unknown};
use crate::client::Client;
use crate::failure::Failure;

/// How often it is looked whether an unknown attempt has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Arguments of `stop`.
#[derive(Args)]
pub(super) struct Stop {
    /// The run's id.
    run: String,
    /// Let all ranks end after one and the same step, a few seconds ahead: a script that saves on SIGTERM saves there.
    #[arg(long, conflicts_with = "after_checkpoint")]
    after_step: bool,
    /// Wait for the next complete checkpoint, then stop.
    #[arg(long)]
    after_checkpoint: bool,
    /// Time between SIGTERM and SIGKILL, like 30s.
    #[arg(long, value_parser = grace)]
    grace: Option<u64>,
    /// Wait until it has ended.
    #[arg(long)]
    wait: bool,
}

impl Stop {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = format!("{}/stop", run_path(&self.run)?);
        let held = unknown::of_run(client, &self.run).await?;
        if !held.is_empty() {
            self.stop_unknown(client).await?;
            let run = client.get::<RunView>(&run_path(&self.run)?, &[]).await;
            // Unknown as a whole, or over by all that is known: nothing else is to be stopped.
            if run.is_ok_and(|run| !run.summary.state.is_final()) {
                client.post::<RunView>(&path, &self.wish()).await?;
            }
            return Ok(());
        }
        let view: RunView = client.post(&path, &self.wish()).await?;
        eprintln!("{}", told(&view));
        if self.wait {
            follow::until_ended(client, &self.run).await?;
        }
        Ok(())
    }

    async fn stop_unknown(&self, client: &Client) -> Result<(), Failure> {
        let asked = StopUnknown {
            run: self.run.clone(),
            grace_ms: self.grace,
        };
        let stopping: Vec<UnknownAttemptView> = client.post("/api/unknown-attempts/stop", &asked).await?;
        for UnknownAttemptView { node, attempt, .. } in stopping {
            eprintln!(
                "attempt {attempt} of {} on node {node}, which the collector does not know, is stopping",
                self.run
            );
        }
        while self.wait && !unknown::of_run(client, &self.run).await?.is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    fn wish(&self) -> StopRun {
        StopRun {
            grace_ms: self.grace,
            after: self.after(),
        }
    }

    fn after(&self) -> Option<StopAfter> {
        match (self.after_step, self.after_checkpoint) {
            (true, _) => Some(StopAfter::Step),
            (_, true) => Some(StopAfter::Checkpoint),
            _ => None,
        }
    }
}

/// What will happen, and what it costs.
pub(super) fn told(view: &RunView) -> String {
    let run = &view.summary.id;
    let stop = view.stop.clone().unwrap_or_default();
    match (stop.after_step, stop.after_checkpoint) {
        _ if view.summary.state.is_final() => format!("{run} is {}", view.summary.state.as_str()),
        (Some(step), _) => format!("{run} stops after step {step}"),
        (None, true) => format!("{run} stops when its next checkpoint is complete"),
        (None, false) => format!("{run} is stopping{}", loss(view.steps_since_checkpoint)),
    }
}

fn loss(steps: Option<u64>) -> String {
    match steps {
        None => String::new(),
        Some(0) => "; no step since its last complete checkpoint is lost".into(),
        Some(1) => "; 1 step since its last complete checkpoint is lost, unless it saves on SIGTERM".into(),
        Some(n) => {
            format!("; {n} steps since its last complete checkpoint are lost, unless it saves on SIGTERM")
        }
    }
}

fn grace(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text).map_err(|error| error.to_string())?;
    u64::try_from(ms).map_err(|_| "must not be negative".to_owned())
}
