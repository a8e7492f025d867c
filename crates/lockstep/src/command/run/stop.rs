//! `lockstep run stop`: at once, or at a moment where nothing is lost.

use clap::Args;
use domain::api::runs::{RunView, StopAfter, StopRun};
use domain::time::parse_duration_ms;

use super::{follow, run_path};
use crate::client::Client;
use crate::failure::Failure;

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
        let wish = StopRun {
            grace_ms: self.grace,
            after: self.after(),
        };
        let view: RunView = client.post(&path, &wish).await?;
        eprintln!("{}", told(&view));
        if self.wait {
            follow::until_ended(client, &self.run).await?;
        }
        Ok(())
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
