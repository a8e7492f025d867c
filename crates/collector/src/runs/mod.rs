//! Managed runs: the pure machine of `domain::run::state`, its memory in the store, and the agents that carry it out.
//!
//! ```text
//! API, agents, clock ─ Event ─▶ advance ─▶ one transaction: machine N+1 and its actions ─▶ Place │ Command ─▶ agents
//!                                              ▲                                                    │
//!                                              └────────────── reports, by the control stream ──────┘
//! ```
//! Each run has a task that takes its events one after the other, see [`owner`]. An action stays in the store until it is done (a place found, a command
//! accepted), so whatever dies in between is asked for again; agents know commands they have seen.

mod actions;
mod agents;
mod bursts;
mod checkpoints;
mod clocks;
mod error;
mod inspect;
mod knobs;
mod logs;
mod look;
mod orders;
mod owner;
mod owners;
mod place;
mod placement;
mod reports;
mod resume;
mod secrets;
mod start;
mod stop;
mod stored;
mod tell;
mod unknown;
mod verdicts;

use std::sync::Arc;

use domain::api::runs::RunView;
use domain::ident::RunId;
use domain::run::spec::Spec;
use domain::run::state::Machine;
use store::StateStore;
use tokio::sync::Semaphore;

use self::owners::Owners;
use self::placement::Placement;
use self::secrets::Secrets;
use self::stored::{new_id, read, record, stored_actions};
use self::unknown::Unknown;
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
pub use agents::{Agents, Answers, Connection};
pub use error::RunError;
pub use inspect::{InspectError, OfRank, grouped};
pub use knobs::KnobError;
pub(crate) use logs::source as log_source;
pub use logs::{LogError, Logs, PIECE_BYTES_MAX, Search, SearchError};
pub(crate) use reports::{Incoming, Receipt, Refused};
pub use resume::ResumeError;
pub use verdicts::CompareError;

/// Names the nodes that runs get last: a critical alert about their hardware fires.
pub type CriticalNodes = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// What runs use of the collector's other parts.
pub struct Parts {
    /// Where runs are stored.
    pub state: StateStore,
    /// Tells pages what changed.
    pub changes: Changes,
    /// Answers questions about the series of runs.
    pub evaluator: Evaluator,
    /// What people read.
    pub events: EventLog,
    /// Where the runs' tasks are spawned.
    pub tasks: Tasks,
    /// Which nodes there are.
    pub live: Arc<Live>,
    /// The state of runs, as rules see it.
    pub(crate) state_series: Arc<StateSeries>,
    /// The attempts under way, as the analysers see them.
    pub(crate) attempts: Arc<Attempts>,
    /// Where reports that are not read are counted.
    pub metrics: Arc<SelfMetrics>,
    /// Nodes that runs get last.
    pub critical_nodes: CriticalNodes,
}

/// The runs of this collector.
pub struct Runs {
    parts: Parts,
    /// Connected agents.
    pub agents: Agents,
    /// Log files.
    pub logs: Logs,
    secrets: Secrets,
    /// What nodes hold and this collector does not know.
    unknown: Unknown,
    /// The tasks that own the runs under way.
    owners: Owners,
    /// Runs that wait for nodes.
    placement: Placement,
    /// Held while all ranks of a run are asked something.
    asking: Semaphore,
}

impl Runs {
    /// No agent is connected yet.
    #[must_use]
    pub fn new(config: &Config, parts: Parts) -> Self {
        Self {
            parts,
            agents: Agents::default(),
            logs: Logs::new(config.data_dir().join("logs")),
            secrets: Secrets::new(config.data_dir().join("secrets")),
            unknown: Unknown::default(),
            owners: Owners::default(),
            placement: Placement::default(),
            asking: Semaphore::new(inspect::QUESTIONS_MAX),
        }
    }

    /// Takes a run on. The spec has no problems.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn submit(self: &Arc<Self>, mut spec: Spec) -> Result<RunView, RunError> {
        let now_ms = clock::now_ms();
        let id = new_id(&spec);
        let values = spec.take_secrets();
        self.secrets.keep(&id, &values).map_err(RunError::Secrets)?;
        let (machine, actions) = Machine::submit(id, spec, now_ms);
        let record = record(&machine, 0)?;
        let stored = stored_actions(&actions);
        let insert = async { Ok(self.parts.state.insert_run(&record, &stored, now_ms).await?) };
        self.insert(machine.clone(), insert).await?;
        self.tell(None, &machine).await;
        self.place_now(&machine.id, &actions).await;
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

    /// A run as it is stored.
    async fn machine(&self, run: &RunId) -> Result<Arc<Machine>, RunError> {
        if let Some(machine) = self.owners.stored(run) {
            return Ok(machine);
        }
        let record = self.parts.state.run(run).await?;
        let record = record.ok_or_else(|| RunError::Unknown(run.clone()))?;
        Ok(Arc::new(read(record)?))
    }
}
