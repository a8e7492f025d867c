//! Attempts with other knobs, and back.
//!
//! ```text
//!                       ┌ its ranks can take it over in place ──▶ [`live`](super::live)
//!                       ├ it runs ──▶ pending; the attempt is told to stop ──all Ended──┐
//!  KnobsChanged ─ diff ─┼ it waits for its restart ─────────────────────────────────────┼──▶ begin: another attempt, from the last
//!                       └ it has ended ─────────────────────────────────────────────────┘    complete checkpoint, else from the start
//!  KnobsJudged ──▶ the change of that attempt has its verdict
//! ```
//! A change asked for counts as asked by a person: it uses up no restart, and whatever had failed before it says nothing of what
//! comes. A wish for what is so already, or is under way, changes nothing; so does one while a stop waits that a person asked for.

use std::collections::BTreeMap;

use crate::ident::{AttemptNo, NodeName};
use crate::run::knob::{
    ANSWERS_MAX, Change, ChangeId, KnobAnswer, KnobDiff, Pending, Verdict, current, known, place, turn,
};
use crate::run::state::attempt::{AttemptKnobs, Placement};
use crate::run::state::fault::Exclusion;
use crate::run::state::machine::{Machine, Wished};
use crate::run::state::policy;
use crate::run::state::settle::Beginning;
use crate::run::state::stop::StopPoint;
use crate::run::state::transition::Transition;
use crate::run::state::{Cause, Outcome};

/// Other knobs.
#[derive(Debug, Clone, PartialEq)]
pub enum Wish {
    /// Set some.
    Apply {
        /// Each with its value.
        set: BTreeMap<String, String>,
        /// Take it back by itself when the verdict is against it; as the spec says when empty.
        auto_revert: Option<bool>,
        /// Begin anew, from no checkpoint.
        from_start: bool,
        /// Another attempt, also where the ranks could take it over in place.
        restart: bool,
        /// Try a doubled `micro_batch` by itself once it is kept; as the spec says when empty.
        try_larger_batch: Option<bool>,
        /// It is that trial, for the change of this attempt.
        follows: Option<AttemptNo>,
    },
    /// Take the last change back that was not taken back yet.
    Revert {
        /// The attempt that made it, when it must be this one.
        attempt: Option<AttemptNo>,
        /// Which of that attempt's changes in place, when it is one.
        live: Option<u32>,
        /// Why, when no person asks.
        reason: Option<String>,
        /// Begin anew, from no checkpoint.
        from_start: bool,
        /// Another attempt, also where the ranks could take it back in place.
        restart: bool,
    },
    /// Another attempt of a run that is under way, with the same knobs.
    Restart {
        /// Nodes of the current attempt that a person takes out of the run.
        without: Vec<NodeName>,
    },
}

/// Why a wish for other knobs is not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotChange {
    /// A knob or its value.
    #[error("{message}")]
    Knob {
        /// Which.
        knob: String,
        /// What is wrong, and what to do instead.
        message: String,
    },
    /// The run is not in the state for it.
    #[error("{0}")]
    Now(String),
}

