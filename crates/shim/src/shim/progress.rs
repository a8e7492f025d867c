//! Detects stalled ranks, from the steps that the probe reports and from the state of the processes in the kernel.
//!
//! ```text
//!            SIGSTOP, debugger                    3 s ──▶ stopped
//!  stepping ──▶ blocked in the kernel (D)        30 s ──▶ uninterruptible
//!            ──▶ no step, no rank of this node behind it ──▶ no_step, after max(60 s, 10 × the median of its recent steps)
//! ```
//! If one rank stalls, all others wait for it in the next collective. A rank that only waits is not reported. A rank counts as waiting
//! while another rank of this node is stopped or blocked in the kernel, is at an earlier step, has queued fewer collectives on its stream,
//! or still moves. The collector decides which of several nodes has the culprit, because it sees all of them.
//!
//! A stall is reported once, and again when its cause changes. When the rank makes progress, its recovery is reported. The time is passed
//! in as a value.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::state::{NodeReport, StallCause};

/// A debugger stops a process for longer than this; a scheduling delay is shorter.
const STOPPED_FOR: Duration = Duration::from_secs(3);
/// A slow disk blocks a process in the kernel again and again, but not for this long at every check.
const UNINTERRUPTIBLE_FOR: Duration = Duration::from_secs(30);
/// The minimum time without a step for a stall, even after very short steps: an evaluation or a checkpoint takes time.
const NO_STEP_FOR: Duration = Duration::from_secs(60);
/// A stall needs this multiple of the median of the recent step times.
const MEDIANS: u32 = 10;
/// The multiple of [`Limits::no_step`] that applies while no step has been timed: a compilation may follow the first step.
const FLOORS_UNTIMED: u32 = 10;
/// Number of recent step times that are kept.
const RECENT: usize = 16;
/// Checks are one second apart. If two are further apart than this, this process did not run in between, and neither did the ranks: the
/// machine was suspended or the container frozen.
const CHECK_GAP_MAX: Duration = Duration::from_secs(5);
/// Maximum number of communicators that are kept per rank. A rank has only a few.
const COMMUNICATORS_MAX: usize = 64;

/// How long each condition must last before the rank is reported as stalled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) stopped: Duration,
    pub(crate) uninterruptible: Duration,
    pub(crate) no_step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stopped: STOPPED_FOR,
            uninterruptible: UNINTERRUPTIBLE_FOR,
            no_step: NO_STEP_FOR,
        }
    }
}

/// All ranks of this node, by rank number.
#[derive(Debug)]
pub(crate) struct Progress {
    limits: Limits,
    ranks: BTreeMap<u32, RankProgress>,
    checked_at: Option<Instant>,
}

/// The progress of one rank.
#[derive(Debug, Default)]
struct RankProgress {
    step: Option<u64>,
    /// When it last made progress.
    moved: Option<Instant>,
    /// The times of its recent steps, as a ring buffer.
    recent: Vec<Duration>,
    next: usize,
    /// Since when it is stopped or blocked in the kernel, as far as the checks show.
    held: Option<(StallCause, Instant)>,
    /// The stall that was last reported.
    reported: Option<StallCause>,
    /// The rank has announced its end.
    leaves: bool,
    /// Collectives queued on the stream, by communicator.
    collectives: BTreeMap<String, u64>,
}

// === messages from ranks ===

impl Progress {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ranks: BTreeMap::new(),
            checked_at: None,
        }
    }

    /// Records that a rank finished a step.
    pub(crate) fn stepped(&mut self, rank: u32, step: u64, now: Instant) {
        let progress = self.ranks.entry(rank).or_default();
        if let (Some(before), Some(_)) = (progress.moved, progress.step) {
            progress.remember(now.saturating_duration_since(before));
        }
        progress.step = Some(step);
        progress.moved = Some(now);
    }

    /// Records another sign of progress, such as a part of a checkpoint.
    pub(crate) fn moved(&mut self, rank: u32, now: Instant) {
        if let Some(progress) = self.ranks.get_mut(&rank) {
            progress.moved = Some(now);
        }
    }

    /// Records that a rank is about to exit. No step follows.
    pub(crate) fn leaves(&mut self, rank: u32) {
        self.ranks.entry(rank).or_default().leaves = true;
    }

    /// Records how many collectives a rank has queued on a communicator's stream so far.
    pub(crate) fn collectives(&mut self, rank: u32, communicator: &str, count: u64) {
        let known = &mut self.ranks.entry(rank).or_default().collectives;
        if known.len() < COMMUNICATORS_MAX || known.contains_key(communicator) {
            known.insert(communicator.to_owned(), count);
        }
    }

    /// Returns the last step that a rank finished.
    pub(crate) fn last_step(&self, rank: u32) -> Option<u64> {
        self.ranks.get(&rank)?.step
    }
}

impl RankProgress {
    fn remember(&mut self, took: Duration) {
        if self.recent.len() < RECENT {
            self.recent.push(took);
        } else {
            self.recent[self.next % RECENT] = took;
        }
        self.next += 1;
    }

