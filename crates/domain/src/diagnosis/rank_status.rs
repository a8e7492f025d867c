//! The position of each rank, and when it last moved.

use crate::diagnosis::input::{Page, Phase, Position, ProcessCondition};
use crate::diagnosis::members::seconds;
use crate::time::TimestampMs;

/// Maximum difference between two computed starts of the same phase. A larger difference means another phase.
const PHASE_JITTER_MS: i64 = 250;

/// State of one rank, from its page, its process and its pools.
#[derive(Debug, Clone, Default)]
pub(super) struct RankStatus {
    pub(super) condition: ProcessCondition,
    /// When the process was first seen to have ended, by its node's clock.
    pub(super) ended_ms: Option<TimestampMs>,
    pub(super) page: Option<Page>,
    /// When the rank entered the phase of the page.
    pub(super) phase_since_ms: TimestampMs,
    /// When the rank last moved, by its node's clock; absent if unknown.
    pub(super) moved_ms: Option<TimestampMs>,
    /// Last step known to have ended.
    pub(super) step: Option<u64>,
    /// True if the rank fetches batches from a data loader. Without one, all code of the script counts as forward.
    pub(super) has_loader: bool,
    /// The longest wait for data after the first step that the page has shown, in seconds.
    pub(super) longest_data_s: f64,
}

impl RankStatus {
    pub(super) fn take(&mut self, position: &Position) {
        self.condition = position.process;
        self.ended_ms = if position.process == ProcessCondition::Ended {
            self.ended_ms.or(Some(position.at_ms))
        } else {
            None
        };
        let Some(page) = position.page else { return };
        let since_ms = position.at_ms - (page.in_phase_s * 1e3) as i64;
        let moved_ms = match &self.page {
            None => Some(since_ms),
            Some(before) if before.phase != page.phase => Some(since_ms),
            // Not the step, which moves include: it comes from pools, and the one with the last steps before a hang arrives seconds later.
            Some(before) if before.moves != page.moves => Some(position.at_ms),
            Some(_) if since_ms > self.phase_since_ms + PHASE_JITTER_MS => Some(since_ms),
            Some(_) => None,
        };
        let waited = self.phase() == Some(Phase::Data) && page.phase != Phase::Data;
        if waited && !self.is_before_first_step() {
            self.longest_data_s = self.longest_data_s.max(seconds(since_ms - self.phase_since_ms));
        }
        if let Some(moved_ms) = moved_ms {
            self.moved(moved_ms);
            self.phase_since_ms = since_ms;
        }
        self.step = self.step.max((page.step > 0).then_some(page.step));
        self.has_loader |= matches!(page.phase, Phase::Data | Phase::Host);
        self.page = Some(page);
    }

    /// Records the end of a step.
    pub(super) fn record_step_end(&mut self, step: u64, at_ms: TimestampMs) {
        if self.step.is_none_or(|known| known < step) {
            self.step = Some(step);
            self.moved(at_ms);
        }
    }

    fn moved(&mut self, at_ms: TimestampMs) {
        self.moved_ms = Some(self.moved_ms.map_or(at_ms, |moved| moved.max(at_ms)));
    }

    pub(super) fn phase(&self) -> Option<Phase> {
        self.page.map(|page| page.phase)
    }

    /// Returns true if the page says that the rank waits for others.
    pub(super) fn waits(&self) -> bool {
        matches!(self.phase(), Some(Phase::Collective | Phase::Rendezvous))
    }

    /// Returns true if the rank may wait. DDP waits in C++ when it wraps a model and at the end of the backward pass, which the page does
    /// not show. Without a page the answer is also true.
    pub(super) fn may_wait(&self) -> bool {
        self.waits()
            || matches!(
                self.phase(),
                Some(Phase::Backward | Phase::GroupMade | Phase::ModelWrapped) | None
            )
    }

    /// Returns true if the rank runs code of the script that may do anything, for example an evaluation.
    pub(super) fn is_in_script(&self) -> bool {
        self.phase() == Some(Phase::Host) || self.phase() == Some(Phase::Forward) && !self.has_loader
    }

    /// Returns true if its first step has not ended.
    pub(super) fn is_before_first_step(&self) -> bool {
        self.step.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{NodeName, Rank};

    fn position(at_ms: i64, phase: Phase, in_phase_s: f64, moves: u64) -> Position {
        Position {
            rank: Rank(0),
            node: NodeName::new("a").expect("name"),
            at_ms,
            process: ProcessCondition::Alive,
            page: Some(Page {
                step: 3,
                phase,
                in_phase_s,
                moves,
            }),
        }
    }

    #[test]
    fn a_rank_moves_when_its_phase_its_counts_or_the_beginning_of_its_phase_change() {
        let mut status = RankStatus::default();
        for (at_ms, phase, in_phase_s, moves, moved_ms) in [
            (10_000, Phase::Forward, 0.2, 7, 9_800),
            (10_500, Phase::Forward, 0.7, 7, 9_800),
            (11_000, Phase::Collective, 0.1, 7, 10_900),
            (11_500, Phase::Collective, 0.65, 7, 10_900),
            // The rank has left the collective and entered another one.
            (12_000, Phase::Collective, 0.3, 7, 11_700),
            (12_500, Phase::Collective, 0.8, 8, 12_500),
            (13_000, Phase::Collective, 1.3, 8, 12_500),
        ] {
            status.take(&position(at_ms, phase, in_phase_s, moves));
            assert_eq!(status.moved_ms, Some(moved_ms), "at {at_ms}");
        }
    }

    #[test]
    fn a_step_that_is_reported_late_is_not_counted_as_a_move() {
        let mut status = RankStatus::default();
        status.take(&position(10_000, Phase::Data, 0.2, 7));
        status.record_step_end(4, 9_700);
        let mut later = position(13_500, Phase::Data, 3.7, 7);
        later.page = later.page.map(|page| Page { step: 4, ..page });
        status.take(&later);
        assert_eq!((status.moved_ms, status.step), (Some(9_800), Some(4)));
    }
}
