//! Checkpoints of runs: the list, pins, pruning, and their lines in the event log.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::api::checkpoints::{CheckpointList, PruneAnswer, PruneCheckpoints, PruneLine};
use domain::event::{Event as LogLine, Severity};
use domain::ident::RunId;
use domain::run::checkpoint::{Checkpoint, CheckpointOnNode};
use domain::run::state::{Event, Machine};
use domain::time::TimestampMs;

use super::Runs;
use super::error::RunError;
use crate::clock;

impl Runs {
    /// Returns the checkpoints of a run, with how many steps each is behind the last step.
    ///
    /// # Errors
    /// Returns an error if the run is unknown or the store fails.
    pub async fn checkpoints(self: &Arc<Self>, run: &RunId) -> Result<CheckpointList, RunError> {
        let mut machine = self.with_pins(run).await?;
        // A run that has ended gets no tick otherwise.
        if machine.has_overdue_removal(clock::now_ms()) {
            self.take(run, Event::Tick).await?;
            machine = self.machine(run).await?;
        }
        let view = self.view(run).await?;
        let attempts = view.attempts.iter();
        let ranks = attempts
            .clone()
            .flat_map(|attempt| &attempt.nodes)
            .flat_map(|node| &node.ranks);
        let of_ranks = ranks.filter_map(|rank| rank.step);
        let last_step = attempts
            .filter_map(|attempt| attempt.last_step)
            .chain(of_ranks)
            .max();
        Ok(machine.checkpoint_list(last_step))
    }

    /// Decides which checkpoints are removed, and sends the request to the nodes unless it is a dry run. Only those that the request names
    /// are removed, also if the run changes in the meantime. The audit log says what `who` ordered, or that the request was refused.
    ///
    /// # Errors
    /// Returns an error if others than those that the request names would be removed, the run is unknown, or the store fails.
    pub async fn prune(
        self: &Arc<Self>,
        run: &RunId,
        request: &PruneCheckpoints,
        who: &str,
    ) -> Result<PruneAnswer, RunError> {
        let machine = self.with_pins(run).await?;
        let answer = machine.prune_answer(request.keep_last);
        if request.dry_run {
            return Ok(answer);
        }
        if PruneLine::paths(&answer.removed) != request.removes {
            self.audit_prune(who, run, request, LIST_CHANGED).await?;
            return Err(RunError::RemovalChanged(answer.removed));
        }
        let ordered = match request.removes.len() {
            0 => "nothing to remove".to_owned(),
            count => format!("ordered {count}: {}", listed(request.removes.iter())),
        };
        self.audit_prune(who, run, request, &ordered).await?;
        let event = Event::PruneRequested {
            keep_last: request.keep_last,
            seen: request.removes.clone(),
        };
        let taken = self.take(run, event).await;
        let exception = match &taken {
            Ok(()) => {
                let machine = self.machine(run).await.ok();
                machine.and_then(|machine| not_ordered(&machine, &request.removes))
            }
            // A transaction that failed may be stored nevertheless.
            Err(error) => Some(format!("not confirmed: {error}")),
        };
        // The order stands, whether or not its exceptions can be recorded.
        if let Some(exception) = exception
            && let Err(error) = self.audit_prune(who, run, request, &exception).await
        {
            tracing::error!(%run, %error, "the result of a prune cannot be recorded");
        }
        taken?;
        Ok(answer)
    }

    async fn audit_prune(
        &self,
        who: &str,
        run: &RunId,
        request: &PruneCheckpoints,
        result: &str,
    ) -> Result<(), RunError> {
        let rule = request
            .keep_last
            .map_or_else(String::new, |last| format!(" keep_last={last}"));
        let target = format!("{run}{rule} {result}");
        self.parts.events.audit(who, "checkpoint_prune", &target).await?;
        Ok(())
    }

    /// Returns a run with up-to-date information on which of its checkpoints other runs have pinned.
    pub(super) async fn with_pins(self: &Arc<Self>, run: &RunId) -> Result<Arc<Machine>, RunError> {
        let machine = self.machine(run).await?;
        let paths = self.pinned_by_others(&machine, BTreeSet::new()).await?;
        if paths == machine.storage.pinned_by_others {
            return Ok(machine);
        }
        self.take(run, Event::PinnedByOthers { paths }).await?;
        self.machine(run).await
    }

    /// Returns which of the run's checkpoints, and of those that are being reported, other runs have pinned, or resumed from and not ended.
    /// The node that removes a checkpoint knows only the attempts that it holds itself.
    pub(super) async fn pinned_by_others(
        &self,
        machine: &Machine,
        reported: BTreeSet<String>,
    ) -> Result<BTreeSet<String>, RunError> {
        let known = machine.checkpoints.iter().map(|one| one.path.as_str());
        let paths: BTreeSet<&str> = known.chain(reported.iter().map(String::as_str)).collect();
        let mut pinned = self.parts.state.pinned_by_others(&machine.id, &paths).await?;
        // Until its first own checkpoint, another run that fails resumes from it again.
        let unfinished = self.owners.unfinished();
        let others = unfinished.iter().filter(|other| other.id != machine.id);
        let in_use = others.flat_map(|other| other.checkpoints_in_use());
        pinned.extend(in_use.filter(|path| paths.contains(path.as_str())));
        Ok(pinned)
    }
}

