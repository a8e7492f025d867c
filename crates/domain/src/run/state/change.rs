//! Attempts with changed knobs, and their revert.
//!
//! ```text
//!                       ┌ its ranks can change it in place ─────▶ [`in_place`](super::in_place)
//!                       ├ it runs ──▶ pending; the attempt is told to stop ──all Ended──┐
//!  KnobsChanged ─ diff ─┼ it waits for its restart ─────────────────────────────────────┼──▶ begin: a new attempt, from the last
//!                       └ it has ended ─────────────────────────────────────────────────┘    complete checkpoint, else from the start
//!  KnobsJudged ──▶ the change of that attempt has its verdict
//! ```
//! A requested change counts as requested by a person: it uses up no restart, and earlier failures do not count against the new attempt. A
//! request for the current values, or for a change that is already in progress, is a no-op. So is a request while a stop waits for its stop
//! point.

use std::collections::BTreeMap;

use crate::ident::{AttemptNo, NodeName};
use crate::run::knob::{
    ANSWERS_MAX, Change, ChangeId, KnobAnswer, KnobDiff, Pending, Verdict, apply_change, current, known,
    place,
};
use crate::run::state::attempt::{AttemptKnobs, Placement};
use crate::run::state::fault::Exclusion;
use crate::run::state::follow_up::AttemptStart;
use crate::run::state::machine::{DesiredState, Machine};
use crate::run::state::policy;
use crate::run::state::stop::StopPoint;
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome};

/// A request to change knobs, to revert a change, or to restart.
#[derive(Debug, Clone, PartialEq)]
pub enum KnobRequest {
    /// Set knobs.
    Apply {
        /// The knobs with their new values.
        set: BTreeMap<String, String>,
        /// Revert the change automatically if the verdict is against it; `None` for the value in the spec.
        auto_revert: Option<bool>,
        /// Start from the beginning, without a checkpoint.
        from_start: bool,
        /// Make a new attempt even if the ranks could change the knobs in place.
        restart: bool,
        /// Try a doubled `micro_batch` automatically once the change is kept; `None` for the value in the spec.
        try_larger_batch: Option<bool>,
        /// The change is that trial; this is the attempt whose change it follows.
        follows: Option<AttemptNo>,
    },
    /// Revert the last change that was not reverted yet.
    Revert {
        /// The attempt that made the change, if it must be this one.
        attempt: Option<AttemptNo>,
        /// Number of the change in place within that attempt, if it is one.
        live: Option<u32>,
        /// The reason, if no person requested it.
        reason: Option<String>,
        /// Start from the beginning, without a checkpoint.
        from_start: bool,
        /// Make a new attempt even if the ranks could revert the change in place.
        restart: bool,
    },
    /// Restart a running run as a new attempt with the same knobs.
    Restart {
        /// Nodes of the current attempt that a person excludes from the run.
        without: Vec<NodeName>,
    },
}

impl KnobRequest {
    /// Returns the request to set one knob. The change is reverted automatically if the verdict is against it.
    #[must_use]
    pub fn set(knob: &str, value: String, follows: Option<AttemptNo>) -> Self {
        Self::Apply {
            set: BTreeMap::from([(knob.to_owned(), value)]),
            auto_revert: Some(true),
            from_start: false,
            restart: false,
            try_larger_batch: None,
            follows,
        }
    }

    /// Returns the request to revert a change. `reason` is given if no person requested it.
    #[must_use]
    pub fn revert(id: ChangeId, reason: Option<String>) -> Self {
        Self::Revert {
            attempt: Some(id.attempt),
            live: (id.live > 0).then_some(id.live),
            reason,
            from_start: false,
            restart: false,
        }
    }
}

/// Why a request to change knobs is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotChange {
    /// A knob or its value is invalid.
    #[error("{message}")]
    Knob {
        /// Name of the knob.
        knob: String,
        /// What is wrong, and what to do instead.
        message: String,
    },
    /// The state of the run does not allow a change now.
    #[error("{0}")]
    Now(String),
}

