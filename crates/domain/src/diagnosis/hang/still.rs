//! Who is where, and for how long nothing has moved.

use crate::diagnosis::input::ProcessCondition;
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::resources::Usage;
use crate::diagnosis::seat::Seat;
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Nothing has moved for this long, and for this many median steps: a hang, if a rank waits.
const SUSPICION_S: f64 = 5.0;
const SUSPICION_STEPS: f64 = 2.5;
/// The same for looking at stacks, which takes `STACK_SECONDS`.
const LOOK_S: f64 = 1.5;
const LOOK_STEPS: f64 = 1.5;
/// Before a step is known: models are loaded and compiled.
const FIRST_SUSPICION_S: f64 = 7.0;
const FIRST_LOOK_S: f64 = 3.0;
/// When no page shows a rank that waits, Flight Recorders are asked after this long, because a wait for a GPU does not show.
const HIDDEN_SUSPICION_S: f64 = 15.0;
const HIDDEN_SUSPICION_STEPS: f64 = 5.0;

/// What the decision stands on.
pub(in crate::diagnosis) struct View<'a> {
    pub(in crate::diagnosis) members: &'a Members,
    pub(in crate::diagnosis) seats: &'a [Seat],
    pub(in crate::diagnosis) usage: &'a Usage,
    pub(in crate::diagnosis) median_step_s: Option<f64>,
    pub(in crate::diagnosis) now_ms: TimestampMs,
}

/// A run in which nothing moves.
pub(super) struct Still {
    pub(super) seconds: f64,
    pub(super) since_ms: TimestampMs,
    pub(super) since_step: Option<u64>,
    /// Ranks that are seen and whose process runs.
    pub(super) alive: Vec<usize>,
    /// Of them, those that wait or may wait.
    pub(super) waiters: Vec<usize>,
    /// Of them, those that do not.
    pub(super) others: Vec<usize>,
}

impl View<'_> {
    /// Who is where, and for how long nothing has moved.
    pub(super) fn still(&self) -> Option<Still> {
        let mut still = Still {
            seconds: f64::INFINITY,
            since_ms: TimestampMs::MIN,
            since_step: None,
            alive: Vec::new(),
            waiters: Vec::new(),
            others: Vec::new(),
        };
        let look_after_s = self.look_after_s();
        for (place, seat) in self.seats.iter().enumerate() {
            let (Some(moved_ms), Some(heard_ms)) = (seat.moved_ms, self.members.heard_ms(place)) else {
                continue;
            };
            if self.members.is_blind(self.members.node_place(place))
                || seat.condition == ProcessCondition::Ended
            {
                continue;
            }
            still.seconds = still.seconds.min(seconds(heard_ms - moved_ms));
            if still.seconds < look_after_s {
                return Some(still);
            }
            still.since_ms = still.since_ms.max(moved_ms);
            still.since_step = still.since_step.max(seat.step);
            // A thread of a process that waits in the kernel still answers.
            if matches!(
                seat.condition,
                ProcessCondition::Alive | ProcessCondition::Uninterruptible
            ) {
                still.alive.push(place);
                if seat.may_wait() {
                    still.waiters.push(place);
                } else {
                    still.others.push(place);
                }
            }
        }
        still.seconds.is_finite().then_some(still)
    }

    fn threshold(&self, least_s: f64, steps: f64, first_s: f64) -> f64 {
        self.median_step_s
            .map_or(first_s, |step_s| least_s.max(steps * step_s))
    }

    pub(super) fn look_after_s(&self) -> f64 {
        self.threshold(LOOK_S, LOOK_STEPS, FIRST_LOOK_S)
    }

    pub(super) fn suspicion_after_s(&self) -> f64 {
        self.threshold(SUSPICION_S, SUSPICION_STEPS, FIRST_SUSPICION_S)
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
