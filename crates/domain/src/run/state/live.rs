//! A knob that the ranks of a running attempt take over in place.
//!
//! ```text
//!                    ┌ TurnLive to each node ──▶ each rank answers at the end of its next step
//!  KnobsChanged ──▶ Asked ──every rank has it──▶ Taken
//!                    ├──a rank or a node cannot──▶ Refused: the value before stays, and nodes are told it again
//!                    └──the attempt ends, another change comes──▶ Left: the next attempt has it from its start
//! ```
//! The attempt's knobs have the value from the moment it is asked for, so that an attempt that follows a failure has it in any
//! case. No rank waits for another, which only suits what ranks need not agree on. Nothing else of the run moves: it trains on.

use std::collections::BTreeMap;

use crate::ident::{NodeName, Rank};
use crate::run::knob::{
    ANSWERS_MAX, Change, How, KnobAnswer, KnobDiff, LIVE_MAX, LiveChange, LiveState, known, turn, turn_back,
};
use crate::run::state::attempt::Attempt;
use crate::run::state::change::Wish;
use crate::run::state::machine::Machine;
use crate::run::state::node_task::{NodePhase, NodeTask, RankTask};
use crate::run::state::protocol::{NodeCommand, NodeReport};
use crate::run::state::transition::Transition;
use crate::time::TimestampMs;

impl Machine {
    /// Whether the ranks can be asked to take a change over in place; else it is another attempt.
    pub(super) fn turns_live(&self, wish: &Wish, change: &Change) -> bool {
        let (Wish::Apply {
            restart, from_start, ..
        }
        | Wish::Revert {
            restart, from_start, ..
        }) = wish
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
            && attempt.knobs.live.len() < LIVE_MAX
    }

    /// What a report means to the change in place that waits. True when it was about that alone.
    pub(super) fn live_reported(&mut self, report: &NodeReport, now_ms: TimestampMs) -> bool {
        let attempt = self.current_mut();
        match report {
            NodeReport::Refused { command, reason } => {
                let ours = |live: &LiveChange| live.orders.iter().any(|order| u64::from(*order) == *command);
                let refused = attempt
                    .knobs
                    .live
                    .iter()
                    .find(|live| ours(live))
                    .map(|live| live.no);
                if let Some(no) = refused {
                    attempt.refuse_live(no, reason, now_ms);
                }
                refused.is_some()
            }
            NodeReport::KnobAnswered(answer) => {
                if let Some(no) = answer.live {
                    attempt.live_answered(no, answer, now_ms);
                }
                false
            }
            _ => false,
        }
    }

    /// What waits for ranks waits no more; they may take it over still, and the next attempt has it.
    pub(super) fn leave_live(&mut self, now_ms: TimestampMs) {
        let live = self.current_mut().knobs.live.iter_mut();
        for left in live.filter(|live| live.state == LiveState::Asked) {
            left.state = LiveState::Left;
            left.settled_ms = Some(now_ms);
        }
    }
}

impl Transition<'_> {
    /// Asks every rank for it.
    pub(super) fn turn_live(&mut self, change: Change) {
        self.run.leave_live(self.now_ms);
        let attempt = self.run.current_mut();
        turn(&mut attempt.knobs.values, &change);
        let no = attempt.knobs.live.last().map_or(1, |last| last.no + 1);
        attempt.knobs.live.push(LiveChange {
            no,
            asked_ms: self.now_ms,
            step: attempt.last_step(),
            change,
            ..LiveChange::default()
        });
        self.tell_live();
    }

    /// Brings the last change in place, as it stands, to the nodes.
    fn tell_live(&mut self) {
        let nodes: Vec<NodeName> = self.run.busy_nodes().cloned().collect();
        let Some(live) = self.run.current().knobs.live.last() else {
            return;
        };
        let value = |diff: &KnobDiff| match live.state {
            LiveState::Refused => diff.old.clone(),
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

    /// Some ranks may have taken over what another refused, or be about to.
    pub(super) fn put_live_back(&mut self) {
        if self.run.is_stopping() {
            return;
        }
        let last = self.run.current_mut().knobs.live.last_mut();
        let Some(refused) = last.filter(|live| live.state == LiveState::Refused && !live.put_back) else {
            return;
        };
        refused.put_back = true;
        self.tell_live();
    }
}

impl Attempt {
    fn live_answered(&mut self, no: u32, answer: &KnobAnswer, now_ms: TimestampMs) {
        let Some(live) = self.asked_live(no) else { return };
        // Of another value it is the word on a change before.
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
            return self.refuse_live(no, &why, now_ms);
        }
        live.ranks.insert(answer.rank);
        self.settle_live(now_ms);
    }

    /// Every rank that runs has it: one that has ended answers no more.
    pub(super) fn settle_live(&mut self, now_ms: TimestampMs) {
        let running = |(rank, task): (Rank, &RankTask)| task.exit.is_none().then_some(rank);
        let all: Vec<Rank> = self.global_ranks().filter_map(running).collect();
        let mut live = self.knobs.live.iter_mut();
        let Some(live) = live.find(|live| live.state == LiveState::Asked) else {
            return;
        };
        if !all.is_empty() && all.iter().all(|rank| live.ranks.contains(rank)) {
            live.state = LiveState::Taken;
            live.settled_ms = Some(now_ms);
        }
    }

    fn refuse_live(&mut self, no: u32, why: &str, now_ms: TimestampMs) {
        let Some(live) = self.asked_live(no) else { return };
        live.state = LiveState::Refused;
        live.settled_ms = Some(now_ms);
        live.refused = Some(why.to_owned());
        let change = live.change.clone();
        turn_back(&mut self.knobs.values, &change);
    }

    fn asked_live(&mut self, no: u32) -> Option<&mut LiveChange> {
        let mut live = self.knobs.live.iter_mut();
        live.find(|live| live.no == no && live.state == LiveState::Asked)
    }

    fn global_ranks(&self) -> impl Iterator<Item = (Rank, &RankTask)> {
        self.nodes.iter().flat_map(|task| {
            let ranks = task.ranks.iter();
            ranks.map(|(local, rank)| (Rank(task.first_rank + local), rank))
        })
    }

    /// The knobs as its ranks got them when they started.
    #[must_use]
    pub fn knobs_at_launch(&self) -> BTreeMap<String, String> {
        let mut knobs = self.knobs.values.clone();
        for live in self.knobs.live.iter().rev().filter(|live| live.is_made()) {
            turn_back(&mut knobs, &live.change);
        }
        knobs
    }
}

impl LiveChange {
    /// Once for each word: most ranks say the same.
    fn note(&mut self, answer: &KnobAnswer) {
        let same = |known: &KnobAnswer| (known.applied, &known.detail) == (answer.applied, &answer.detail);
        if self.answers.len() < ANSWERS_MAX && !self.answers.iter().any(same) {
            self.answers.push(answer.clone());
        }
    }
}
