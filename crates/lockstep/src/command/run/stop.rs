//! `lockstep run stop`: stops a run at once, or at a point where no work is lost. Also stops attempts that a node holds and the collector
//! does not know.

use clap::Args;
use std::time::Duration;

use domain::api::runs::{RunView, StopAfter, StopRun, StopUnknown, UnknownAttemptView};
use domain::time::parse_duration_ms;

use super::{follow, run_path, unknown};
use crate::client::Client;
use crate::failure::Failure;

/// Time between two checks whether an unknown attempt has ended.
const POLL_PERIOD: Duration = Duration::from_millis(500);

/// Arguments of `stop`.
#[derive(Args)]
pub(super) struct Stop {
    /// ID of the run.
    run: String,
    /// Let all ranks end after the same step, a few seconds ahead. A script that saves on SIGTERM then saves after that step.
    #[arg(long, conflicts_with = "after_checkpoint")]
    after_step: bool,
    /// Wait for the next complete checkpoint, then stop.
    #[arg(long)]
    after_checkpoint: bool,
    /// Time between SIGTERM and SIGKILL, for example 30s.
    #[arg(long, value_parser = grace)]
    grace: Option<u64>,
    /// Wait until the run has ended.
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
            // If the collector does not know the run, or its known attempts have ended, there is nothing else to stop.
            if run.is_ok_and(|run| !run.summary.state.is_final()) {
                client.post::<RunView>(&path, &self.stop_request()).await?;
            }
            return Ok(());
        }
        let view: RunView = client.post(&path, &self.stop_request()).await?;
        eprintln!("{}", stop_summary(&view));
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
            tokio::time::sleep(POLL_PERIOD).await;
        }
        Ok(())
    }

    fn stop_request(&self) -> StopRun {
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

/// Describes what will happen, and how many steps are lost.
pub(super) fn stop_summary(view: &RunView) -> String {
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
