//! The position of each rank, and the time since any rank moved.

use crate::diagnosis::input::ProcessCondition;
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::rank_status::RankStatus;
use crate::diagnosis::resources::Usage;
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Suspect a hang if no rank has moved for this time and this many median steps, and a rank waits.
const SUSPICION_S: f64 = 5.0;
const SUSPICION_STEPS: f64 = 2.5;
/// The same for requesting stacks, which takes `STACK_SECONDS`.
const STACKS_AFTER_S: f64 = 1.5;
const STACKS_AFTER_STEPS: f64 = 1.5;
/// The same before the first step, when models are loaded and compiled.
const FIRST_SUSPICION_S: f64 = 7.0;
const FIRST_STACKS_AFTER_S: f64 = 2.0;
/// A rank that does not wait is stuck only after this time, and so is one that waits for a disk: a long piece of work looks the same until
/// it ends.
const STUCK_S: f64 = 7.0;
/// If no page shows a rank that waits, Flight Recorders are requested after this time, because a page does not show a wait for a GPU.
const HIDDEN_SUSPICION_S: f64 = 15.0;
const HIDDEN_SUSPICION_STEPS: f64 = 5.0;

/// Input of the decision.
pub(in crate::diagnosis) struct View<'a> {
    pub(in crate::diagnosis) members: &'a Members,
    pub(in crate::diagnosis) rank_statuses: &'a [RankStatus],
    pub(in crate::diagnosis) usage: &'a Usage,
    pub(in crate::diagnosis) median_step_s: Option<f64>,
    pub(in crate::diagnosis) now_ms: TimestampMs,
}

/// A run in which no rank moves.
pub(super) struct Inactivity {
    pub(super) seconds: f64,
    pub(super) since_ms: TimestampMs,
    pub(super) since_step: Option<u64>,
    /// Ranks whose node is not blind and whose process runs.
    pub(super) alive: Vec<usize>,
    /// Those of `alive` that wait or may wait.
    pub(super) waiters: Vec<usize>,
    /// Those of `alive` that do not wait.
    pub(super) others: Vec<usize>,
}

impl View<'_> {
    /// Returns the position of each rank and the time since any rank moved.
    pub(super) fn inactivity(&self) -> Option<Inactivity> {
        let mut inactivity = Inactivity {
            seconds: f64::INFINITY,
            since_ms: TimestampMs::MIN,
            since_step: None,
            alive: Vec::new(),
            waiters: Vec::new(),
            others: Vec::new(),
        };
        let stacks_after_s = self.stacks_after_s();
        for (place, status) in self.rank_statuses.iter().enumerate() {
            let (Some(moved_ms), Some(complete_until_ms)) =
                (status.moved_ms, self.members.complete_until_ms(place))
            else {
                continue;
            };
            if self.members.is_blind(self.members.node_place(place))
                || status.condition == ProcessCondition::Ended
            {
                continue;
            }
            inactivity.seconds = inactivity.seconds.min(seconds(complete_until_ms - moved_ms));
            if inactivity.seconds < stacks_after_s {
                return Some(inactivity);
            }
            inactivity.since_ms = inactivity.since_ms.max(moved_ms);
            inactivity.since_step = inactivity.since_step.max(status.step);
            // Other threads of a process whose main thread waits in the kernel can still answer.
            if matches!(
                status.condition,
                ProcessCondition::Alive | ProcessCondition::Uninterruptible
            ) {
                inactivity.alive.push(place);
                if status.may_wait() {
                    inactivity.waiters.push(place);
                } else {
                    inactivity.others.push(place);
                }
            }
        }
        inactivity.seconds.is_finite().then_some(inactivity)
    }

    /// Returns the time since the collector last received something from the node that became blind last, in seconds. `None` if no node is
    /// blind.
    pub(super) fn shortest_blindness_s(&self) -> Option<f64> {
        let blind = (0..self.members.node_count()).filter(|node| self.members.is_blind(*node));
        blind
            .map(|node| self.members.seconds_without_data(node, self.now_ms))
            .min_by(f64::total_cmp)
    }

    /// Returns true if each node has sent measurements and none is blind.
    pub(super) fn sees_all_nodes(&self) -> bool {
        let mut places = 0..self.members.len();
        places.all(|place| {
            let is_blind = self.members.is_blind(self.members.node_place(place));
            !is_blind && self.members.complete_until_ms(place).is_some()
        })
    }

    fn threshold(&self, least_s: f64, steps: f64, first_s: f64) -> f64 {
        self.median_step_s
            .map_or(first_s, |step_s| least_s.max(steps * step_s))
    }

    pub(super) fn stacks_after_s(&self) -> f64 {
        self.threshold(STACKS_AFTER_S, STACKS_AFTER_STEPS, FIRST_STACKS_AFTER_S)
    }

    pub(super) fn suspicion_after_s(&self) -> f64 {
        self.threshold(SUSPICION_S, SUSPICION_STEPS, FIRST_SUSPICION_S)
    }

    pub(super) fn stuck_after_s(&self) -> f64 {
        self.suspicion_after_s().max(STUCK_S)
    }

    pub(super) fn hidden_after_s(&self) -> f64 {
        self.threshold(HIDDEN_SUSPICION_S, HIDDEN_SUSPICION_STEPS, HIDDEN_SUSPICION_S)
    }

    pub(super) fn rank_set(&self, places: &[usize]) -> RankSet {
        let mut ranks: Vec<Rank> = places.iter().map(|place| self.members.rank(*place)).collect();
        ranks.sort_unstable();
        ranks.into_iter().collect()
    }

    pub(super) fn places(&self, ranks: &[Rank]) -> Vec<usize> {
        ranks
            .iter()
            .filter_map(|rank| self.members.place(*rank))
            .collect()
    }
}
