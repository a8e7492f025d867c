//! Managed runs: the pure state machine of `domain::run::state`, its persistence in the store, and the agents that carry out its actions.
//!
//! ```text
//! API, agents, clock ─ Event ─▶ advance ─▶ one transaction: machine N+1 and its actions ─▶ Place │ Command ─▶ agents
//!                                              ▲                                                    │
//!                                              └────────────── reports, by the control stream ──────┘
//! ```
//! Each run has a task that processes its events one after the other, see [`owner`]. An action stays in the store until it is done (nodes
//! are found, or a command is accepted), so it is repeated after a crash. Agents recognise commands that they have received before.

mod actions;
mod agents;
mod bursts;
mod checkpoints;
mod clocks;
mod commands;
mod divergence;
mod error;
mod goodput;
mod inspect;
mod knobs;
mod logs;
mod memory;
mod node_choice;
mod owner;
mod owners;
mod placement;
mod placement_preview;
mod preview;
mod publish;
mod removal_ages;
mod reports;
mod resume;
mod secrets;
mod start;
mod stop;
mod stored;
mod unknown_attempts;
mod verdicts;
mod views;

use std::sync::Arc;

use domain::api::runs::RunView;
use domain::api::session::Role;
use domain::ident::RunId;
use domain::run::spec::Spec;
use domain::run::state::Machine;
use store::StateStore;
use tokio::sync::Semaphore;

use self::owners::Owners;
use self::placement::Placement;
use self::removal_ages::RemovalAges;
use self::secrets::Secrets;
use self::stored::{new_id, read, record, stored_actions};
use self::unknown_attempts::UnknownAttempts;
use crate::analysis::Attempts;
use crate::changes::Changes;
use crate::clock;
use crate::config::Config;
use crate::evaluator::Evaluator;
use crate::event_log::EventLog;
use crate::live::Live;
use crate::self_metrics::SelfMetrics;
use crate::state_series::StateSeries;
use crate::tasks::Tasks;

pub use actions::{ActionError, Diagnosed, Done};
pub use agents::{AgentProcess, Agents, Answers, Connection, NameInUse};
pub(crate) use checkpoints::LIST_CHANGED;
pub use error::RunError;
pub use goodput::GoodputError;
pub use inspect::{InspectError, OfRank, grouped};
pub use knobs::KnobError;
pub(crate) use logs::pattern as log_pattern;
pub(crate) use logs::source as log_source;
pub use logs::{
    Cursor, CursorError, LinePosition, LineQuery, LogError, Logs, PIECE_BYTES_MAX, Search, SearchError,
};
pub(crate) use reports::{Incoming, Receipt, Refused};
pub use resume::ResumeError;
pub use verdicts::CompareError;

/// Returns the nodes that are placed last because a critical alert about their hardware fires.
pub type CriticalNodes = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// The other parts of the collector that runs use.
pub struct Parts {
    /// Where runs are stored.
    pub state: StateStore,
    /// Notifies pages of changes.
    pub changes: Changes,
    /// Evaluates queries on the series of runs.
    pub evaluator: Evaluator,
    /// The event log.
    pub events: EventLog,
    /// Where the runs' tasks are spawned.
    pub tasks: Tasks,
    /// The known nodes.
    pub live: Arc<Live>,
    /// The state of runs as series, for rules.
    pub(crate) state_series: Arc<StateSeries>,
    /// The active attempts, for the analysers.
    pub(crate) attempts: Arc<Attempts>,
    /// Counts reports that cannot be read.
    pub metrics: Arc<SelfMetrics>,
    /// Nodes that are placed last.
    pub critical_nodes: CriticalNodes,
}

/// Who submits a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitter {
    /// The id of the token.
    pub token: String,
    /// The name that people know.
    pub name: String,
}

/// The runs of this collector.
pub struct Runs {
    parts: Parts,
    /// Connected agents.
    pub agents: Agents,
    /// Log files.
    pub logs: Logs,
    secrets: Secrets,
    /// Attempts that nodes hold and that this collector does not know.
    unknown: UnknownAttempts,
    /// The tasks that own the active runs.
    owners: Owners,
    /// Runs that wait for nodes.
    placement: Placement,
    /// The ages of orders to remove checkpoints.
    removal_ages: RemovalAges,
    /// Limits how many runs have all their ranks inspected at the same time.
    asking: Semaphore,
}

impl Runs {
    /// Creates the runs of a collector. No agent is connected yet.
    #[must_use]
    pub fn new(config: &Config, parts: Parts) -> Self {
        Self {
            parts,
            agents: Agents::default(),
            logs: Logs::new(config.data_dir().join("logs")),
            secrets: Secrets::new(config.data_dir().join("secrets")),
            unknown: UnknownAttempts::default(),
            owners: Owners::default(),
            placement: Placement::default(),
            removal_ages: RemovalAges::default(),
            asking: Semaphore::new(inspect::QUESTIONS_MAX),
        }
    }

    /// Submits a run. The specification must be valid.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn submit(self: &Arc<Self>, mut spec: Spec, by: Submitter) -> Result<RunView, RunError> {
        let now_ms = clock::now_ms();
        let id = new_id(&spec);
        let values = spec.take_secrets();
        self.secrets.keep(&id, &values).map_err(RunError::Secrets)?;
        let (mut machine, actions) = Machine::submit(id, spec, now_ms);
        machine.owner = Some(by.name);
        machine.submitted_by = Some(by.token);
        let record = record(&machine, 0)?;
        let stored = stored_actions(&actions);
        let insert = async { Ok(self.parts.state.insert_run(&record, &stored, now_ms).await?) };
        self.insert(machine.clone(), insert).await?;
        self.publish(None, &machine).await;
        self.place_now(&machine.id, &actions).await;
        Ok(RunView::from(&*self.machine(&machine.id).await?))
    }

    /// Fills in the values that a run's page hides, in a specification that was copied from it. Whoever submits a script can read the
    /// values, so only an admin and the token that submitted the run `from` may do this. If that token is not recorded, only an admin may.
    ///
    /// # Errors
    /// Returns an error if the run is unknown, the values are those of another user, or the store fails.
    pub async fn restore_hidden_values(
        &self,
        spec: &mut Spec,
        from: &RunId,
        token: &str,
        role: Role,
    ) -> Result<(), RunError> {
        let machine = self.machine(from).await?;
        let hidden = spec.hidden_values();
        let may_reuse = role.allows(Role::Admin) || machine.submitted_by.as_deref() == Some(token);
        if !hidden.is_empty() && !may_reuse {
            return Err(RunError::HiddenValues {
                run: from.clone(),
                names: hidden.into_iter().map(str::to_owned).collect(),
            });
        }
        spec.restore_hidden_values(&machine.spec, &self.secrets.of(from));
        Ok(())
    }

    /// Returns a run as it is stored.
    async fn machine(&self, run: &RunId) -> Result<Arc<Machine>, RunError> {
        if let Some(machine) = self.owners.stored(run) {
            return Ok(machine);
        }
        let record = self.parts.state.run(run).await?;
        let record = record.ok_or_else(|| RunError::Unknown(run.clone()))?;
        Ok(Arc::new(read(record)?))
    }
}