impl Machine {
    /// What a wish comes to; none when it is so already, or under way.
    ///
    /// # Errors
    /// When a knob cannot be turned so, or nothing can be changed now.
    pub fn change_for(&self, wish: &Wish) -> Result<Option<Pending>, CannotChange> {
        let pending = match wish {
            Wish::Restart { without } => Some(self.restart(without)?),
            Wish::Apply {
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
            Wish::Revert {
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
            (Some(wished), Some(waiting)) if wished.knobs == waiting.knobs => Ok(None),
            (Some(_), Some(waiting)) => Err(CannotChange::Now(format!(
                "{} is being applied; wait until its attempt runs",
                waiting.change.words()
            ))),
            (Some(wished), None) => match self.cannot_change() {
                Some(why) => Err(CannotChange::Now(why)),
                None => Ok(Some(wished)),
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
                "{node} has no part in attempt {} of run {}",
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

    /// The change whose verdict says that it is to be taken back, while its run is under way and nobody has taken it back. Of those
    /// by another attempt and of those in place the last each: neither stands in the way of the other.
    #[must_use]
    pub fn to_take_back(&self) -> Option<(ChangeId, String)> {
        if self.pending.is_some() || !self.trains() || self.cannot_change().is_some() {
            return None;
        }
        let in_place = self.standing().filter(|(id, _)| id.live > 0).last();
        let due = |(id, change): (ChangeId, &Change)| {
            let against = change.verdict.as_ref().filter(|it| it.decision.is_against())?;
            let can = || matches!(self.inverse(Some(id)), Ok(Some(_)));
            let due = change.auto_revert && !self.refused_to_take_back(id) && can();
            due.then(|| (id, against.summary.clone()))
        };
        let candidates = in_place.into_iter().chain(self.last_by_attempt());
        candidates.filter_map(due).max_by_key(|(id, _)| *id)
    }

    /// Whether ranks of the current attempt could not take it back in place when that was tried by itself: they would say so again.
    fn refused_to_take_back(&self, id: ChangeId) -> bool {
        let mut live = self.current().knobs.live.iter();
        live.any(|live| {
            !live.is_made() && live.change.reason.is_some() && live.change.taken_back() == Some(id)
        })
    }

    /// The last change that was not taken back.
    #[must_use]
    pub fn last_change(&self) -> Option<(ChangeId, &Change)> {
        self.standing().last()
    }

    /// The last change that was not taken back and made another attempt.
    pub(super) fn last_by_attempt(&self) -> Option<(ChangeId, &Change)> {
        self.standing().filter(|(id, _)| id.live == 0).last()
    }

    /// Those that were not taken back, in their order.
    fn standing(&self) -> impl Iterator<Item = (ChangeId, &Change)> {
        let taken_back: Vec<ChangeId> = self
            .changes()
            .filter_map(|(_, change)| change.taken_back())
            .collect();
        self.changes().filter(move |(id, change)| {
            change.reverts.is_none() && !change.restart && !taken_back.contains(id)
        })
    }

    /// All that were made, in their order.
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
        let stops = self.wished != Wished::Run || self.stop_plan().is_some();
        (!self.state.is_final() && stops)
            .then(|| "the run is being stopped; resume it with the change when it has ended".into())
    }

    /// What setting these would change; none when all are so.
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
            .and_then(|waiting| waiting.change.taken_back());
        let reverted = |id: ChangeId| self.changes().any(|(_, change)| change.taken_back() == Some(id));
        match asked {
            Some(id) if reverted(id) || waiting == Some(id) => return Ok(None),
            None if waiting.is_some() => return Ok(None),
            _ => {}
        }
        let (id, change) = self.can_be_taken_back(asked)?;
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

    /// The change that is asked for, else the last one. It need not be the last, but its knobs must be as it left them.
    fn can_be_taken_back(&self, asked: Option<ChangeId>) -> Result<(ChangeId, &Change), CannotChange> {
        let standing: Vec<(ChangeId, &Change)> = self.standing().collect();
        let Some((last, _)) = standing.last() else {
            let why = "no change of knobs is left to take back: `apply` makes one";
            return Err(CannotChange::Now(why.into()));
        };
        let wanted = asked.unwrap_or(*last);
        let Some(at) = standing.iter().position(|(id, _)| *id == wanted) else {
            let why =
                format!("{wanted} made no change that could be taken back; the last was made by {last}");
            return Err(CannotChange::Now(why));
        };
        let change = standing[at].1;
        let same = |(_, later): &&(ChangeId, &Change)| change.set.iter().any(|diff| later.sets(&diff.knob));
        if let Some((later, _)) = standing[at + 1..].iter().rfind(same) {
            let why = format!("the same was changed again by {later}; take that back first");
            return Err(CannotChange::Now(why));
        }
        Ok((wanted, change))
    }

    fn pending_of(&self, change: Change, from_start: bool) -> Pending {
        let mut knobs = self.current().knobs.values.clone();
        turn(&mut knobs, &change);
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
    pub(super) fn knobs_changed(&mut self, wish: &Wish, grace_ms: u64, after: Option<StopPoint>) {
        let run = &mut *self.run;
        let Ok(Some(pending)) = run.change_for(wish) else {
            return;
        };
        if run.turns_live(wish, &pending.change) {
            return self.turn_live(pending.change);
        }
        run.leave_live(self.now_ms);
        run.pending = Some(Box::new(pending));
        if run.current().ended_ms.is_some() {
            return self.begin_pending();
        }
        match after {
            Some(point @ StopPoint::Step(_)) if run.trains() && !run.is_stopping() => {
                self.plan_stop(point, grace_ms);
            }
            _ => run.wished = run.wished.or_stop(grace_ms),
        }
    }

    /// What follows an attempt that is over, when a change waits for it: the next, unless the training came to its end by itself.
    /// Gives back the outcome where nothing follows.
    pub(super) fn followed_by_change(&mut self, outcome: Outcome) -> Option<Outcome> {
        let run = &mut *self.run;
        if run.unknown_attempt.is_some() {
            run.pending = None;
            return Some(outcome);
        }
        run.take_failed_trial_back(&outcome);
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
        let Some(pending) = run.pending.take() else {
            return;
        };
        // A person who resumes a run has looked at its nodes; while it goes on, what failed it is known to nobody else.
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
        self.begin_attempt(Beginning::requested(pending.change.cause(), placement));
        let knobs = &mut self.run.current_mut().knobs;
        knobs.values = pending.knobs;
        knobs.change = Some(Box::new(pending.change));
    }
}

impl AttemptKnobs {
    /// Once for each knob and outcome: all ranks say the same.
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
