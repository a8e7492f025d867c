//! `lockstep run …`

mod apply;
mod bandwidth;
mod checkpoints;
mod compare;
mod fix;
mod flight;
mod follow;
mod logs;
mod resume;
mod revert;
mod show;
mod stacks;
mod stop;
mod submit;
mod trace;
mod unknown;
mod why;

use clap::{Args, Subcommand};
use domain::api::runs::{RunSummary, RunView};

use crate::client::Target;
use crate::command::token::path_part;
use crate::failure::Failure;

/// Submit, watch, stop, resume and change training runs.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run submit --recipe ddp --wait
  lockstep run logs -f RUN --rank 1
  lockstep run why RUN
  lockstep run fix RUN
  lockstep run stacks RUN
  lockstep run trace RUN --rank 0 --steps 3 -o trace.json
  lockstep run checkpoints RUN
  lockstep run checkpoints prune RUN --keep-last 3 --dry-run
  lockstep run stop RUN --grace 2m --wait
  lockstep run stop RUN --after-step --wait
  lockstep run resume RUN --wait
  lockstep run apply RUN grad_clip_norm=1.0 --wait
  lockstep run compare RUN@1 RUN@2")]
pub(crate) struct Run {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Action {
    /// Start a run from a file or a recipe.
    Submit(submit::Submit),
    /// List runs, newest first.
    List,
    /// Show one run: state, attempts, ranks, how they ended.
    Show {
        /// The run's id.
        run: String,
    },
    /// Print a run's output.
    Logs(logs::Logs),
    /// Stop a run: SIGTERM to its ranks, then SIGKILL to what is left; or after a step or a checkpoint.
    Stop(stop::Stop),
    /// Go on with a run that has ended, from its last complete checkpoint.
    Resume(resume::Resume),
    /// Go on with other knobs as another attempt, and judge what they bring.
    Apply(apply::Apply),
    /// Take the last change of knobs back.
    Revert(revert::Revert),
    /// Two runs or attempts side by side: what differs, and how they went.
    Compare(compare::Compare),
    /// What a run has saved: list, pin, prune.
    Checkpoints(checkpoints::Checkpoints),
    /// Say what is wrong with a run: cause, culprit, evidence, what to do.
    Why {
        /// The run's id.
        run: String,
    },
    /// Carry out what a diagnosis of a run suggests, after saying what it will cost.
    Fix(fix::Fix),
    /// Where each rank is in its code now, ranks in the same place together.
    Stacks(stacks::Stacks),
    /// The last collectives of each rank, or what it has waited for.
    Flight(flight::Flight),
    /// Record a trace with PyTorch's profiler in ranks that run, and fetch it.
    Trace(trace::Trace),
}

impl Run {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let client = self.target.client()?;
        match self.action {
            Action::Submit(submit) => submit.execute(&client).await,
            Action::List => {
                show::list(&client.get::<Vec<RunSummary>>("/api/runs", &[]).await?);
                for held in unknown::all(&client).await? {
                    eprintln!("{}", unknown::words(&held));
                }
                Ok(())
            }
            Action::Show { run } => {
                show::run(&client.get::<RunView>(&run_path(&run)?, &[]).await?);
                Ok(())
            }
            Action::Logs(logs) => logs.execute(&client).await,
            Action::Stop(stop) => stop.execute(&client).await,
            Action::Resume(resume) => resume.execute(&client).await,
            Action::Apply(apply) => apply.execute(&client).await,
            Action::Revert(revert) => revert.execute(&client).await,
            Action::Compare(compare) => compare.execute(&client).await,
            Action::Checkpoints(checkpoints) => checkpoints.execute(&client).await,
            Action::Why { run } => why::why(&client, &run).await,
            Action::Fix(fix) => fix.execute(&client).await,
            Action::Stacks(stacks) => stacks.execute(&client).await,
            Action::Flight(flight) => flight.execute(&client).await,
            Action::Trace(trace) => trace.execute(&client).await,
        }
    }
}

fn run_path(run: &str) -> Result<String, Failure> {
    Ok(format!("/api/runs/{}", path_part(run)?))
}
