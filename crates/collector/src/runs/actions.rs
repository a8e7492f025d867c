//! The actions for a diagnosis of a run, and how they are carried out: through the same events as a request of a user.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::api::checkpoints::{PruneCheckpoints, PruneLine, ResumeRun};
use domain::ident::{AttemptNo, RunId};
use domain::incident::NamedCulprit;
use domain::incident::action::{Action, ActionContext, ActionKind, Hint, Loading, Measurements, propose};
use domain::run::checkpoint::Prune;
use domain::run::inspect::{TraceLength, What};
use domain::run::knob::{ChangeId, Verdict};
use domain::run::state::{KnobRequest, Machine};
use domain::time::TimestampMs;

use super::error::RunError;
use super::inspect::{InspectError, OfRank};
use super::knobs::KnobError;
use super::resume::ResumeError;
use super::{Runs, node_choice};
use crate::clock;

/// Length of a profiler trace, in seconds.
const TRACE_SECONDS: u32 = 2;

/// The parts of a run's diagnosis that decide which actions are possible.
#[derive(Debug, Clone)]
pub struct Diagnosed {
    /// The run.
    pub run: RunId,
    /// The actions that the rule suggests.
    pub hints: Vec<Hint>,
    /// The culprit of the diagnosis.
    pub culprit: NamedCulprit,
    /// When the alert began to fire.
    pub fired_ms: TimestampMs,
}

/// The result of an action.
#[derive(Default)]
pub struct Done {
    /// The change that the action made in the run. Its verdict is found by this id.
    pub change: Option<ChangeId>,
    /// Number of the prune in the run, if the action removed checkpoints. Its verdict is found by this number.
    pub prune: Option<u32>,
    /// The answers of the ranks, if the action was a trace.
    pub traced: Vec<OfRank>,
}

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// The run is unknown or cannot be changed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The knobs cannot be changed.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The run cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The ranks cannot be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The run changed meanwhile.
    #[error("run {0} has changed meanwhile; check it and try again")]
    Changed(RunId),
}

