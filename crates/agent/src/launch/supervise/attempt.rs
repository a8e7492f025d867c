//! One attempt on this node: its commands, its reports, its folder. `follower` is the task that controls it.
//!
//! ```text
//! Prepare ──▶ prepare.json ──▶ Prepared │ PrepareFailed
//! LookFor ──▶ look.json    ──▶ Looked
//! Measure ──▶ measure.json ──▶ Measured
//! Start   ──▶ launch.json  ──▶ shim … its reports
//! Stop    ──▶ stop         ──▶ the shim's Ended, or the agent's own if no shim ever ran
//! StopAfter ▶ stop.after   ──▶ StopStep of each rank that reaches the step, then the shim's Ended
//! TurnLive ▶ knobs.live    ──▶ KnobAnswered of each rank
//! shim gone without Ended  ──▶ shim_cleanup: kills the remaining processes, reports Ended with what is known
//! ```

mod checkpoint_report;
mod follower;
mod rank_facts;
mod sockets;
mod usage;

pub(super) use follower::Follower;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ident::{AttemptNo, RunId};
use domain::run::checkpoint::{CheckpointReport, RemovalOrder};
use domain::run::state::{NodeCommand, NodeReport, Start};
use domain::run::torchrun::Launch;
use shim::files::{self, FileName};
use shim::{Entry, Folder, LiveOrder, Reports, Secrets, StopOrder, read_from};
use tokio::sync::mpsc;

use crate::launch::checkpoint::{AcceptedRemoval, ClockReading, OLD_ORDER};
use crate::launch::preflight::request::PrepareRequest;
use crate::uplink::link::now_ms;

use checkpoint_report::ReportedCheckpoints;

/// Delay between two attempts to write a report on a full disk.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of queued commands; an attempt gets three or four in total.
const COMMANDS_MAX: usize = 16;

/// One attempt, shared by all parts of the agent.
#[derive(Debug)]
pub(crate) struct Attempt {
    run: RunId,
    number: AttemptNo,
    folder: Folder,
    state: Mutex<State>,
    commands: mpsc::Sender<NodeCommand>,
}

#[derive(Debug)]
struct State {
    reports: Reports,
    acknowledged: BTreeSet<u64>,
    checkpoints: Option<ReportedCheckpoints>,
    /// A follower controls the attempt. Without one, no orders are executed.
    followed: bool,
    /// An order of an older collector arrived and was not executed.
    old_order_refused: bool,
}

impl Attempt {
    pub(crate) fn open(
        run: RunId,
        number: AttemptNo,
        folder: Folder,
    ) -> io::Result<(Self, mpsc::Receiver<NodeCommand>)> {
        let reports = Reports::open(&folder.file(files::AGENT_REPORTS), 1)?;
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let state = Mutex::new(State {
            reports,
            acknowledged: BTreeSet::new(),
            checkpoints: ReportedCheckpoints::open(&folder),
            followed: true,
            old_order_refused: false,
        });
        Ok((
            Self {
                run,
                number,
                folder,
                state,
                commands,
            },
            receiver,
        ))
    }

    pub(crate) fn run(&self) -> &RunId {
        &self.run
    }