impl Machine {
    /// Returns the change that a request leads to; `None` if its values are already set or it is already in progress.
    ///
    /// # Errors
    /// Returns an error if a knob cannot be set to this value, or if nothing can be changed now.
    pub fn change_for(&self, request: &KnobRequest) -> Result<Option<Pending>, CannotChange> {
        let pending = match request {
            KnobRequest::Restart { without } => Some(self.restart(without)?),
            KnobRequest::Apply {
                set,
                auto_revert,
                from_start,
                try_larger_batch,
                follows,
                ..
            } => {
                let set = canonical(set)?;
                let Some(change) = self.diff_of(&set)? else {
                    return Ok(None);
                };
                let auto_revert = auto_revert
                    .or(self.spec.auto_revert)
                    .unwrap_or_else(|| set.keys().any(|name| saves_memory(name)));
                let change = Change {
                    auto_revert,
                    try_larger_batch: self.tries_larger_batch(&change, *try_larger_batch)?,
                    follows: *follows,
                    ..change
                };
                Some(self.pending_of(change, *from_start))
            }
            KnobRequest::Revert {
                attempt,
                live,
                reason,
                from_start,
                ..
            } => {
                let asked = attempt.map(|attempt| ChangeId {
                    attempt,
                    live: live.unwrap_or(0),
                });
                self.inverse(asked)?.map(|change| {
                    let reason = reason.clone();
                    self.pending_of(Change { reason, ..change }, *from_start)
                })
            }
        };
        match (pending, &self.pending) {
            (None, _) => Ok(None),
            (Some(requested), Some(waiting)) if requested.knobs == waiting.knobs => Ok(None),
            (Some(_), Some(waiting)) => Err(CannotChange::Now(format!(
                "{} is being applied; wait until its attempt runs",
                waiting.change.words()
            ))),
            (Some(requested), None) => match self.cannot_change() {
                Some(why) => Err(CannotChange::Now(why)),
                None => Ok(Some(requested)),
            },
        }
    }

    fn restart(&self, without: &[NodeName]) -> Result<Pending, CannotChange> {
        if self.state.is_final() {
            return Err(CannotChange::Now(format!(
                "run {} has ended: resume it instead",
                self.id
            )));
        }
        let nodes = &self.current().nodes;
        if let Some(node) = without
            .iter()
            .find(|node| nodes.iter().all(|task| task.node != **node))
        {
            return Err(CannotChange::Now(format!(
                "node {node} has no task in attempt {} of run {}",
                self.current().no,
                self.id
            )));
        }
        let change = Change {
            restart: true,
            without: without.iter().map(ToString::to_string).collect(),
            ..Change::default()
        };
        Ok(self.pending_of(change, false))
    }

    /// Returns the change that must be reverted because of its verdict, if the run is active and the change was not reverted yet. Considers
    /// the last change that made an attempt and the last change in place, so that neither blocks the other.
    #[must_use]
    pub fn change_to_revert(&self) -> Option<(ChangeId, String)> {
        if self.pending.is_some() || !self.trains() || self.cannot_change().is_some() {
            return None;
        }
        let in_place = self.standing().filter(|(id, _)| id.live > 0).last();
        let due = |(id, change): (ChangeId, &Change)| {
            let against = change.verdict.as_ref().filter(|it| it.decision.is_against())?;
            let can = || matches!(self.inverse(Some(id)), Ok(Some(_)));
            let due = change.auto_revert && !self.refused_to_revert(id) && can();
            due.then(|| (id, against.summary.clone()))
        };
        let candidates = in_place.into_iter().chain(self.last_by_attempt());
        candidates.filter_map(due).max_by_key(|(id, _)| *id)
    }

    /// Returns true if ranks of the current attempt refused an automatic revert of this change in place: they would refuse again.
    fn refused_to_revert(&self, id: ChangeId) -> bool {
        let mut live = self.current().knobs.live.iter();
        live.any(|live| {
            !live.is_made() && live.change.reason.is_some() && live.change.reverted_change() == Some(id)
        })
    }

    /// Returns the last change that was not reverted.
    #[must_use]
    pub fn last_change(&self) -> Option<(ChangeId, &Change)> {
        self.standing().last()
    }

    /// Returns the last change that was not reverted and made a new attempt.
    pub(super) fn last_by_attempt(&self) -> Option<(ChangeId, &Change)> {
        self.standing().filter(|(id, _)| id.live == 0).last()
    }

    /// Returns the changes that were not reverted, in order.
    fn standing(&self) -> impl Iterator<Item = (ChangeId, &Change)> {
        let reverted: Vec<ChangeId> = self
            .changes()
            .filter_map(|(_, change)| change.reverted_change())
            .collect();
        self.changes()
            .filter(move |(id, change)| change.reverts.is_none() && !change.restart && !reverted.contains(id))
    }

    /// Returns the changes that can be reverted now, in order.
    #[must_use]
    pub fn revertible_changes(&self) -> Vec<ChangeId> {
        let can = |(id, _): &(ChangeId, &Change)| {
            let request = KnobRequest::revert(*id, None);
            matches!(self.change_for(&request), Ok(Some(_)))
        };
        self.standing().filter(can).map(|(id, _)| id).collect()
    }

