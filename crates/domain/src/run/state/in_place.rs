//! A knob that the ranks of a running attempt change in place.
//!
//! ```text
//!                    ┌ TurnLive to each node ──▶ each rank answers at the end of its next step
//!  KnobsChanged ──▶ Asked ──every rank applied it──▶ Taken
//!                    ├──a rank or a node cannot──▶ Refused: the old value stays, and is sent to the nodes again
//!                    └──the attempt ends, another change follows──▶ Left: the next attempt has the new value from its start
//! ```
//! The attempt's knobs have the new value as soon as it is requested, so that an attempt that follows a failure has it in any case. No rank
//! waits for another, so this only suits knobs on which ranks need not agree. Nothing else of the run changes: it continues to train.

use std::collections::BTreeMap;

use crate::ident::{NodeName, Rank};
use crate::run::knob::{
    ANSWERS_MAX, Change, How, IN_PLACE_MAX, InPlaceChange, InPlaceState, KnobAnswer, KnobDiff, apply_change,
    known, revert_change,
};
use crate::run::state::attempt::Attempt;
use crate::run::state::change::KnobRequest;
use crate::run::state::machine::Machine;
use crate::run::state::node_task::{NodePhase, NodeTask, RankTask};
use crate::run::state::protocol::{NodeCommand, NodeReport};
use crate::run::state::transition::Transition;
use crate::time::TimestampMs;

impl Machine {
    /// Returns true if the ranks can make a change in place; otherwise it needs a new attempt.
    #[must_use]
    pub fn can_change_in_place(&self, request: &KnobRequest, change: &Change) -> bool {
        let (KnobRequest::Apply {
            restart, from_start, ..
        }
        | KnobRequest::Revert {
            restart, from_start, ..
        }) = request
        else {
            return false;
        };
        let [diff] = change.set.as_slice() else {
            return false;
        };
        let by_probe = diff.how == How::Injected && known(&diff.knob).is_ok_and(|knob| knob.live);
        let knows = |task: &NodeTask| {
            task.phase == NodePhase::Running && task.prepared.as_ref().is_some_and(|found| found.turns_live)
        };
        let attempt = self.current();
        !restart
            && !from_start
            && by_probe
            && self.trains()
            && !self.is_stopping()
            && attempt.nodes.iter().all(knows)
            && attempt.knobs.live.len() < IN_PLACE_MAX
    }

    /// Applies a report to the change in place that waits for answers. Returns true if the report concerns only that change.
    pub(super) fn apply_in_place_report(&mut self, report: &NodeReport, now_ms: TimestampMs) -> bool {
        let attempt = self.current_mut();
        match report {
            NodeReport::Refused { command, reason } => {
                let ours =
                    |live: &InPlaceChange| live.orders.iter().any(|order| u64::from(*order) == *command);
                let refused = attempt
                    .knobs
                    .live
                    .iter()
                    .find(|live| ours(live))
                    .map(|live| live.no);
                if let Some(no) = refused {
                    attempt.refuse_in_place_change(no, reason, now_ms);
                }
                refused.is_some()
            }
            NodeReport::KnobAnswered(answer) => {
                if let Some(no) = answer.live {
                    attempt.in_place_answered(no, answer, now_ms);
                }
                false
            }
            _ => false,
        }
    }

    /// Stops waiting for answers of ranks. They may still apply the change, and the next attempt has it.
    pub(super) fn abandon_in_place_change(&mut self, now_ms: TimestampMs) {
        let live = self.current_mut().knobs.live.iter_mut();
        for left in live.filter(|live| live.state == InPlaceState::Asked) {
            left.state = InPlaceState::Left;
            left.settled_ms = Some(now_ms);
        }
    }
}

