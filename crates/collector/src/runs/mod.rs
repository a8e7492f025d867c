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
mod logs;
mod place;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::api::runs::{LogPiece, LogSource, RunSummary, RunView};
use domain::event::{Event as LogLine, Severity};
use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::spec::Spec;
use domain::run::state::{
    Action, Event, Machine, NodeCommand, NodePhase, NodeReport, NodeTask, RunState, Task, advance,
};
use domain::time::TimestampMs;
use query::Value;
use rand::RngExt;
use store::StateStore;
use store::state::StateError;
use store::state::runs::{RunAction, RunRecord, RunUpdate, Updated};
use tokio::sync::Mutex;

use crate::app::Shared;
use crate::changes::{Change, Changes};
use crate::config::Config;
use crate::error::StartError;
use crate::evaluator::Evaluator;

pub use agents::{Agents, Connection};
pub(crate) use logs::source as log_source;
pub use logs::{LogError, Logs, PIECE_BYTES_MAX};

/// How often time passes for the machines, and waiting runs look for nodes.
const TICK: Duration = Duration::from_secs(1);
/// Every so many ticks, commands that no agent has accepted are sent again.
const SEND_AGAIN_TICKS: u64 = 10;
/// A node that is connected this long after it was noted as away is back, whatever order the two were noted in.
const RECONCILE_MS: i64 = 5_000;
/// The id of a stop for an attempt that is over by all we know; actions count from 1 and never come this far.
const LEFTOVER_STOP: u32 = u32::MAX;
/// Time a leftover has between SIGTERM and SIGKILL.
const LEFTOVER_GRACE_MS: u64 = 30_000;
/// How far back the last step of a rank is looked for; steps that take longer are shown without.
const STEPS_WINDOW_MS: i64 = 3_600_000;
/// A run's state is read, advanced and written again when someone else was faster; never seen more than once in practice.
const CONFLICTS_MAX: u32 = 5;
/// Letters of a run id behind its name: 31 bits of them, no vowels, so no words.
const ID_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz23456789";
const ID_LETTERS: usize = 6;

/// The runs of this collector.
pub struct Runs {
    state: StateStore,
    changes: Changes,
    evaluator: Evaluator,
    /// Connected agents.
    pub agents: Agents,
    /// Log files.
    pub logs: Logs,
    /// Held while one event is taken: events of a run must not overtake each other.
    turn: Mutex<()>,
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
    /// Someone else changed it, again and again.
    #[error("run {0} changes too quickly; try again")]
    Busy(RunId),
}

