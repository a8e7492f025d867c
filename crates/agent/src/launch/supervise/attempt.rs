//! One attempt on this node: its commands, its reports, its folder. `follower` is the task that looks after it.
//!
//! ```text
//! Prepare ──▶ prepare.json ──▶ Prepared │ PrepareFailed
//! LookFor ──▶ look.json    ──▶ Looked
//! Measure ──▶ measure.json ──▶ Measured
//! Start   ──▶ launch.json  ──▶ shim … its reports
//! Stop    ──▶ stop         ──▶ the shim's Ended, or our own where no shim ever was
//! StopAfter ▶ stop.after   ──▶ StopStep of each rank that comes to the step, then the shim's Ended
//! TurnLive ▶ knobs.live    ──▶ KnobAnswered of each rank
//! shim gone without Ended  ──▶ burial: what it left is killed, Ended as far as it is known
//! ```

mod follower;
mod inside;
mod reported;
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

use crate::launch::checkpoint::OLD_ORDER;
use crate::launch::preflight::asked::Asked;
use crate::uplink::link::now_ms;

use reported::ReportedCheckpoints;

/// Between two tries to write a report on a full disk.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Commands that wait for their turn; an attempt gets three or four in its life.
const COMMANDS_MAX: usize = 16;

/// One attempt, as all parts of the agent see it.
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
    /// A follower looks after it; without one nobody carries orders out.
    followed: bool,
    /// An order of an older collector came, and was not carried out.
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

    /// The place in the world of this node's first rank; 0 before the start.
    pub(crate) fn first_rank(&self) -> u32 {
        self.folder
            .read::<Launch>(files::LAUNCH)
            .map_or(0, |launch| launch.first_rank)
    }

    /// Notes that the collector has a report for good.
    pub(crate) fn acknowledge(&self, id: u64) {
        self.lock().acknowledged.insert(id);
    }

    pub(crate) fn is_acknowledged(&self, id: u64) -> bool {
        self.lock().acknowledged.contains(&id)
    }

    /// Whether the collector has everything up to the end of the attempt.
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

    /// The newest report of checkpoints, as it was seen on disk.
    pub(crate) fn reported_checkpoints(&self) -> Option<CheckpointReport> {
        let state = self.lock();
        state
            .checkpoints
            .as_ref()
            .map(|reported| reported.report().clone())
    }

    /// The newest report of checkpoints as it is sent, if its last part has another id than this: ids only grow.
    pub(crate) fn checkpoints_after(&self, id: u64) -> Option<Vec<Entry>> {
        let state = self.lock();
        let reported = state.checkpoints.as_ref()?;
        (reported.last_id() > id).then(|| reported.parts().to_vec())
    }

    /// Puts a report of checkpoints in the place of the one before: only the newest counts.
    pub(crate) fn tell_checkpoints(&self, report: CheckpointReport) -> io::Result<()> {
        let mut state = self.lock();
        let reported = ReportedCheckpoints::after(state.checkpoints.as_ref(), now_ms(), report);
        reported.note(&self.folder)?;
        state.checkpoints = Some(reported);
        Ok(())
    }

    /// An order stands in the folder until it is carried out; a newer one takes its place.
    fn accept_removal(&self, id: u64, order: &RemovalOrder) -> Option<Entry> {
        if let Some(before) = self.answer_to(id) {
            return Some(before);
        }
        let mut state = self.lock();
        if !state.followed {
            // The collector asks again; by then the attempt is forgotten, and is taken up anew.
            return None;
        }
        let noted = self.folder.write_json(files::REMOVAL, order);
        let entry = noted.and_then(|()| state.reports.add(now_ms(), NodeReport::Accepted { command: id }));
        entry
            .inspect_err(|error| tracing::error!(run = %self.run, %error, "an order cannot be noted; is the disk full? It waits"))
            .ok()
    }

    /// An order of an older collector, which does not ask who wrote what it removes. To refuse a command ends the attempt for the collector;
    /// so where the attempt goes on, the command is accepted, nothing is done, and the next report of checkpoints says why.
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

    /// Whether an order of an older collector was refused.
    pub(crate) fn old_order_refused(&self) -> bool {
        self.lock().old_order_refused
    }

    /// Nobody follows it any more; unless an order came meanwhile.
    fn let_go(&self) -> bool {
        let mut state = self.lock();
        state.followed = self.folder.has(files::REMOVAL);
        !state.followed
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
        match &command {
            NodeCommand::Remove(order) => return self.accept_removal(id, order),
            NodeCommand::Checkpoints(_) => return self.refuse_old_order(id),
            _ => {}
        }
        if let Some(before) = self.answer_to(id) {
            return Some(before);
        }
        if self.folder.is_watched() || self.entries().iter().any(|entry| entry.report.is_end()) {
            // Not ours to stop, or late: what was asked for is over.
            return self.add(NodeReport::Accepted { command: id }).ok();
        }
        // Noted only when there is room to carry it out; else the collector sends it again.
        let place = self.commands.try_reserve().ok()?;
        let noted = match &command {
            NodeCommand::Prepare { spec, .. } => self
                .folder
                .write_json(files::ASKED, &self.asked(&command))
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
                tracing::error!(run = %self.run, %error, "a command cannot be noted; is the disk full? It waits");
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

    /// What a preparation asks for beside the spec.
    fn asked(&self, command: &NodeCommand) -> Asked {
        let NodeCommand::Prepare {
            node_rank,
            nnodes,
            resume_from,
            ..
        } = command
        else {
            return Asked::default();
        };
        Asked {
            node_rank: *node_rank,
            nnodes: *nnodes,
            resume_from: resume_from.clone(),
            mark: format!("{}.{}-{node_rank}", self.run, self.number),
            folder: self.folder.path().to_owned(),
        }
    }

    /// The secrets lie apart from all else that is noted.
    fn note_start(&self, start: &Start) -> io::Result<()> {
        Secrets::note(&self.folder, &start.secrets)?;
        self.folder.write_json(files::START, &start.without_secrets())
    }

    /// The shortest grace ever wished stays.
    fn note_stop(&self, grace_ms: u64) -> io::Result<()> {
        let before = std::fs::read_to_string(self.folder.file(files::STOP))
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let grace_ms = before.map_or(grace_ms, |before: u64| before.min(grace_ms));
        self.folder.write(files::STOP, grace_ms.to_string().as_bytes())
    }

    /// The first order stays: ranks may have read it.
    fn note_stop_after(&self, step: u64, grace_ms: u64) -> io::Result<()> {
        if self.folder.has(files::STOP_AFTER) {
            return Ok(());
        }
        self.folder
            .write_json(files::STOP_AFTER, &StopOrder { step, grace_ms })
    }

    /// The newest order stays: one that was sent before it and comes late says nothing any more.
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

    /// Adds a report that must not get lost; a full disk is waited out.
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