    /// Returns all changes that were made, in order.
    pub(super) fn changes(&self) -> impl Iterator<Item = (ChangeId, &Change)> {
        self.attempts.iter().flat_map(|attempt| {
            let own = attempt.knobs.change.as_deref().map(|change| (0, change));
            let live = attempt.knobs.live.iter().filter(|live| live.is_made());
            let live = live.map(|live| (live.no, &live.change));
            let attempt = attempt.no;
            own.into_iter()
                .chain(live)
                .map(move |(live, change)| (ChangeId { attempt, live }, change))
        })
    }

    pub(super) fn cannot_change(&self) -> Option<String> {
        if self.watched {
            return Some(
                "the run is only watched: start its command again with the change, or submit it to Lockstep"
                    .into(),
            );
        }
        let stops = self.desired != DesiredState::Run || self.stop_plan().is_some();
        (!self.state.is_final() && stops)
            .then(|| "the run is being stopped; resume it with the change when it has ended".into())
    }

    /// Returns what setting these knobs would change; `None` if they all have these values already.
    fn diff_of(&self, set: &BTreeMap<String, String>) -> Result<Option<Change>, CannotChange> {
        let knobs = &self.current().knobs.values;
        let mut change = Change::default();
        for (name, new) in set {
            let how = place(&self.spec, name).map_err(|message| refused(name, message))?;
            let old = current(&self.spec, knobs, name);
            if old.as_ref() == Some(new) {
                continue;
            }
            let warning = known(name).ok().and_then(|knob| knob.values.warning(new));
            change
                .warnings
                .extend(warning.map(|words| format!("{name}={new}: {words}")));
            change.set.push(KnobDiff {
                knob: name.clone(),
                old,
                new: Some(new.clone()),
                how,
            });
        }
        Ok((!change.set.is_empty()).then_some(change))
    }

    fn inverse(&self, asked: Option<ChangeId>) -> Result<Option<Change>, CannotChange> {
        let waiting = self
            .pending
            .as_ref()
            .and_then(|waiting| waiting.change.reverted_change());
        let reverted = |id: ChangeId| {
            self.changes()
                .any(|(_, change)| change.reverted_change() == Some(id))
        };
        match asked {
            Some(id) if reverted(id) || waiting == Some(id) => return Ok(None),
            None if waiting.is_some() => return Ok(None),
            _ => {}
        }
        let (id, change) = self.revertible_change(asked)?;
        let inverse = |diff: &KnobDiff| KnobDiff {
            knob: diff.knob.clone(),
            old: diff.new.clone(),
            new: diff.old.clone(),
            how: diff.how.clone(),
        };
        Ok(Some(Change {
            set: change.set.iter().map(inverse).collect(),
            reverts: Some(id.attempt),
            reverts_live: (id.live > 0).then_some(id.live),
            ..Change::default()
        }))
    }

    /// Returns the requested change, otherwise the last one. It need not be the last, but no later change may have set the same knobs.
    fn revertible_change(&self, asked: Option<ChangeId>) -> Result<(ChangeId, &Change), CannotChange> {
        let standing: Vec<(ChangeId, &Change)> = self.standing().collect();
        let Some((last, _)) = standing.last() else {
            let why = "there is no knob change to revert; `lockstep run apply` makes one";
            return Err(CannotChange::Now(why.into()));
        };
        let wanted = asked.unwrap_or(*last);
        let Some(at) = standing.iter().position(|(id, _)| *id == wanted) else {
            let why = format!(
                "{wanted} made no change that can be reverted; the last such change was made by {last}"
            );
            return Err(CannotChange::Now(why));
        };
        let change = standing[at].1;
        let same = |(_, later): &&(ChangeId, &Change)| change.set.iter().any(|diff| later.sets(&diff.knob));
        if let Some((later, _)) = standing[at + 1..].iter().rfind(same) {
            let why = format!("{later} changed the same knob again; revert that change first");
            return Err(CannotChange::Now(why));
        }
        Ok((wanted, change))
    }

    fn pending_of(&self, change: Change, from_start: bool) -> Pending {
        let mut knobs = self.current().knobs.values.clone();
        apply_change(&mut knobs, &change);
        Pending {
            change,
            knobs,
            from_start,
        }
    }

    pub(super) fn knobs_judged(&mut self, id: ChangeId, verdict: &Verdict) {
        if let Some(change) = self.change_mut(id) {
            change.verdict = Some(verdict.clone());
        }
    }

    pub(super) fn change_mut(&mut self, id: ChangeId) -> Option<&mut Change> {
        let made = self.attempts.iter_mut().find(|made| made.no == id.attempt)?;
        if id.live == 0 {
            return made.knobs.change.as_deref_mut();
        }
        let live = made.knobs.live.iter_mut().find(|live| live.no == id.live);
        live.map(|live| &mut live.change)
    }
}

// === what happens ===