    pub(crate) fn number(&self) -> AttemptNo {
        self.number
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the rank number of this node's first rank; 0 before the start.
    pub(crate) fn first_rank(&self) -> u32 {
        self.folder
            .read::<Launch>(files::LAUNCH)
            .map_or(0, |launch| launch.first_rank)
    }

    /// Records that the collector has stored a report durably.
    pub(crate) fn acknowledge(&self, id: u64) {
        self.lock().acknowledged.insert(id);
    }

    pub(crate) fn is_acknowledged(&self, id: u64) -> bool {
        self.lock().acknowledged.contains(&id)
    }

    /// Returns true if the collector has all reports up to the end of the attempt.
    pub(crate) fn all_reported(&self) -> bool {
        let entries = self.entries();
        let state = self.lock();
        entries.iter().any(|entry| entry.report.is_end())
            && !state.followed
            && entries
                .iter()
                .chain(state.checkpoints.iter().flat_map(ReportedCheckpoints::parts))
                .all(|entry| state.acknowledged.contains(&entry.id))
    }

    /// Returns the newest checkpoint report, as read from disk.
    pub(crate) fn reported_checkpoints(&self) -> Option<CheckpointReport> {
        let state = self.lock();
        state
            .checkpoints
            .as_ref()
            .map(|reported| reported.report().clone())
    }

    /// Returns the parts of the newest checkpoint report, if its last part has an id greater than `id`: ids only increase.
    pub(crate) fn checkpoints_after(&self, id: u64) -> Option<Vec<Entry>> {
        let state = self.lock();
        let reported = state.checkpoints.as_ref()?;
        (reported.last_id() > id).then(|| reported.parts().to_vec())
    }

    /// Replaces the checkpoint report: only the newest one counts.
    pub(crate) fn set_checkpoint_report(&self, report: CheckpointReport) -> io::Result<()> {
        let mut state = self.lock();
        let reported = ReportedCheckpoints::after(state.checkpoints.as_ref(), now_ms(), report);
        reported.note(&self.folder)?;
        state.checkpoints = Some(reported);
        Ok(())
    }

    /// Stores a removal order in the folder until it is executed. Meanwhile other orders are not answered: the collector keeps them and sends
    /// them again, so none replaces another one.
    fn accept_removal(&self, id: u64, order: RemovalOrder) -> Option<Entry> {
        if let Some(before) = self.answer_to(id) {
            return Some(before);
        }
        let mut state = self.lock();
        if !state.followed {
            // The collector sends the order again. By then the attempt is forgotten, and is adopted again.
            return None;
        }
        // The next order replaces one that cannot be read.
        if self.has_readable_removal() {
            tracing::info!(run = %self.run, "an order to remove checkpoints waits: an earlier one is not finished");
            return None;
        }
        let accepted = AcceptedRemoval::new(order, ClockReading::now());
        let noted = self.folder.write_json(files::REMOVAL, &accepted);
        let entry = noted.and_then(|()| state.reports.add(now_ms(), NodeReport::Accepted { command: id }));
        entry
            .inspect_err(|error| tracing::error!(run = %self.run, %error, "an order cannot be stored and waits; is the disk full?"))
            .ok()
    }

    /// Handles an order of an older collector, which does not check who wrote the files to remove. Refusing a command ends the attempt for
    /// the collector. So while the attempt continues, the command is accepted, nothing is done, and the next checkpoint report contains the
    /// reason.
    fn refuse_old_order(&self, id: u64) -> Option<Entry> {
        if let Some(before) = self.answer_to(id) {
            return Some(before);
        }
        tracing::warn!(run = %self.run, "{OLD_ORDER}");
        let begun = self.folder.has(files::PREPARE) || self.folder.has(files::START);
        if begun && !self.entries().iter().any(|entry| entry.report.is_end()) {
            self.lock().old_order_refused = true;
            return self.add(NodeReport::Accepted { command: id }).ok();
        }
        self.refuse(id, OLD_ORDER)
    }

    /// Returns true if an order of an older collector was refused.
    pub(crate) fn old_order_refused(&self) -> bool {
        self.lock().old_order_refused
    }

    /// Records that the follower ends. Returns false if an order has arrived in the meantime. For an order that cannot be read, nothing is left
    /// to do.
    fn release_if_idle(&self) -> bool {
        let mut state = self.lock();
        state.followed = self.has_readable_removal();
        !state.followed
    }

    fn has_readable_removal(&self) -> bool {
        AcceptedRemoval::read(&self.folder).is_ok_and(|accepted| accepted.is_some())
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let read = |name: FileName| {
            read_from(&self.folder.file(name), 0)
                .map(|(entries, _)| entries)
                .unwrap_or_default()
        };
        let mut entries = read(files::AGENT_REPORTS);
        entries.extend(read(files::SHIM_REPORTS));
        entries
    }

    pub(in crate::launch) fn accept(&self, id: u64, command: NodeCommand) -> Option<Entry> {
        let command = match command {
            NodeCommand::Remove(order) => return self.accept_removal(id, order),
            NodeCommand::Checkpoints(_) => return self.refuse_old_order(id),
            command => command,
        };
        if let Some(before) = self.answer_to(id) {
            return Some(before);
        }
        if self.folder.is_watched() || self.entries().iter().any(|entry| entry.report.is_end()) {
            // Lockstep must not stop this attempt, or it is already over.
            return self.add(NodeReport::Accepted { command: id }).ok();
        }
        // Store the command only if the queue has space; otherwise the collector sends it again.
        let place = self.commands.try_reserve().ok()?;
        let noted = match &command {
            NodeCommand::Prepare { spec, .. } => self
                .folder
                .write_json(files::PREPARE_REQUEST, &self.prepare_request(&command))
                .and_then(|()| self.folder.write_json(files::PREPARE, spec)),
            NodeCommand::LookFor { path } => self.folder.write_json(files::LOOK, path),
            NodeCommand::Measure(measure) => self.folder.write_json(files::MEASURE, measure),
            NodeCommand::Start(start) => self.note_start(start),
            NodeCommand::Stop { grace_ms } => self.note_stop(*grace_ms),
            NodeCommand::StopAfter { step, grace_ms } => self.note_stop_after(*step, *grace_ms),
            NodeCommand::TurnLive { live, set } => self.note_live(id, *live, set),
            NodeCommand::Remove(_) | NodeCommand::Checkpoints(_) => return None,
        };
        let entry = noted.and_then(|()| self.add(NodeReport::Accepted { command: id }));
        match entry {
            Ok(entry) => {
                place.send(command);
                Some(entry)
            }
            Err(error) => {
                tracing::error!(run = %self.run, %error, "a command cannot be stored and waits; is the disk full?");
                None
            }
        }
    }

    pub(super) fn refuse(&self, id: u64, reason: &str) -> Option<Entry> {
        let before = self.answer_to(id);
        before.or_else(|| {
            self.add(NodeReport::Refused {
                command: id,
                reason: reason.to_owned(),
            })
            .ok()
        })
    }

    fn answer_to(&self, id: u64) -> Option<Entry> {
        let answers = |entry: &Entry| match &entry.report {
            NodeReport::Accepted { command } | NodeReport::Refused { command, .. } => *command == id,
            _ => false,
        };
        self.entries().into_iter().find(answers)
    }

    /// Returns the parts of a preparation request that are not in the spec.
    fn prepare_request(&self, command: &NodeCommand) -> PrepareRequest {
        let NodeCommand::Prepare {
            node_rank,
            nnodes,
            resume_from,
            ..
        } = command
        else {
            return PrepareRequest::default();
        };
        PrepareRequest {
            node_rank: *node_rank,
            nnodes: *nnodes,
            resume_from: resume_from.clone(),
            mark: format!("{}.{}-{node_rank}", self.run, self.number),
            folder: self.folder.path().to_owned(),
        }
    }

    /// The secrets are stored separately from everything else.
    fn note_start(&self, start: &Start) -> io::Result<()> {
        Secrets::note(&self.folder, &start.secrets)?;
        self.folder.write_json(files::START, &start.without_secrets())
    }

    /// The shortest grace period that was ever requested applies.
    fn note_stop(&self, grace_ms: u64) -> io::Result<()> {
        let before = std::fs::read_to_string(self.folder.file(files::STOP))
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let grace_ms = before.map_or(grace_ms, |before: u64| before.min(grace_ms));
        self.folder.write(files::STOP, grace_ms.to_string().as_bytes())
    }

    /// The first order stays valid: ranks may have read it.
    fn note_stop_after(&self, step: u64, grace_ms: u64) -> io::Result<()> {
        if self.folder.has(files::STOP_AFTER) {
            return Ok(());
        }
        self.folder
            .write_json(files::STOP_AFTER, &StopOrder { step, grace_ms })
    }

    /// The newest order stays valid; an older order that arrives later is ignored.
    fn note_live(&self, order: u64, live: u32, set: &BTreeMap<String, Option<String>>) -> io::Result<()> {
        let before = self.folder.read::<LiveOrder>(files::KNOBS_LIVE);
        if before.is_ok_and(|before| before.order > order) {
            return Ok(());
        }
        let set = set.clone();
        self.folder
            .write_json(files::KNOBS_LIVE, &LiveOrder { order, live, set })
    }

    fn add(&self, report: NodeReport) -> io::Result<Entry> {
        self.lock().reports.add(now_ms(), report)
    }

    /// Adds a report that must not be lost. If the disk is full, it tries again until the report is written.
    pub(super) async fn report(&self, report: NodeReport) {
        while let Err(error) = self.add(report.clone()) {
            tracing::error!(run = %self.run, %error, "a report cannot be written; is the disk full? Trying again");
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
