//! One task owns one run: it is the only writer of the run's state.
//!
//! ```text
//! take ─▶ inbox ─▶ drain ─▶ check and advance each event ─▶ one transaction ─▶ commands sent, pages notified ─▶ senders answered
//!                    ▲                                                                        │
//!                    └──────────────── then the batch that arrived meanwhile ─────────────────┘
//! ```
//! The state of an active run is in memory. Readers get the last stored state without a request to the task. The task of an ended run ends
//! itself when no event has arrived for a while; the next event loads the run again.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use domain::ident::{AttemptId, AttemptNo, RunId};
use domain::run::state::{Action, Event, Machine, NodeReport};
use domain::run::stored::V1;
use domain::time::TimestampMs;
use store::state::runs::RunUpdate;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::Runs;
use super::error::RunError;
use super::owners::{INBOX_MAX, Owner, PendingEvent, Request};
use super::stored::{read, stored_actions};
use crate::clock;

/// How often a run gets a tick event.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of events in one transaction. With more, the first sender would wait too long.
const BATCH_MAX: usize = 1_024;
/// How long the task of an ended run is kept after its last event.
const IDLE: Duration = Duration::from_secs(60);
/// Every this many ticks the steps of a run are read, although all its nodes are connected.
const LOOK_AT_STEPS_TICKS: u64 = 10;
impl Runs {
    /// Processes one event, and waits until the result is stored.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn take(self: &Arc<Self>, run: &RunId, event: Event) -> Result<(), RunError> {
        self.take_as(run, PendingEvent::new(event)).await
    }

    /// Does the same for an event that its sender may repeat.
    pub(super) async fn take_as(
        self: &Arc<Self>,
        run: &RunId,
        mut pending: PendingEvent,
    ) -> Result<(), RunError> {
        let (reply, answer) = oneshot::channel();
        pending.reply = Some(reply);
        self.request(run, Request::Take(Box::new(pending)), answer).await
    }

    /// Sends commands of a run again, in order with its other commands.
    pub(super) async fn send_again(
        self: &Arc<Self>,
        run: &RunId,
        commands: Vec<Action>,
    ) -> Result<(), RunError> {
        let (reply, answer) = oneshot::channel();
        self.request(run, Request::SendAgain { commands, reply }, answer)
            .await
    }

    /// Inserts a run, which `insert` stores, unless it exists. Returns false if it exists.
    pub(super) async fn insert(
        self: &Arc<Self>,
        machine: Machine,
        insert: impl Future<Output = Result<(), RunError>>,
    ) -> Result<bool, RunError> {
        let _alone = self.owners.loading.lock().await;
        if self.owners.stored(&machine.id).is_some() || self.parts.state.run(&machine.id).await?.is_some() {
            return Ok(false);
        }
        insert.await?;
        self.spawn_owner(machine, 0);
        Ok(true)
    }

    async fn request(
        self: &Arc<Self>,
        run: &RunId,
        mut request: Request,
        answer: oneshot::Receiver<Result<(), RunError>>,
    ) -> Result<(), RunError> {
        loop {
            let owner = self.owner(run).await?;
            match owner.inbox.send(request).await {
                Ok(()) => break,
                // The task has just ended itself.
                Err(unsent) => request = unsent.0,
            }
        }
        answer.await.unwrap_or_else(|_| Err(RunError::Busy(run.clone())))
    }

    /// Returns the task of a run. Loads the run if it has no task.
    async fn owner(self: &Arc<Self>, run: &RunId) -> Result<Owner, RunError> {
        let known = || self.owners.lock().get(run).cloned();
        if let Some(owner) = known().filter(|owner| !owner.inbox.is_closed()) {
            return Ok(owner);
        }
        let _alone = self.owners.loading.lock().await;
        if let Some(mut owner) = known() {
            if !owner.inbox.is_closed() {
                return Ok(owner);
            }
            // The old task still stores what arrived before it ended.
            while owner.stored.changed().await.is_ok() {}
        }
        let record = self.parts.state.run(run).await?;
        let record = record.ok_or_else(|| RunError::Unknown(run.clone()))?;
        let version = record.version;
        Ok(self.spawn_owner(read(record)?, version))
    }

    fn spawn_owner(self: &Arc<Self>, machine: Machine, version: i64) -> Owner {
        let run = machine.id.clone();
        let (inbox, requests) = mpsc::channel(INBOX_MAX);
        let (stored, receiver) = watch::channel(Arc::new(machine));
        let owner = Owner {
            inbox,
            stored: receiver,
        };
        self.owners.lock().insert(run.clone(), owner.clone());
        let task = OwnerTask {
            runs: Arc::clone(self),
            run,
            version,
            stored,
        };
        self.parts.tasks.spawn(task.run(requests));
        owner
    }

    /// Checks that a node that reports has a part in the attempt. A watched run gets its nodes from their reports. Checkpoints of an
    /// attempt that is unknown after a restore belong to their run all the same.
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
        if joins
            || machine.has_task(node, *attempt)
            || self
                .unknown
                .is_held(node, &AttemptId::new(machine.id.clone(), *attempt))
        {
            return Ok(());
        }
        Err(RunError::NotInAttempt {
            run: machine.id.clone(),
            attempt: *attempt,
            node: node.clone(),
        })
    }
}

