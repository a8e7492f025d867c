//! `lockstep run …`: the subcommands for runs.

mod apply;
mod bandwidth;
mod check;
mod checkpoints;
mod compare;
mod exclude;
mod fix;
mod flight;
mod follow;
mod list;
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
use domain::api::runs::RunView;

use crate::client::Target;
use crate::command::token::path_part;
use crate::failure::Failure;

/// Check, submit, watch, stop, resume and change training runs.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run check train.toml
  lockstep run submit --recipe ddp --wait
  lockstep run list --label team=vision
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
  lockstep run exclude RUN NODE --dry-run
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
    /// Check a specification without starting a run: each error with its field, or what would be started.
    Check(check::Check),
    /// List runs, newest first.
    List(list::List),
    /// Show one run: its state, attempts and ranks, and how they ended.
    Show {
        /// ID of the run.
        run: String,
    },
    /// Print the output of a run.
    Logs(logs::Logs),
    /// Stop a run with SIGTERM to its ranks and SIGKILL after the grace period; or after a step or a checkpoint.
    Stop(stop::Stop),
    /// Continue an ended run from its last complete checkpoint.
    Resume(resume::Resume),
    /// Change knobs, in place or in a new attempt, and compare before and after.
    Apply(apply::Apply),
    /// Revert the last change of knobs.
    Revert(revert::Revert),
    /// Exclude a node from a run, which continues on other nodes in a new attempt.
    Exclude(exclude::Exclude),
    /// Compare two runs or attempts: their differences and their results.
    Compare(compare::Compare),
    /// List, pin and prune the checkpoints of a run.
    Checkpoints(checkpoints::Checkpoints),
    /// Show what is wrong with a run: cause, culprit, evidence and advice.
    Why {
        /// ID of the run.
        run: String,
    },
    /// List the actions that diagnoses of a run suggest, with cost and undo, and carry out one.
    Fix(fix::Fix),
    /// Show where each rank is in its code now. Ranks in the same place are grouped.
    Stacks(stacks::Stacks),
    /// Show the last collectives of each rank, or its wait counters.
    Flight(flight::Flight),
    /// Record a trace with PyTorch's profiler in running ranks, and download it.
    Trace(trace::Trace),
}

impl Run {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let client = self.target.client()?;
        match self.action {
            Action::Submit(submit) => submit.execute(&client).await,
            Action::Check(check) => check.execute(&client).await,
            Action::List(list) => list.execute(&client).await,
            Action::Show { run } => {
                show::run(&client.get::<RunView>(&run_path(&run)?, &[]).await?);
                show::goodput(&client, &run).await;
                Ok(())
            }
            Action::Logs(logs) => logs.execute(&client).await,
            Action::Stop(stop) => stop.execute(&client).await,
            Action::Resume(resume) => resume.execute(&client).await,
            Action::Apply(apply) => apply.execute(&client).await,
            Action::Revert(revert) => revert.execute(&client).await,
            Action::Exclude(exclude) => exclude.execute(&client).await,
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
