//! Managed runs: the pure machine of `domain::run::state`, its memory in the store, and the agents that carry it out.
//!
//! ```text
//! API, agents, clock ─ Event ─▶ advance ─▶ one transaction: machine N+1 and its actions ─▶ Place │ Command ─▶ agents
//!                                              ▲                                                    │
//!                                              └────────────── reports, by the control stream ──────┘
//! ```
//! Events of all runs are taken one after the other. An action stays in the store until it is done (a place found, a command
//! accepted), so whatever dies in between is asked for again; agents know commands they have seen.

mod agents;
mod bursts;
mod checkpoints;
mod clocks;
mod inspect;
mod knobs;
mod logs;
mod look;
mod orders;
mod place;
mod reports;
mod resume;
mod secrets;
mod stop;
mod stored;
mod unknown;
mod verdicts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::api::runs::RunView;
use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::spec::Spec;
use domain::run::state::{Action, Event, Machine, NodeReport, RunState, advance};
use domain::time::TimestampMs;

use store::state::StateError;
use store::state::runs::{RunUpdate, Updated};
use store::{StateStore, StoreConfig};
use tokio::sync::{Mutex, Semaphore};

use self::secrets::Secrets;
use self::stored::{new_id, read, record, stored_actions, unless_unreadable};
use self::unknown::Unknown;
use crate::app::Shared;
use crate::changes::{Change, Changes};
use crate::config::Config;
use crate::error::StartError;
use crate::evaluator::Evaluator;

pub use agents::{Agents, Answers, Connection};
pub use inspect::{InspectError, OfRank, grouped};
pub use knobs::KnobError;
pub(crate) use logs::source as log_source;
pub use logs::{LogError, Logs, PIECE_BYTES_MAX, Search, SearchError};
pub(crate) use reports::{Incoming, Receipt, Refused};
pub use resume::ResumeError;
pub use verdicts::CompareError;

/// How often time passes for the machines, and waiting runs look for nodes.
const TICK: Duration = Duration::from_secs(1);
/// Every so many ticks, commands that no agent has accepted are sent again.
const SEND_AGAIN_TICKS: u64 = 10;
/// How often old logs are looked for.
const KEEP_EVERY: Duration = Duration::from_secs(3_600);
/// A run's state is read, advanced and written again when someone else was faster; never seen more than once in practice.
const CONFLICTS_MAX: u32 = 5;

/// The runs of this collector.
pub struct Runs {
    state: StateStore,
    changes: Changes,
    evaluator: Evaluator,
    /// Connected agents.
    pub agents: Agents,
    /// Log files.
    pub logs: Logs,
    secrets: Secrets,
    /// What nodes hold and this collector does not know.
    unknown: Unknown,
    /// Held while one event is taken: events of a run must not overtake each other.
    turn: Mutex<()>,
    /// Held while all ranks of a run are asked something.
    asking: Semaphore,
    /// Held while nodes are chosen: two runs must not be given the same GPUs.
    placing: Mutex<()>,
}

/// A run that cannot be had or changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No such run.
    #[error("there is no run {0}; GET /api/runs lists them")]
    Unknown(RunId),
    /// The store.
    #[error("the run's state cannot be read or written")]
    State(#[from] StateError),
    /// A stored machine of another version.
    #[error("the stored state of run {run} cannot be read; it may have been written by a newer version")]
    Stored {
        /// The run.
        run: RunId,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A stop cannot wait for a step or a checkpoint.
    #[error(
        "run {run} cannot be stopped at a later moment: {reason}. A stop without `after` sends SIGTERM and leaves its ranks the grace to save"
    )]
    CannotWait {
        /// The run.
        run: RunId,
        /// Why not.
        reason: String,
    },
    /// A report of a node that has no part in the attempt that it is about.
    #[error("node {node} has no part in attempt {attempt} of run {run}")]
    NotInAttempt {
        /// The run.
        run: RunId,
        /// The attempt.
        attempt: AttemptNo,
        /// Who reports.
        node: NodeName,
    },
    /// No other attempt may begin.
    #[error(
        "node {node} holds attempt {attempt} of run {run}, which this collector does not know: stop it with `lockstep run stop {run}`, or wait until it has ended"
    )]
    HeldUnknown {
        /// The run.
        run: RunId,
        /// The node.
        node: NodeName,
        /// The attempt that it holds.
        attempt: AttemptNo,
    },
    /// The values of its secrets.
    #[error("the run's secrets cannot be kept; look at the space and the rights of the data folder")]
    Secrets(#[source] std::io::Error),
    /// Someone else changed it, again and again.
    #[error("run {0} changes too quickly; try again")]
    Busy(RunId),
}