struct OwnerTask {
    runs: Arc<Runs>,
    run: RunId,
    version: i64,
    stored: watch::Sender<Arc<Machine>>,
}

/// The result of a batch of events.
struct Batch {
    machine: Machine,
    actions: Vec<Action>,
    /// The state after each event that changed the run's state or its attempt. Others are notified of each of them.
    stages: Vec<Arc<Machine>>,
    ids: HashSet<String>,
    done: Vec<(AttemptNo, u32)>,
}

/// What remains to be done after a batch is stored.
struct Stored {
    actions: Vec<Action>,
    stages: Vec<Arc<Machine>>,
    replies: Vec<oneshot::Sender<Result<(), RunError>>>,
}

impl OwnerTask {
    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut tick, mut last_event, mut batch) = (0_u64, Instant::now(), Vec::new());
        loop {
            let is_final = self.stored.borrow().state.is_final();
            tokio::select! {
                count = requests.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        break;
                    }
                    last_event = Instant::now();
                    self.serve(std::mem::take(&mut batch)).await;
                }
                _ = ticks.tick(), if !is_final => {
                    tick += 1;
                    self.tick(tick.is_multiple_of(LOOK_AT_STEPS_TICKS)).await;
                }
                () = sleep_until(last_event + IDLE), if is_final => requests.close(),
            }
        }
        self.runs.owners.lock().remove(&self.run);
    }

    /// Stores the events of a batch together. Requests to send commands again are processed between them, in order.
    async fn serve(&mut self, requests: Vec<Request>) {
        let mut events = Vec::new();
        for request in requests {
            match request {
                Request::Take(pending) => events.push(*pending),
                Request::SendAgain { commands, reply } => {
                    self.take(std::mem::take(&mut events)).await;
                    let _gone = reply.send(self.send_again(&commands).await);
                }
            }
        }
        self.take(events).await;
    }

    async fn tick(&mut self, looks_at_steps: bool) {
        let machine = self.stored.borrow().clone();
        let runs = &self.runs;
        let mut events = runs.seen_of_nodes(&machine, clock::now_ms());
        if looks_at_steps || machine.has_node_away() {
            events.extend(runs.stepped(&machine).await);
        }
        events.push(Event::Tick);
        self.take(events.into_iter().map(PendingEvent::new).collect())
            .await;
    }

    async fn take(&mut self, mut events: Vec<PendingEvent>) {
        if events.is_empty() {
            return;
        }
        let touches_pins = events.iter().any(|pending| is_about_pins(&pending.event));
        let runs = Arc::clone(&self.runs);
        let _alone = match touches_pins {
            true => Some(runs.owners.pins.lock().await),
            false => None,
        };
        let before = self.stored.borrow().clone();
        match self.store(&before, &mut events).await {
            Ok(stored) => self.finish_batch(&before, stored).await,
            Err(error) => {
                tracing::error!(run = %self.run, %error, "a change of a run cannot be stored");
                self.reload().await;
                let mut replies = events.into_iter().filter_map(|pending| pending.reply);
                // Each sender tries again. The first one gets the reason.
                if let Some(first) = replies.next() {
                    let _gone = first.send(Err(error));
                }
                for reply in replies {
                    let _gone = reply.send(Err(RunError::Busy(self.run.clone())));
                }
            }
        }
    }

    /// Advances the run and stores the new state. Events whose senders wait stay in `events` until it is stored.
    async fn store(
        &mut self,
        before: &Arc<Machine>,
        events: &mut Vec<PendingEvent>,
    ) -> Result<Stored, RunError> {
        let (runs, now_ms) = (Arc::clone(&self.runs), clock::now_ms());
        let ids: Vec<&str> = events
            .iter()
            .filter_map(|pending| pending.id.as_deref())
            .collect();
        let seen = runs.parts.state.run_events_seen(&self.run, &ids).await?;
        let mut batch = Batch {
            machine: Machine::clone(before),
            actions: Vec::new(),
            stages: Vec::new(),
            ids: HashSet::new(),
            done: Vec::new(),
        };
        if let Some(reported) = reported_paths(events) {
            let paths = runs.pinned_by_others(&batch.machine, reported).await?;
            batch.advance(&runs, &Event::PinnedByOthers { paths }, now_ms);
        }
        events.retain_mut(|pending| batch.take(&runs, &seen, pending, now_ms));
        let Batch {
            machine,
            actions,
            stages,
            ids,
            done,
        } = batch;
        if !ids.is_empty() || !done.is_empty() || !actions.is_empty() || machine != **before {
            let json = serde_json::to_string(&V1::from(&machine)).map_err(|source| RunError::Stored {
                run: self.run.clone(),
                source,
            })?;
            let pinned = &machine.storage.pinned;
            let update = RunUpdate {
                run: &self.run,
                expected_version: self.version,
                machine: &json,
                summary: &(&machine).into(),
                actions: &stored_actions(&actions),
                event_ids: &ids.iter().map(String::as_str).collect::<Vec<_>>(),
                done: &done,
                pins: (*pinned != before.storage.pinned).then_some(pinned),
            };
            self.version = runs.parts.state.update_run(update, now_ms).await?;
            self.stored.send_replace(Arc::new(machine));
        }
        Ok(Stored {
            actions,
            stages,
            replies: events.drain(..).filter_map(|pending| pending.reply).collect(),
        })
    }

    /// Reads the run again after an error: the transaction may have been stored all the same.
    async fn reload(&mut self) {
        match self.runs.parts.state.run(&self.run).await {
            Ok(Some(record)) => {
                let version = record.version;
                match read(record) {
                    Ok(machine) => {
                        self.version = version;
                        self.stored.send_replace(Arc::new(machine));
                    }
                    Err(error) => tracing::error!(run = %self.run, %error, "a run cannot be read again"),
                }
            }
            Ok(None) => {}
            Err(error) => tracing::error!(run = %self.run, %error, "a run cannot be read again"),
        }
    }

    /// Sends the commands, notifies others of the changes, and answers the senders.
    async fn finish_batch(&self, before: &Arc<Machine>, stored: Stored) {
        let runs = &self.runs;
        // In the order of the events: a stop must not overtake the start that it ends.
        runs.send_commands(&self.run, &stored.actions);
        let last = self.stored.borrow().clone();
        let mut published = before;
        for stage in stored.stages.iter().chain([&last]) {
            if stage != published {
                runs.publish(Some(published), stage).await;
                published = stage;
            }
        }
        for reply in stored.replies {
            let _gone = reply.send(Ok(()));
        }
        runs.placement.request(&self.run, &stored.actions);
    }

    /// Sends commands again that were never accepted. Drops those that are no longer needed; for a removal, the run records why. A removal is
    /// not sent if a later one repeats it: a person may request it again, and automatic retention does if the node has not answered.
    async fn send_again(&mut self, commands: &[Action]) -> Result<(), RunError> {
        let runs = Arc::clone(&self.runs);
        for (at, command) in commands.iter().enumerate() {
            let _alone = if command.removal().is_some() {
                let alone = runs.owners.pins.lock().await;
                let machine = self.stored.borrow().clone();
                let paths = runs.pinned_by_others(&machine, BTreeSet::new()).await?;
                let mut events = vec![PendingEvent::new(Event::PinnedByOthers { paths })];
                self.store(&machine, &mut events).await?;
                Some(alone)
            } else {
                None
            };
            let now_ms = clock::now_ms();
            let is_due = self.stored.borrow().is_due(command, now_ms) && !self.has_expired(command);
            if is_due && !self.is_repeated(command, &commands[at + 1..], now_ms) {
                runs.send_commands(&self.run, std::slice::from_ref(command));
            } else if let Some((node, order)) = command.removal().filter(|_| !is_due) {
                let (node, order) = (node.clone(), order.clone());
                let mut dropped = PendingEvent::new(Event::RemovalDropped { node, order });
                dropped.done = Some((command.attempt, command.n));
                self.take(vec![dropped]).await;
            } else {
                let state = &runs.parts.state;
                state
                    .action_done(&self.run, command.attempt, command.n, now_ms)
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns true for a removal that this process has held for too long, whatever the machine's clock says.
    fn has_expired(&self, command: &Action) -> bool {
        let attempt = AttemptId::new(self.run.clone(), command.attempt);
        command.removal().is_some() && self.runs.removal_ages.remaining_ms(&attempt, command.n) == 0
    }

    fn is_repeated(&self, command: &Action, later: &[Action], now_ms: TimestampMs) -> bool {
        let run = self.stored.borrow();
        later
            .iter()
            .any(|later| command.is_repeated_by(later) && run.is_due(later, now_ms))
    }
}

impl Batch {
    /// Processes an event. Returns false if its sender has been answered.
    fn take(
        &mut self,
        runs: &Runs,
        seen: &BTreeSet<String>,
        pending: &mut PendingEvent,
        now_ms: TimestampMs,
    ) -> bool {
        let is_repeat = |id: &String| seen.contains(id) || self.ids.contains(id);
        if pending.id.as_ref().is_some_and(is_repeat) {
            return true;
        }
        if let Err(error) = runs.check_part(&self.machine, &pending.event) {
            if let Some(reply) = pending.reply.take() {
                let _gone = reply.send(Err(error));
            }
            return false;
        }
        self.advance(runs, &pending.event, now_ms);
        self.ids.extend(pending.id.clone());
        self.done.extend(pending.done);
        true
    }

    /// Advances the run. If a backup was restored and the run has not processed that yet, this comes first.
    fn advance(&mut self, runs: &Runs, event: &Event, now_ms: TimestampMs) {
        let restored = runs.unknown.restore_of(&self.machine);
        let restored = restored.map(|restored_ms| Event::Restored { restored_ms });
        for event in restored.iter().chain([event]) {
            let stage = |machine: &Machine| (machine.state, machine.current().no);
            let before = stage(&self.machine);
            self.actions.extend(self.machine.advance(event, now_ms));
            if stage(&self.machine) != before {
                self.stages.push(Arc::new(self.machine.clone()));
            }
        }
    }
}

/// Returns true if the event may remove checkpoints, or sets which are kept.
fn is_about_pins(event: &Event) -> bool {
    matches!(event, Event::CheckpointPinned { .. }) || paths_of(event).is_some()
}

/// Returns the checkpoints that events report, if one of the events may remove checkpoints: a pin of any run holds by path.
fn reported_paths(events: &[PendingEvent]) -> Option<BTreeSet<String>> {
    let mut removing = events
        .iter()
        .filter_map(|pending| paths_of(&pending.event))
        .peekable();
    removing.peek()?;
    Some(removing.flatten().collect())
}

fn paths_of(event: &Event) -> Option<Vec<String>> {
    match event {
        Event::Reported {
            report: NodeReport::Checkpoints(report),
            ..
        } => Some(report.checkpoints.iter().map(|one| one.path.clone()).collect()),
        Event::PruneRequested { .. } => Some(Vec::new()),
        _ => None,
    }
}