impl Transition<'_> {
    /// Requests the change from every rank.
    pub(super) fn request_in_place_change(&mut self, change: Change) {
        self.run.abandon_in_place_change(self.now_ms);
        let attempt = self.run.current_mut();
        apply_change(&mut attempt.knobs.values, &change);
        let no = attempt.knobs.live.last().map_or(1, |last| last.no + 1);
        attempt.knobs.live.push(InPlaceChange {
            no,
            asked_ms: self.now_ms,
            step: attempt.last_step(),
            change,
            ..InPlaceChange::default()
        });
        self.send_in_place_change();
    }

    /// Sends the last change in place, in its current state, to the nodes.
    fn send_in_place_change(&mut self) {
        let nodes: Vec<NodeName> = self.run.busy_nodes().cloned().collect();
        let Some(live) = self.run.current().knobs.live.last() else {
            return;
        };
        let value = |diff: &KnobDiff| match live.state {
            InPlaceState::Refused => diff.old.clone(),
            _ => diff.new.clone(),
        };
        let set = live.change.set.iter();
        let command = NodeCommand::TurnLive {
            live: live.no,
            set: set.map(|diff| (diff.knob.clone(), value(diff))).collect(),
        };
        let command = |node| self.command(node, command.clone());
        let orders: Vec<u32> = nodes.iter().map(command).collect();
        if let Some(live) = self.run.current_mut().knobs.live.last_mut() {
            live.orders.extend(orders);
        }
    }

    /// Sends the old value again: some ranks may have applied what another rank refused, or are about to.
    pub(super) fn resend_old_value(&mut self) {
        if self.run.is_stopping() {
            return;
        }
        let last = self.run.current_mut().knobs.live.last_mut();
        let Some(refused) = last.filter(|live| live.state == InPlaceState::Refused && !live.put_back) else {
            return;
        };
        refused.put_back = true;
        self.send_in_place_change();
    }
}

impl Attempt {
    fn in_place_answered(&mut self, no: u32, answer: &KnobAnswer, now_ms: TimestampMs) {
        let Some(live) = self.unanswered_change(no) else {
            return;
        };
        // An answer with another value belongs to an earlier change.
        let wanted = live
            .change
            .set
            .first()
            .map(|diff| diff.new.clone().unwrap_or_default());
        if wanted.as_ref() != Some(&answer.value) {
            return;
        }
        live.note(answer);
        if !answer.applied {
            let why = format!("rank {}: {}", answer.rank, answer.detail);
            return self.refuse_in_place_change(no, &why, now_ms);
        }
        live.ranks.insert(answer.rank);
        self.complete_in_place_change(now_ms);
    }

    /// Marks the change as taken when every running rank has applied it. A rank that has ended does not answer any more.
    pub(super) fn complete_in_place_change(&mut self, now_ms: TimestampMs) {
        let running = |(rank, task): (Rank, &RankTask)| task.exit.is_none().then_some(rank);
        let all: Vec<Rank> = self.global_ranks().filter_map(running).collect();
        let mut live = self.knobs.live.iter_mut();
        let Some(live) = live.find(|live| live.state == InPlaceState::Asked) else {
            return;
        };
        if !all.is_empty() && all.iter().all(|rank| live.ranks.contains(rank)) {
            live.state = InPlaceState::Taken;
            live.settled_ms = Some(now_ms);
        }
    }

    fn refuse_in_place_change(&mut self, no: u32, why: &str, now_ms: TimestampMs) {
        let Some(live) = self.unanswered_change(no) else {
            return;
        };
        live.state = InPlaceState::Refused;
        live.settled_ms = Some(now_ms);
        live.refused = Some(why.to_owned());
        let change = live.change.clone();
        revert_change(&mut self.knobs.values, &change);
    }

    fn unanswered_change(&mut self, no: u32) -> Option<&mut InPlaceChange> {
        let mut live = self.knobs.live.iter_mut();
        live.find(|live| live.no == no && live.state == InPlaceState::Asked)
    }

    fn global_ranks(&self) -> impl Iterator<Item = (Rank, &RankTask)> {
        self.nodes.iter().flat_map(|task| {
            let ranks = task.ranks.iter();
            ranks.map(|(local, rank)| (Rank(task.first_rank + local), rank))
        })
    }

    /// Returns the knobs that the ranks had when they started.
    #[must_use]
    pub fn knobs_at_launch(&self) -> BTreeMap<String, String> {
        let mut knobs = self.knobs.values.clone();
        for live in self.knobs.live.iter().rev().filter(|live| live.is_made()) {
            revert_change(&mut knobs, &live.change);
        }
        knobs
    }
}

impl InPlaceChange {
    /// Stores an answer once per outcome and text, because most ranks report the same.
    fn note(&mut self, answer: &KnobAnswer) {
        let same = |known: &KnobAnswer| (known.applied, &known.detail) == (answer.applied, &answer.detail);
        if self.answers.len() < ANSWERS_MAX && !self.answers.iter().any(same) {
            self.answers.push(answer.clone());
        }
    }
}