impl Transition<'_> {
    pub(super) fn knobs_changed(&mut self, request: &KnobRequest, grace_ms: u64, after: Option<StopPoint>) {
        let run = &mut *self.run;
        let Ok(Some(pending)) = run.change_for(request) else {
            return;
        };
        if run.can_change_in_place(request, &pending.change) {
            return self.request_in_place_change(pending.change);
        }
        run.abandon_in_place_change(self.now_ms);
        run.pending = Some(Box::new(pending));
        if run.current().ended_ms.is_some() {
            return self.begin_pending();
        }
        match after {
            Some(point @ StopPoint::Step(_)) if run.trains() && !run.is_stopping() => {
                self.plan_stop(point, grace_ms);
            }
            _ => run.desired = run.desired.or_stop(grace_ms),
        }
    }

    /// Begins the next attempt if a change waits for the end of this one, unless the training ended successfully. Returns the outcome if no
    /// attempt follows.
    pub(super) fn followed_by_change(&mut self, outcome: Outcome) -> Option<Outcome> {
        let run = &mut *self.run;
        if run.unknown_attempt.is_some() {
            run.pending = None;
            return Some(outcome);
        }
        run.revert_failed_trial(&outcome);
        let Some(pending) = &run.pending else {
            return Some(outcome);
        };
        let pending_words = pending.change.words();
        let words = match pending.change.restart {
            true => format!("for {pending_words}"),
            false => format!("to apply {pending_words}"),
        };
        if outcome.cause == Cause::Succeeded {
            run.pending = None;
            let message = format!("{}, before {pending_words} could be applied", outcome.message).into();
            return Some(Outcome { message, ..outcome });
        }
        let message = match (&outcome.cause, run.when_stopped()) {
            (Cause::Stopped, Some(when)) => format!("ended {words}, {when}").into(),
            (Cause::Stopped, None) => format!("ended {words}").into(),
            _ => outcome.message,
        };
        run.end_attempt(Outcome { message, ..outcome }, self.now_ms);
        self.begin_pending();
        None
    }

    fn begin_pending(&mut self) {
        let run = &mut *self.run;
        let Some(mut pending) = run.pending.take() else {
            return;
        };
        pending.change.repairs = run.repaired_by(&pending.change);
        // A person who resumes a run has checked its nodes. While a run continues, only the run itself knows which nodes made it fail.
        let mut excluded = if run.state.is_final() {
            Vec::new()
        } else {
            policy::exclusions(run.current())
        };
        let without = pending.change.without.iter();
        for node in without.filter_map(|node| NodeName::new(node.clone()).ok()) {
            excluded.retain(|exclusion| exclusion.node != node);
            excluded.push(Exclusion::by_person(&node));
        }
        let chosen = run.attempts.iter().rfind(|attempt| attempt.requested_by_user);
        let placement = Placement {
            excluded,
            resumed_from: if pending.from_start {
                None
            } else {
                run.resume_point()
            },
            start_chosen_by_user: pending.from_start
                || chosen.is_some_and(|attempt| attempt.placement.start_chosen_by_user),
            ..Placement::default()
        };
        run.queue_again();
        self.begin_attempt(AttemptStart::requested(pending.change.cause(), placement));
        let knobs = &mut self.run.current_mut().knobs;
        knobs.values = pending.knobs;
        knobs.change = Some(Box::new(pending.change));
    }
}

impl AttemptKnobs {
    /// Stores an answer once per knob and outcome, because all ranks report the same.
    pub(super) fn note_answer(&mut self, answer: &KnobAnswer) {
        let same = |known: &KnobAnswer| {
            (&known.knob, known.applied, &known.detail) == (&answer.knob, answer.applied, &answer.detail)
        };
        if self.answers.len() < ANSWERS_MAX && !self.answers.iter().any(same) {
            self.answers.push(answer.clone());
        }
    }
}

fn saves_memory(name: &str) -> bool {
    known(name).is_ok_and(|knob| knob.memory_saver_off.is_some())
}

fn canonical(set: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, CannotChange> {
    if set.is_empty() {
        return Err(refused("set", "name at least one knob with its value".into()));
    }
    let parse = |(name, value): (&String, &String)| {
        let parsed = known(name).and_then(|knob| {
            let value = knob.values.parse(value);
            value.map_err(|message| format!("{name}: {message} ({})", knob.what))
        });
        match parsed {
            Ok(value) => Ok((name.clone(), value)),
            Err(message) => Err(refused(name, message)),
        }
    };
    set.iter().map(parse).collect()
}

pub(super) fn refused(knob: &str, message: String) -> CannotChange {
    CannotChange::Knob {
        knob: knob.to_owned(),
        message,
    }
}