/// Starts the clock of the machines, and takes up what was under way.
///
/// # Errors
/// When the store cannot be read.
pub async fn start(app: &Shared) -> Result<(), StartError> {
    let unfinished = app.store.state.unfinished_runs().await;
    unfinished.map_err(|error| StartError::Load {
        what: "runs",
        source: Box::new(error),
    })?;
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
    Ok(())
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
            turn: Mutex::default(),
            placing: Mutex::default(),
        }
    }

    /// Takes a run on. The spec has no problems.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn submit(&self, app: &Shared, spec: Spec) -> Result<RunView, RunError> {
        let now_ms = app.now_ms();
        let id = new_id(&spec);
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
            let (after, actions) = advance(&before, event, now_ms);
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

    /// A report of a node, by the id the agent gave it.
    ///
    /// # Errors
    /// When there is no such run, or the store fails: then it is not acknowledged, and comes again.
    pub async fn report(
        &self,
        app: &Shared,
        (run, attempt): (&RunId, AttemptNo),
        node: &NodeName,
        id: u64,
        report: NodeReport,
    ) -> Result<(), RunError> {
        let accepted = match &report {
            NodeReport::Accepted { command } | NodeReport::Refused { command, .. } => {
                u32::try_from(*command).ok()
            }
            _ => None,
        };
        let event = Event::Reported {
            attempt,
            node: node.clone(),
            report,
        };
        self.take(app, run, &event, Some(&format!("{attempt}/{node}/{id}")))
            .await?;
        if let Some(n) = accepted {
            self.state.action_done(run, attempt, n, app.now_ms()).await?;
        }
        Ok(())
    }

    /// An agent said what it holds: its runs are told, and commands it has not accepted are sent again.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn node_back(
        &self,
        app: &Shared,
        node: &NodeName,
        held: &[(RunId, AttemptNo)],
    ) -> Result<(), RunError> {
        for run in self.unfinished_on(node).await? {
            let holds = held
                .iter()
                .any(|(id, attempt)| *id == run.id && *attempt == run.current().no);
            let event = Event::NodeBack {
                node: node.clone(),
                holds,
            };
            self.take(app, &run.id, &event, None).await?;
        }
        self.stop_leftovers(node, held).await?;
        self.send_pending(app, Some(node)).await
    }

    /// Ends what a node still holds of runs that are over. A run that is not known at all is left alone: it may be this
    /// collector's data that is gone.
    async fn stop_leftovers(&self, node: &NodeName, held: &[(RunId, AttemptNo)]) -> Result<(), RunError> {
        for (run, attempt) in held {
            match self.machine(run).await {
                Ok((_, machine)) if machine.is_live(*attempt) => {}
                Ok(_) => {
                    let stop = NodeCommand::Stop {
                        grace_ms: LEFTOVER_GRACE_MS,
                    };
                    self.agents.send(node, run, *attempt, LEFTOVER_STOP, &stop);
                }
                Err(RunError::Unknown(run)) => {
                    tracing::warn!(%node, %run, "a node holds a run that is not known here");
                }
                Err(error @ RunError::Stored { .. }) => {
                    tracing::error!(%node, %error, "what a node holds is left alone")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends commands that were never accepted again; those of attempts that are over, and starts of attempts
    /// that are being stopped, are dropped.
    async fn send_pending(&self, app: &Shared, to: Option<&NodeName>) -> Result<(), RunError> {
        let _in_turn = self.turn.lock().await;
        for (run, action) in self.state.pending_actions().await? {
            let Ok(Task::Command { node, command }) = serde_json::from_value(action.action) else {
                continue;
            };
            if to.is_some_and(|to| *to != node) {
                continue;
            }
            let Some(machine) = unless_unreadable(self.machine(&run).await)?.map(|(_, machine)| machine)
            else {
                continue;
            };
            let is_stop = matches!(command, NodeCommand::Stop { .. });
            if machine.is_live(action.attempt) && (is_stop || !machine.is_stopping()) {
                self.agents.send(&node, &run, action.attempt, action.n, &command);
            } else {
                self.state
                    .action_done(&run, action.attempt, action.n, app.now_ms())
                    .await?;
            }
        }
        Ok(())
    }

    /// An agent's connection ended.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn node_lost(&self, app: &Shared, node: &NodeName) -> Result<(), RunError> {
        if self.agents.is_connected(node) {
            return Ok(());
        }
        for run in self.unfinished_on(node).await? {
            self.take(app, &run.id, &Event::NodeLost { node: node.clone() }, None)
                .await?;
        }
        Ok(())
    }

    /// Everything about a run, with the step each rank has reached.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn view(&self, run: &RunId) -> Result<RunView, RunError> {
        let (_, machine) = self.machine(run).await?;
        let mut view = machine.view();
        let steps = self.steps(&machine).await;
        let ranks = view
            .attempts
            .last_mut()
            .into_iter()
            .flat_map(|attempt| &mut attempt.nodes)
            .flat_map(|node| &mut node.ranks);
        for rank in ranks {
            rank.step = steps.get(&rank.rank.0).copied().or(rank.step);
        }
        Ok(view)
    }

    /// The same without the steps, for whoever does not show them.
    ///
    /// # Errors
    /// When there is no such run, or the store fails.
    pub async fn stored_view(&self, run: &RunId) -> Result<RunView, RunError> {
        Ok(self.machine(run).await?.1.view())
    }

    /// The newest runs first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self, limit: u32) -> Result<Vec<RunSummary>, RunError> {
        let records = self.state.runs(limit).await?;
        Ok(records.into_iter().map(|record| record.summary).collect())
    }

    /// Runs under way, by node.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn by_node(&self) -> Result<BTreeMap<String, Vec<String>>, RunError> {
        let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in self.state.unfinished_runs().await? {
            for node in record.summary.nodes {
                by_node.entry(node).or_default().push(record.id.to_string());
            }
        }
        Ok(by_node)
    }

    /// Writes a piece of a log and returns how long the log is then. Pieces for runs that are not known are acknowledged and
    /// dropped: they would come for ever, and fill the disk under any name.
    ///
    /// # Errors
    /// When the log's name is none, or the disk fails.
    pub async fn write_log(
        &self,
        run: &RunId,
        source: &LogSource,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, LogError> {
        if !self.logs.is_open(run) && matches!(self.state.run(run).await, Ok(None)) {
            return Ok(offset.saturating_add(bytes.len() as u64));
        }
        self.logs.write(run, source, offset, bytes).await
    }

    /// A piece of a log file.
    ///
    /// # Errors
    /// When there is no such file, or it cannot be read.
    pub async fn log(
        &self,
        run: &RunId,
        source: &LogSource,
        offset: u64,
        limit: u64,
    ) -> Result<LogPiece, LogError> {
        self.logs.read(run, source, offset, limit).await
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

    /// The last step of each rank of the current attempt.
    async fn steps(&self, run: &Machine) -> BTreeMap<u32, u64> {
        let at_ms = run.ended_ms.unwrap_or_else(crate::clock::now_ms);
        let window_ms = (at_ms - run.current().started_ms).clamp(1, STEPS_WINDOW_MS);
        // A run's id has no character that would end the string.
        let query = format!("last_over_time(train_step{{run=\"{}\"}}[{window_ms}ms])", run.id);
        let Ok(output) = self.evaluator.instant(&query, at_ms).await else {
            return BTreeMap::new();
        };
        let Value::Vector(samples) = output.value else {
            return BTreeMap::new();
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a saturating cast of a count"
        )]
        let step = |(labels, _, value): (domain::series::Labels, i64, f64)| {
            Some((labels.get("rank")?.parse().ok()?, value as u64))
        };
        samples.into_iter().filter_map(step).collect()
    }

    // === actions ===

    fn send_commands(&self, run: &RunId, actions: &[Action]) {
        for action in actions {
            if let Task::Command { node, command } = &action.task {
                self.agents.send(node, run, action.attempt, action.n, command);
            }
        }
    }

    async fn find_nodes(&self, app: &Shared, run: &RunId, actions: &[Action]) -> Result<(), RunError> {
        for action in actions {
            if let Task::Place { nodes } = action.task {
                self.place(app, run, action.attempt, action.n, nodes).await?;
            }
        }
        Ok(())
    }

    /// Looks for nodes; what does not succeed is tried again at the next tick.
    async fn place(
        &self,
        app: &Shared,
        run: &RunId,
        attempt: AttemptNo,
        n: u32,
        count: u32,
    ) -> Result<(), RunError> {
        let _alone = self.placing.lock().await;
        let (_, machine) = self.machine(run).await?;
        let still_wanted = !machine.state.is_final()
            && machine.current().no == attempt
            && machine.current().nodes.is_empty();
        if !still_wanted {
            return Ok(self.state.action_done(run, attempt, n, app.now_ms()).await?);
        }
        let candidates = place::candidates(app, &self.agents, &self.by_node().await?);
        match place::choose(candidates, count) {
            Ok(nodes) => {
                self.take(app, run, &Event::Placed { attempt, nodes }, None)
                    .await?;
                Ok(self.state.action_done(run, attempt, n, app.now_ms()).await?)
            }
            Err(reason) => self.take(app, run, &Event::CannotPlace { reason }, None).await,
        }
    }

    async fn tick(&self, app: &Shared, send_again: bool) -> Result<(), RunError> {
        for run in self.unfinished().await? {
            for event in self.seen_of_nodes(&run, app.now_ms()) {
                self.take(app, &run.id, &event, None).await?;
            }
            self.take(app, &run.id, &Event::Tick, None).await?;
        }
        for (run, action) in self.state.pending_actions().await? {
            if let Ok(Task::Place { nodes }) = serde_json::from_value(action.action) {
                let placed = self.place(app, &run, action.attempt, action.n, nodes).await;
                unless_unreadable(placed)?;
            }
        }
        if send_again {
            self.send_pending(app, None).await
        } else {
            Ok(())
        }
    }

    /// What a run should know of its nodes: after a restart of the collector all are away until they connect.
    fn seen_of_nodes(&self, run: &Machine, now_ms: TimestampMs) -> Vec<Event> {
        let event = |task: &NodeTask| match (self.agents.is_connected(&task.node), task.away_since_ms) {
            (false, None) => Some(Event::NodeLost {
                node: task.node.clone(),
            }),
            (true, Some(since)) if now_ms - since > RECONCILE_MS => Some(Event::NodeBack {
                node: task.node.clone(),
                holds: true,
            }),
            _ => None,
        };
        run.current()
            .nodes
            .iter()
            .filter(|task| task.phase != NodePhase::Ended)
            .filter_map(event)
            .collect()
    }

    // === telling ===

    /// Tells the pages; a new state also goes to the event log.
    async fn tell(&self, app: &Shared, before: Option<&Machine>, after: &Machine) {
        self.changes.send(Change::Run(after.id.clone()));
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

fn new_id(spec: &Spec) -> RunId {
    let mut random = rand::rng();
    let letters: String = (0..ID_LETTERS)
        .map(|_| char::from(ID_ALPHABET[random.random_range(0..ID_ALPHABET.len())]))
        .collect();
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '-'
        }
    };
    let name: String = spec.display_name().chars().take(40).map(allowed).collect();
    let name = name.trim_start_matches(['.', '-']);
    let id = if name.is_empty() {
        format!("run-{letters}")
    } else {
        format!("{name}-{letters}")
    };
    RunId::new(id).expect("letters, digits, '.', '_' and '-' only, beginning with a letter, digit or '_'")
}