/// Result in the audit log of a removal whose list a person has not seen.
pub(crate) const LIST_CHANGED: &str = "refused: the list of the checkpoints to remove has changed";
/// Maximum number of checkpoints that one line of the audit log names. The run's state contains all of its last prunes.
const AUDITED_MAX: usize = 64;

/// Returns which of these checkpoints a prune has not ordered to remove, or not from every storage, with the reasons.
fn not_ordered(machine: &Machine, paths: &BTreeSet<String>) -> Option<String> {
    let requested = machine.checkpoints.iter().filter(|one| paths.contains(&one.path));
    let kept = requested.filter_map(|one| Some(format!("{}: {}", one.path, one.not_removed()?)));
    let kept: Vec<String> = kept.collect();
    (!kept.is_empty()).then(|| format!("not removed: {}", listed(kept.iter())))
}

fn listed<'t>(texts: impl ExactSizeIterator<Item = &'t String>) -> String {
    let more = match texts.len().saturating_sub(AUDITED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<&str> = texts.take(AUDITED_MAX).map(String::as_str).collect();
    format!("{}{more}", named.join(", "))
}

/// Lines for the event log: a save that failed or stayed incomplete, a checkpoint that is complete, one that is gone, one that was not
/// removed.
pub(super) fn news(before: &Machine, after: &Machine, now_ms: TimestampMs) -> Vec<LogLine> {
    if before.checkpoints == after.checkpoints && before.storage == after.storage {
        return Vec::new();
    }
    let line = |severity, kind: &str, message| LogLine {
        run: Some(after.id.to_string()),
        ..LogLine::new(now_ms, severity, kind, message)
    };
    let mut lines = Vec::new();
    for (node, storage) in &after.storage.nodes {
        let known = before
            .storage
            .nodes
            .get(node)
            .and_then(|before| before.failure.as_ref());
        if let Some(failure) = storage.failure.as_ref().filter(|failure| Some(*failure) != known) {
            let message = format!("saving {} failed on {node}: {}", failure.path, failure.error);
            let mut line = line(Severity::Critical, "checkpoint_failed", message);
            line.node = Some(node.clone());
            lines.push(line);
        }
    }
    let was = |path: &str| before.checkpoints.iter().find(|one| one.path == path);
    for now in &after.checkpoints {
        if let Some((node, reason)) = newly_not_removed(was(&now.path), now) {
            let message = format!("{} was not removed: {reason}", now.path);
            let mut line = line(Severity::Warning, "checkpoint_not_removed", message);
            line.node = Some(node);
            lines.push(line);
        }
    }
    for now in &after.checkpoints {
        let known = was(&now.path);
        let is_torn = |one: &Checkpoint| !one.complete && !one.writing && !one.uncertain;
        if now.complete && known.is_none_or(|known| !known.complete) {
            let message = format!("{} is complete, {} bytes", now.path, now.bytes);
            lines.push(line(Severity::Info, "checkpoint", message));
        } else if is_torn(now) && known.is_none_or(|known| !is_torn(known)) {
            let why = now.problem.as_deref().unwrap_or("something is missing");
            let message = format!("{} is incomplete: {why}", now.path);
            lines.push(line(Severity::Warning, "checkpoint_incomplete", message));
        }
    }
    let gone = before
        .checkpoints
        .iter()
        .filter(|known| after.checkpoints.iter().all(|now| now.path != known.path));
    for known in gone {
        let how = if known.prune_told_ms.is_some() {
            "removed, because nothing keeps it"
        } else {
            "gone"
        };
        let message = format!("{} is {how}", known.path);
        lines.push(line(Severity::Info, "checkpoint_gone", message));
    }
    lines.truncate(LINES_MAX);
    lines
}

/// Returns why a checkpoint was not removed, and a node to which the reason applies, unless the reason is known.
fn newly_not_removed(before: Option<&Checkpoint>, now: &Checkpoint) -> Option<(String, String)> {
    let of_node = |node: &str| before?.seen.get(node)?.not_removed.as_ref();
    let is_new = |(node, view): &(&String, &CheckpointOnNode)| {
        view.not_removed.is_some() && view.not_removed.as_ref() != of_node(node.as_str())
    };
    let (node, _) = now.seen.iter().find(is_new)?;
    Some((node.clone(), now.not_removed()?))
}

/// Maximum number of lines per change. A folder that is seen for the first time may contain hundreds of checkpoints; the list shows all of
/// them.
const LINES_MAX: usize = 8;