/// Starts the clock of the machines, and takes up what was under way.
///
/// # Errors
/// When the store cannot be read.
pub async fn start(app: &Shared) -> Result<(), StartError> {
    let taken_up = app.runs.unknown.load(&app.store.state, app.now_ms()).await;
    taken_up.map_err(|error| StartError::Load {
        what: "attempts that nodes hold",
        source: Box::new(error),
    })?;
    let unfinished = app.store.state.unfinished_runs().await;
    let unfinished = unfinished.map_err(|error| StartError::Load {
        what: "runs",
        source: Box::new(error),
    })?;
    app.runs.read_kept(app).await.map_err(|error| StartError::Load {
        what: "reports that were not read",
        source: Box::new(error),
    })?;
    for run in unfinished {
        let taken = app.runs.take(app, &run.id, &Event::CollectorStarted, None).await;
        unless_unreadable(taken).map_err(|error| StartError::Load {
            what: "runs",
            source: Box::new(error),
        })?;
    }
    let shared = Arc::clone(app);
    app.spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for n in 1_u64.. {
            ticks.tick().await;
            if let Err(error) = shared
                .runs
                .tick(&shared, n.is_multiple_of(SEND_AGAIN_TICKS))
                .await
            {
                tracing::error!(%error, "runs cannot be looked after");
            }
        }
    });
    let shared = Arc::clone(app);
    app.spawn(async move {
        let (mut ticks, mut followed) = (tokio::time::interval(verdicts::EVERY), BTreeSet::new());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = shared.runs.judge_changes(&shared, &mut followed).await {
                tracing::error!(%error, "changes of knobs cannot be judged");
            }
        }
    });
    let (shared, kept_ms) = (Arc::clone(app), logs_kept_ms(&app.config));
    app.spawn(async move {
        let mut ticks = tokio::time::interval(KEEP_EVERY);
        loop {
            ticks.tick().await;
            shared.runs.keep_logs(shared.now_ms(), kept_ms).await;
        }
    });
    Ok(())
}

/// As long as the run's series by the minute: what can be seen of a run and what it said go together.
fn logs_kept_ms(config: &Config) -> i64 {
    let defaults = StoreConfig::new(&config.data_dir);
    let samples_ms = config.retention_ms.unwrap_or(defaults.retention_ms);
    samples_ms.max(config.retention_1m_ms.unwrap_or(defaults.rollup_1m_ms))
}

impl Runs {
    /// No agent is connected yet.
    #[must_use]
    pub fn new(config: &Config, state: StateStore, changes: Changes, evaluator: Evaluator) -> Self {
        let logs = Logs::new(config.data_dir.join("logs"));
        Self {
            state,
            changes,
            evaluator,
            agents: Agents::default(),
            logs,
            secrets: Secrets::new(config.data_dir.join("secrets")),
            unknown: Unknown::default(),
            turn: Mutex::default(),
            asking: Semaphore::new(inspect::QUESTIONS_MAX),
            placing: Mutex::default(),
        }
    }

