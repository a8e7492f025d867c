//! Managed runs: the pure machine of `domain::run::state`, its memory in the store, and the agents that carry it out.
//!
//! ```text
//! API, agents, clock ─ Event ─▶ advance ─▶ one transaction: machine N+1 and its actions ─▶ Place │ Command ─▶ agents
//!                                              ▲                                                    │
//!                                              └────────────── reports, by the control stream ──────┘
//! ```
//! Each run has a task that takes its events one after the other, see [`owner`]. An action stays in the store until it is done (a place found, a command
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
mod owner;
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
use domain::run::state::{Event, Machine, NodeReport, RunState};
use store::state::StateError;
use store::{StateStore, StoreConfig};
use tokio::sync::{Mutex, Semaphore};

use self::owner::{Owners, Taken};
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
    /// The tasks that own the runs under way.
    owners: Owners,
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
    /// The change was not stored, together with those of others.
    #[error("run {0} could not be changed now; try again")]
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
        let taken = app.runs.take(app, &run.id, Event::CollectorStarted).await;
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
            owners: Owners::default(),
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
        let stored = stored_actions(&actions);
        let insert = async { Ok(self.state.insert_run(&record, &stored, now_ms).await?) };
        self.owners.insert(app, machine.clone(), insert).await?;
        self.tell(app, None, &machine).await;
        // It is submitted, whatever becomes of the first look for nodes; the next is a second away.
        if let Err(error) = self.find_nodes(app, &machine.id, &actions).await {
            tracing::error!(run = %machine.id, %error, "nodes cannot be looked for");
        }
        Ok(RunView::from(&*self.machine(&machine.id).await?))
    }

    /// Fills in what a run's page does not show, in a spec that was copied from it.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn fill_in(&self, spec: &mut Spec, from: &RunId) -> Result<(), RunError> {
        let machine = self.machine(from).await?;
        spec.fill_in(&machine.spec, &self.secrets.of(from));
        Ok(())
    }

    /// Takes one event, and waits until it is stored.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn take(&self, app: &Shared, run: &RunId, event: Event) -> Result<(), RunError> {
        self.owners.take(app, run, Taken::new(event)).await
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

    // === one run ===

    /// A run as it is stored.
    async fn machine(&self, run: &RunId) -> Result<Arc<Machine>, RunError> {
        if let Some(machine) = self.owners.stored(run) {
            return Ok(machine);
        }
        let record = self.state.run(run).await?;
        let record = record.ok_or_else(|| RunError::Unknown(run.clone()))?;
        Ok(Arc::new(read(record)?))
    }

    fn unfinished_on(&self, node: &NodeName) -> Vec<Arc<Machine>> {
        let mut machines = self.owners.unfinished();
        machines.retain(|run| run.current().nodes.iter().any(|task| task.node == *node));
        machines
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