fn record(machine: &Machine, version: i64) -> Result<RunRecord, RunError> {
    let json = |value: serde_json::Result<serde_json::Value>| {
        value.map_err(|source| RunError::Stored {
            run: machine.id.clone(),
            source,
        })
    };
    Ok(RunRecord {
        id: machine.id.clone(),
        version,
        spec: json(serde_json::to_value(&machine.spec))?,
        machine: json(serde_json::to_value(machine))?,
        summary: machine.summary(),
    })
}

fn read(record: RunRecord) -> Result<Machine, RunError> {
    serde_json::from_value(record.machine).map_err(|source| RunError::Stored {
        run: record.id,
        source,
    })
}

/// `None`, and a line in the log, for a run whose stored state cannot be read or that is gone: it must not stop the others.
fn unless_unreadable<T>(result: Result<T, RunError>) -> Result<Option<T>, RunError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (RunError::Stored { .. } | RunError::Unknown(_))) => {
            tracing::error!(%error, "a run is passed over");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn stored_actions(actions: &[Action]) -> Vec<RunAction> {
    let stored = |action: &Action| RunAction {
        attempt: action.attempt,
        n: action.n,
        action: serde_json::to_value(&action.task).expect("tasks are plain data"),
    };
    actions.iter().map(stored).collect()
}