    fn limit(&self, floor: Duration) -> Duration {
        if self.recent.is_empty() {
            return floor * FLOORS_UNTIMED;
        }
        let mut sorted = self.recent.clone();
        sorted.sort_unstable();
        floor.max(sorted[sorted.len() / 2] * MEDIANS)
    }

    /// Returns how long the rank has made no progress, if that is longer than its limit.
    fn time_without_progress(&self, floor: Duration, now: Instant) -> Option<Duration> {
        let still = now.saturating_duration_since(self.moved?);
        (still >= self.limit(floor)).then_some(still)
    }

    /// Returns true if this rank has queued fewer collectives on a communicator that both ranks share.
    fn lags(&self, other: &Self) -> bool {
        let behind = |(communicator, count): (&String, &u64)| {
            other
                .collectives
                .get(communicator)
                .is_some_and(|of_other| count < of_other)
        };
        self.collectives.iter().any(behind)
    }
}

// === process states ===

impl Progress {
    /// Takes the process states of the living ranks, in the form of `/proc/PID/stat`, about once per second. Returns the reports to send.
    pub(crate) fn check(&mut self, living: &[(u32, u8)], now: Instant) -> Vec<NodeReport> {
        self.exclude_suspended_time(now);
        for (rank, state) in living {
            self.ranks.entry(*rank).or_default().record_state(*state, now);
        }
        let causes: Vec<_> = living
            .iter()
            .map(|(rank, _)| (*rank, self.cause(*rank, living, now)))
            .collect();
        let reports = causes.into_iter().filter_map(|(rank, cause)| {
            let progress = self.ranks.get_mut(&rank)?;
            progress.report_change(rank, cause)
        });
        reports.collect()
    }

    /// Does not count time in which this process did not run either.
    fn exclude_suspended_time(&mut self, now: Instant) {
        let apart = self
            .checked_at
            .map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        self.checked_at = Some(now);
        if apart <= CHECK_GAP_MAX {
            return;
        }
        for progress in self.ranks.values_mut() {
            let later = |at: Instant| (at + apart).min(now);
            progress.moved = progress.moved.map(later);
            progress.held = progress.held.take().map(|(cause, since)| (cause, later(since)));
        }
    }

    fn cause(&self, rank: u32, living: &[(u32, u8)], now: Instant) -> Option<(StallCause, Duration)> {
        let progress = self.ranks.get(&rank)?;
        if let Some((cause, since)) = &progress.held {
            let held = now.saturating_duration_since(*since);
            let limit = match cause {
                StallCause::Uninterruptible => self.limits.uninterruptible,
                _ => self.limits.stopped,
            };
            // Until then, the last reported stall stays.
            let cause = Some(cause)
                .filter(|_| held >= limit)
                .or(progress.reported.as_ref());
            return cause.map(|cause| (cause.clone(), held));
        }
        let step = progress.step.filter(|_| !progress.leaves)?;
        let still = progress.time_without_progress(self.limits.no_step, now)?;
        let others = living
            .iter()
            .filter_map(|(other, _)| (*other != rank).then(|| self.ranks.get(other))?);
        let waits_for = |other: &RankProgress| {
            let earlier = other.step.is_some_and(|of_other| of_other < step);
            let level = other.step == Some(step);
            let moves = other.time_without_progress(self.limits.no_step, now).is_none();
            other.held.is_some() || earlier || (level && (moves || other.lags(progress)))
        };
        (!others.into_iter().any(waits_for)).then_some((StallCause::NoStep, still))
    }
}

impl RankProgress {
    fn record_state(&mut self, state: u8, now: Instant) {
        let cause = match state {
            b'T' | b't' => Some(StallCause::Stopped),
            b'D' => Some(StallCause::Uninterruptible),
            _ => None,
        };
        let before = self.held.take();
        self.held = cause.map(|cause| match &before {
            // If the rank made a step in between, it was only blocked at both checks by chance.
            Some((same, since)) if *same == cause => {
                (cause, self.moved.map_or(*since, |moved| moved.max(*since)))
            }
            _ => (cause, now),
        });
        if let (Some((StallCause::Stopped, _)), None) = (&before, &self.held) {
            // It could not make a step while it was stopped, so its time without a step starts now.
            self.moved = self.moved.map(|_| now);
        }
    }