impl Runs {
    /// Returns the actions that are possible now.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn possible_actions(&self, diagnosed: &Diagnosed) -> Result<Vec<Action>, RunError> {
        let run = self.machine(&diagnosed.run).await?;
        let measurements = self.measurements(&run, diagnosed).await;
        Ok(propose(&ActionContext {
            hints: &diagnosed.hints,
            culprit: &diagnosed.culprit,
            fired_ms: diagnosed.fired_ms,
            run: &run,
            measurements: &measurements,
        }))
    }

    async fn measurements(&self, run: &Machine, diagnosed: &Diagnosed) -> Measurements {
        let suggests = |name: &'static str| diagnosed.hints.contains(&Hint::Knob(name));
        Measurements {
            loading: match suggests("num_workers") {
                true => self.loading(run).await,
                false => None,
            },
            usual_grad_norm: match suggests("grad_clip_norm") {
                true => self.usual_grad_norm(run, diagnosed.fired_ms).await,
                false => None,
            },
            micro_batch: self
                .batches(run, clock::now_ms())
                .await
                .ok()
                .flatten()
                .map(|(_, most)| most),
            ..self.restart_measurements(run).await
        }
    }

    async fn loading(&self, run: &Machine) -> Option<Loading> {
        let of_rank = |metric: &str| format!("max(avg_over_time({metric}{{run=\"{}\"}}[1m]))", run.id);
        let wait_s = self
            .number(&of_rank("train_data_seconds"), clock::now_ms())
            .await?;
        let step_s = self
            .number(&of_rank("train_step_seconds"), clock::now_ms())
            .await?;
        let nodes = &run.current().nodes;
        let records = self.parts.live.records();
        let cores = nodes.iter().map(|task| {
            let record = records.iter().find(|record| record.name == task.node);
            record.map(|record| record.inventory.cpus)
        });
        let cores: Option<Vec<u32>> = cores.collect();
        let ranks = nodes.iter().map(|task| task.ranks.len()).max()?;
        Some(Loading {
            cores: cores?.into_iter().min().filter(|cores| *cores > 0)?,
            ranks: u32::try_from(ranks).ok()?,
            wait_s,
            step_s,
        })
    }

    /// Returns the median gradient norm over the half hour that ended one minute before the diagnosis.
    async fn usual_grad_norm(&self, run: &Machine, fired_ms: TimestampMs) -> Option<f64> {
        let query = format!(
            "max(quantile_over_time(0.5, train_grad_norm{{run=\"{}\"}}[30m]))",
            run.id
        );
        self.number(&query, fired_ms - 60_000).await
    }

    /// Returns the first value of a query, if it is finite.
    pub(super) async fn number(&self, query: &str, at_ms: TimestampMs) -> Option<f64> {
        let samples = self.parts.evaluator.samples(query, at_ms).await.ok()?;
        let (_, _, value) = samples.first()?;
        value.is_finite().then_some(*value)
    }

    /// Counts the nodes that could replace a node of the run.
    pub(super) fn spare_nodes(&self, run: &Machine) -> u32 {
        let own: BTreeSet<_> = run.current().nodes.iter().map(|task| &task.node).collect();
        let spare = node_choice::available_nodes(self.candidates(run, clock::now_ms()))
            .into_iter()
            .filter(|node| !own.contains(node));
        u32::try_from(spare.count()).unwrap_or(u32::MAX)
    }

    /// Carries out an action that was possible a moment ago, for `who`.
    ///
    /// # Errors
    /// Returns an error if the action is no longer possible.
    pub async fn carry_out(
        self: &Arc<Self>,
        run: &RunId,
        action: &Action,
        who: &str,
    ) -> Result<Done, ActionError> {
        let before = self.machine(run).await?;
        match (action.kind, &action.knob, &action.value) {
            (ActionKind::Trace, _, _) => {
                let request = What::Trace(TraceLength::Seconds(TRACE_SECONDS));
                let (_, traced) = self.ask_ranks(run, action.rank, request).await?;
                Ok(Done {
                    traced,
                    ..Done::default()
                })
            }
            (ActionKind::PruneCheckpoints, _, _) => {
                let request = PruneCheckpoints {
                    dry_run: false,
                    keep_last: action.keep_last,
                    removes: PruneLine::paths(&action.removes),
                };
                self.prune(run, &request, who).await?;
                let last = |machine: &Machine| machine.storage.prunes.last().map(|prune| prune.no);
                let after = self.machine(run).await?;
                Ok(Done {
                    prune: last(&after).filter(|no| Some(*no) > last(&before)),
                    ..Done::default()
                })
            }
            (ActionKind::Restart, _, _) if before.state.is_final() => {
                let event = self.resumption(run, &ResumeRun::default()).await?;
                self.take(run, event).await?;
                Ok(Done::default())
            }
            (ActionKind::Restart | ActionKind::ExcludeNode, _, _) => {
                let left_out = |node: &String| domain::ident::NodeName::new(node.clone()).ok();
                let without = action.node.iter().filter_map(left_out).collect();
                self.change(&before, KnobRequest::Restart { without }).await
            }
            (ActionKind::RevertKnobs, _, _) => {
                let (id, _) = before
                    .last_change()
                    .ok_or_else(|| ActionError::Changed(run.clone()))?;
                self.change(&before, KnobRequest::revert(id, None)).await
            }
            (ActionKind::ApplyKnob, Some(knob), Some(value)) => {
                let request = KnobRequest::set(knob, value.clone(), None);
                self.change(&before, request).await
            }
            (ActionKind::ApplyKnob, _, _) => Err(ActionError::Changed(run.clone())),
        }
    }

    async fn change(self: &Arc<Self>, before: &Machine, request: KnobRequest) -> Result<Done, ActionError> {
        let run = &before.id;
        let event = self.knob_change(run, request, Some(before.current().no)).await?;
        let event = event.ok_or_else(|| ActionError::Changed(run.clone()))?;
        self.take(run, event).await?;
        let after = self.machine(run).await?;
        Ok(Done {
            change: made_between(before, &after),
            ..Done::default()
        })
    }

    /// Returns the verdict on a change that an action made, or `None` if there is none yet.
    pub async fn verdict_on(&self, run: &RunId, (attempt, live): (AttemptNo, u32)) -> Option<Verdict> {
        let machine = self.machine(run).await.ok()?;
        let made = machine.attempts.iter().find(|made| made.no == attempt)?;
        let change = match live {
            0 => made.knobs.change.as_deref()?,
            no => &made.knobs.live.iter().find(|live| live.no == no)?.change,
        };
        change.verdict.clone()
    }

    /// Returns the verdict on a prune, or `None` if it is too long ago to be known.
    pub async fn verdict_on_prune(&self, run: &RunId, no: u32) -> Option<Verdict> {
        let machine = self.machine(run).await.ok()?;
        let mut prunes = machine.storage.prunes.iter();
        prunes.find(|prune| prune.no == no).map(Prune::verdict)
    }
}

/// Returns the change that was made between two states: by the next attempt, or in place.
fn made_between(before: &Machine, after: &Machine) -> Option<ChangeId> {
    let (was, is) = (before.current(), after.current());
    if is.no > was.no {
        return Some(ChangeId {
            attempt: is.no,
            live: 0,
        });
    }
    if after.pending.is_some() {
        return Some(ChangeId {
            attempt: after.next_attempt(),
            live: 0,
        });
    }
    let live = is
        .knobs
        .live
        .last()
        .filter(|_| is.knobs.live.len() > was.knobs.live.len())?;
    Some(ChangeId {
        attempt: is.no,
        live: live.no,
    })
}