    /// Takes a run on. The spec has no problems.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn submit(&self, app: &Shared, mut spec: Spec) -> Result<RunView, RunError> {
        let now_ms = app.now_ms();
        let id = new_id(&spec);
        let values = spec.take_secrets();
        self.secrets.keep(&id, &values).map_err(RunError::Secrets)?;
        let (machine, actions) = Machine::submit(id, spec, now_ms);
        let record = record(&machine, 0)?;
        self.state
            .insert_run(&record, &stored_actions(&actions), now_ms)
            .await?;
        self.tell(app, None, &machine).await;
        // It is submitted, whatever becomes of the first look for nodes; the next is a second away.
        if let Err(error) = self.find_nodes(app, &machine.id, &actions).await {
            tracing::error!(run = %machine.id, %error, "nodes cannot be looked for");
        }
        let newest = self.machine(&machine.id).await;
        Ok(newest.map_or(machine, |(_, machine)| machine).view())
    }

    /// Fills in what a run's page does not show, in a spec that was copied from it.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn fill_in(&self, spec: &mut Spec, from: &RunId) -> Result<(), RunError> {
        let (_, machine) = self.machine(from).await?;
        spec.fill_in(&machine.spec, &self.secrets.of(from));
        Ok(())
    }

    /// Takes one event. One with an id that was taken before changes nothing.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn take(
        &self,
        app: &Shared,
        run: &RunId,
        event: &Event,
        event_id: Option<&str>,
    ) -> Result<(), RunError> {
        let turn = self.turn.lock().await;
        self.refresh_pins(run, event, app.now_ms()).await?;
        let (before, after, actions) = self.advance(run, event, event_id, app.now_ms()).await?;
        // Within the turn: a stop must not overtake the start it ends.
        self.send_commands(run, &actions);
        if after != before {
            self.tell(app, Some(&before), &after).await;
        }
        drop(turn);
        Box::pin(self.find_nodes(app, run, &actions)).await
    }

    async fn advance(
        &self,
        run: &RunId,
        event: &Event,
        event_id: Option<&str>,
        now_ms: TimestampMs,
    ) -> Result<(Machine, Machine, Vec<Action>), RunError> {
        for _ in 0..CONFLICTS_MAX {
            let (version, before) = self.machine(run).await?;
            self.check_part(&before, event)?;
            let (after, actions) = self.advanced(&before, event, now_ms);
            if after == before && event_id.is_none() {
                return Ok((before, after, vec![]));
            }
            let next = record(&after, version)?;
            let update = RunUpdate {
                run,
                expected_version: version,
                machine: &next.machine,
                summary: &next.summary,
                actions: &stored_actions(&actions),
                event_id,
                pins: (after.storage.pinned != before.storage.pinned).then_some(&after.storage.pinned),
            };
            match self.state.update_run(update, now_ms).await {
                Ok(Updated::Applied(_)) => return Ok((before, after, actions)),
                Ok(Updated::AlreadySeen) => return Ok((before.clone(), before, vec![])),
                Err(StateError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(RunError::Busy(run.clone()))
    }

    /// Checks that a node that reports has a part in the attempt. A command that is only watched gets its nodes by their reports, and
    /// what an attempt saves that a restored backup does not know belongs to its run all the same.
    fn check_part(&self, machine: &Machine, event: &Event) -> Result<(), RunError> {
        let Event::Reported {
            attempt,
            node,
            report,
        } = event
        else {
            return Ok(());
        };
        let joins = machine.watched && matches!(report, NodeReport::Watched(_));
        if joins || machine.has_part(node, *attempt) || self.unknown.is_held(node, &machine.id, *attempt) {
            return Ok(());
        }
        Err(RunError::NotInAttempt {
            run: machine.id.clone(),
            attempt: *attempt,
            node: node.clone(),
        })
    }

    /// What a run becomes by an event, after what it becomes by a restore that it has not taken into account yet.
    fn advanced(&self, before: &Machine, event: &Event, now_ms: TimestampMs) -> (Machine, Vec<Action>) {
        let Some(restored_ms) = self.unknown.restore_of(before) else {
            return advance(before, event, now_ms);
        };
        let (restored, mut actions) = advance(before, &Event::Restored { restored_ms }, now_ms);
        let (after, more) = advance(&restored, event, now_ms);
        actions.extend(more);
        (after, actions)
    }

    // === one run ===

    async fn machine(&self, run: &RunId) -> Result<(i64, Machine), RunError> {
        let record = self
            .state
            .run(run)
            .await?
            .ok_or_else(|| RunError::Unknown(run.clone()))?;
        Ok((record.version, read(record)?))
    }

    async fn unfinished_on(&self, node: &NodeName) -> Result<Vec<Machine>, RunError> {
        let mut machines = self.unfinished().await?;
        machines.retain(|run| run.current().nodes.iter().any(|task| task.node == *node));
        Ok(machines)
    }

    /// Runs that may still change. One that cannot be read must not stop the others.
    async fn unfinished(&self) -> Result<Vec<Machine>, RunError> {
        let mut machines = Vec::new();
        for record in self.state.unfinished_runs().await? {
            machines.extend(unless_unreadable(read(record))?);
        }
        Ok(machines)
    }

    // === telling ===

    /// Tells the pages; a new state also goes to the event log.
    async fn tell(&self, app: &Shared, before: Option<&Machine>, after: &Machine) {
        app.state_series.set_run(after);
        self.changes.send(Change::Run(after.id.clone()));
        let now_ms = app.now_ms();
        let news = |before: &Machine| {
            let mut lines = checkpoints::news(before, after, now_ms);
            lines.extend(knobs::news(before, after, now_ms));
            lines
        };
        for line in before.map_or_else(Vec::new, news) {
            app.event(line).await;
        }
        if inspect::stands_still(before, after) {
            inspect::note_stacks(app, after.id.clone());
        }
        if before.map(|run| run.state) == Some(after.state) {
            return;
        }
        let why = after
            .outcome
            .as_ref()
            .map(|outcome| format!(": {}", outcome.message))
            .unwrap_or_default();
        let severity = match after.state {
            RunState::Failed => Severity::Critical,
            RunState::Lost | RunState::Restarting => Severity::Warning,
            _ => Severity::Info,
        };
        app.event(LogLine {
            at_ms: app.now_ms(),
            severity,
            kind: "run_state".to_owned(),
            node: None,
            gpu: None,
            run: Some(after.id.to_string()),
            message: format!("run {} is {}{why}", after.id, after.state.as_str()),
        })
        .await;
    }
}