    fn report_change(&mut self, rank: u32, cause: Option<(StallCause, Duration)>) -> Option<NodeReport> {
        let rank = Rank(rank);
        let now_reported = cause.as_ref().map(|(cause, _)| cause.clone());
        let before = std::mem::replace(&mut self.reported, now_reported);
        match cause {
            Some((cause, _)) if before.as_ref() == Some(&cause) => None,
            Some((cause, still)) => Some(NodeReport::RankStalled {
                rank,
                step: self.step,
                for_ms: u64::try_from(still.as_millis()).unwrap_or(u64::MAX),
                cause,
            }),
            None => before.map(|_| NodeReport::RankRecovered { rank }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node {
        progress: Progress,
        now: Instant,
        states: Vec<(u32, u8)>,
    }

    impl Node {
        /// Two ranks that made 20 steps, one per second.
        fn stepping() -> Self {
            let mut node = Self {
                progress: Progress::new(Limits::default()),
                now: Instant::now(),
                states: vec![(0, b'S'), (1, b'R')],
            };
            for step in 1..=20 {
                node.step(&[0, 1], step);
                assert_eq!(node.pass(1), []);
            }
            node
        }

        fn step(&mut self, ranks: &[u32], step: u64) {
            for rank in ranks {
                self.progress.stepped(*rank, step, self.now);
            }
        }

        /// Checks once per second. Returns the reports, each with its second.
        fn pass(&mut self, seconds: u64) -> Vec<(u64, NodeReport)> {
            let mut reports = Vec::new();
            for second in 1..=seconds {
                self.now += Duration::from_secs(1);
                let new = self.progress.check(&self.states, self.now);
                reports.extend(new.into_iter().map(|report| (second, report)));
            }
            reports
        }
    }

    fn stalled(rank: u32, step: u64, seconds: u64, cause: StallCause) -> NodeReport {
        NodeReport::RankStalled {
            rank: Rank(rank),
            step: Some(step),
            for_ms: seconds * 1_000,
            cause,
        }
    }

    #[test]
    fn a_stopped_rank_is_reported_within_seconds_and_ranks_that_wait_for_it_are_not() {
        let mut node = Node::stepping();
        node.states[1].1 = b'T';
        assert_eq!(node.pass(300), [(4, stalled(1, 20, 3, StallCause::Stopped))]);
        node.states[1].1 = b'S';
        let back = NodeReport::RankRecovered { rank: Rank(1) };
        assert_eq!(node.pass(1), [(1, back)]);
        node.step(&[0, 1], 21);
        assert_eq!(node.pass(30), []);
    }

    #[test]
    fn the_rank_at_the_earlier_step_is_reported() {
        let mut node = Node::stepping();
        node.step(&[0], 21);
        assert_eq!(node.pass(300), [(59, stalled(1, 20, 60, StallCause::NoStep))]);
        node.step(&[1], 21);
        let back = NodeReport::RankRecovered { rank: Rank(1) };
        assert_eq!(node.pass(1), [(1, back)]);
    }

    #[test]
    fn at_the_same_step_the_rank_with_fewer_collectives_is_reported_otherwise_both() {
        let mut node = Node::stepping();
        node.progress.collectives(0, "c0ffee", 41);
        node.progress.collectives(1, "c0ffee", 40);
        assert_eq!(node.pass(100), [(59, stalled(1, 20, 60, StallCause::NoStep))]);
        let mut node = Node::stepping();
        let both = [0, 1].map(|rank| (59, stalled(rank, 20, 60, StallCause::NoStep)));
        assert_eq!(node.pass(100), both);
    }

    #[test]
    fn slow_steps_and_the_time_after_the_first_step_have_longer_limits() {
        let mut node = Node::stepping();
        for step in 21..=40 {
            node.step(&[0, 1], step);
            assert_eq!(node.pass(20), []);
        }
        let (second, _) = node.pass(400).remove(0);
        assert_eq!(second, 10 * 20 - 20, "ten times its 20 s");
        let mut fresh = Node::stepping();
        fresh.progress = Progress::new(Limits::default());
        fresh.step(&[0, 1], 1);
        assert_eq!(fresh.pass(1_000)[0].0, 600);
    }

    #[test]
    fn a_rank_blocked_in_the_kernel_is_reported_only_after_its_limit() {
        let mut node = Node::stepping();
        node.states[0].1 = b'D';
        for step in 21..=40 {
            // A slow disk: the process is blocked at every check, but makes progress.
            node.step(&[0, 1], step);
            assert_eq!(node.pass(10), []);
        }
        let reports = node.pass(100);
        assert_eq!(reports, [(20, stalled(0, 40, 30, StallCause::Uninterruptible))]);
    }

    #[test]
    fn a_new_cause_is_reported_and_the_end_of_a_rank_ends_the_watch() {
        let mut node = Node::stepping();
        node.step(&[0], 21);
        node.pass(100);
        node.states[1].1 = b'T';
        let causes: Vec<_> = node.pass(10).into_iter().map(|(_, report)| report).collect();
        assert_eq!(causes, [stalled(1, 20, 3, StallCause::Stopped)]);
        let mut node = Node::stepping();
        node.progress.leaves(0);
        node.progress.leaves(1);
        assert_eq!(node.pass(300), []);
    }

    #[test]
    fn time_in_which_the_machine_was_suspended_is_no_stall() {
        let mut node = Node::stepping();
        node.now += Duration::from_secs(3_600);
        assert_eq!(node.pass(50), []);
        node.step(&[0, 1], 21);
        assert_eq!(node.pass(50), []);
    }
}
