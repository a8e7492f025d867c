//! Whether each rank still gets on: what the probe says of its steps, and what the kernel says of its process.
//!
//! ```text
//!            SIGSTOP, debugger                    3 s ──▶ stopped
//!  stepping ──▶ waits in the kernel (D)          30 s ──▶ uninterruptible
//!            ──▶ no step, and nobody here before it ──▶ no_step, after max(60 s, 10 × the median of its recent steps)
//! ```
//! One rank that stands still makes all others wait for it in the next collective. So a rank that only waits is not
//! reported: not while another one here is stopped or hangs in the kernel, nor while another one is at an earlier step, has
//! put fewer collectives into its stream, or still moves. Who of several nodes is to blame is decided where all are seen.
//!
//! A stall is reported once, again when its cause changes, and taken back when the rank gets on. Time comes as a value.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::state::{NodeReport, StallCause};

/// A debugger looks for longer than this; a scheduler's hiccup is shorter.
const STOPPED_FOR: Duration = Duration::from_secs(3);
/// A slow disk makes a process wait in the kernel again and again, but not at every look for this long.
const UNINTERRUPTIBLE_FOR: Duration = Duration::from_secs(30);
/// No step for this long is no stall, however quick the steps before were: an evaluation or a checkpoint takes its time.
const NO_STEP_FOR: Duration = Duration::from_secs(60);
/// Steps that take long may take this much longer than the median of the last ones.
const MEDIANS: u32 = 10;
/// While no step has been timed (the first may be followed by a compilation), the floor counts so many times.
const FLOORS_UNTIMED: u32 = 10;
/// Steps whose times are remembered.
const RECENT: usize = 16;
/// Two looks are one second apart. What lies further apart did so because this process stood still, and then so did the ranks:
/// a machine that was suspended, a frozen container.
const LOOKS_APART_MAX: Duration = Duration::from_secs(5);
/// Communicators of a rank that are remembered; a rank has a handful.
const COMMUNICATORS_MAX: usize = 64;

/// After how long a rank is said to stand still.
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

/// All ranks of this node, by their place in the world.
#[derive(Debug)]
pub(crate) struct Progress {
    limits: Limits,
    ranks: BTreeMap<u32, Pace>,
    looked: Option<Instant>,
}

/// How one rank gets on.
#[derive(Debug, Default)]
struct Pace {
    step: Option<u64>,
    /// When it last gave a sign of getting on.
    moved: Option<Instant>,
    /// Times between its last steps, a ring.
    recent: Vec<Duration>,
    next: usize,
    /// Since when it is stopped or waits in the kernel, as far as looks tell.
    held: Option<(StallCause, Instant)>,
    /// What was reported.
    said: Option<StallCause>,
    /// It said that it ends.
    leaves: bool,
    /// Collectives put into the stream, by communicator.
    collectives: BTreeMap<String, u64>,
}

// === what is heard ===

impl Progress {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ranks: BTreeMap::new(),
            looked: None,
        }
    }

    /// A rank finished a step.
    pub(crate) fn stepped(&mut self, rank: u32, step: u64, now: Instant) {
        let pace = self.ranks.entry(rank).or_default();
        if let (Some(before), Some(_)) = (pace.moved, pace.step) {
            pace.remember(now.saturating_duration_since(before));
        }
        pace.step = Some(step);
        pace.moved = Some(now);
    }

    /// A rank gave another sign of getting on, like a part of a checkpoint.
    pub(crate) fn moved(&mut self, rank: u32, now: Instant) {
        if let Some(pace) = self.ranks.get_mut(&rank) {
            pace.moved = Some(now);
        }
    }

    /// A rank is about to end: no step will follow.
    pub(crate) fn leaves(&mut self, rank: u32) {
        self.ranks.entry(rank).or_default().leaves = true;
    }

    /// How many collectives a rank has put into a communicator's stream so far.
    pub(crate) fn collectives(&mut self, rank: u32, communicator: &str, count: u64) {
        let known = &mut self.ranks.entry(rank).or_default().collectives;
        if known.len() < COMMUNICATORS_MAX || known.contains_key(communicator) {
            known.insert(communicator.to_owned(), count);
        }
    }

    /// The last step a rank finished.
    pub(crate) fn last_step(&self, rank: u32) -> Option<u64> {
        self.ranks.get(&rank)?.step
    }
}

impl Pace {
    fn remember(&mut self, took: Duration) {
        if self.recent.len() < RECENT {
            self.recent.push(took);
        } else {
            self.recent[self.next % RECENT] = took;
        }
        self.next += 1;
    }

    fn patience(&self, floor: Duration) -> Duration {
        if self.recent.is_empty() {
            return floor * FLOORS_UNTIMED;
        }
        let mut sorted = self.recent.clone();
        sorted.sort_unstable();
        floor.max(sorted[sorted.len() / 2] * MEDIANS)
    }

    /// How long it has not moved, when that is longer than it may.
    fn stands_still(&self, floor: Duration, now: Instant) -> Option<Duration> {
        let still = now.saturating_duration_since(self.moved?);
        (still >= self.patience(floor)).then_some(still)
    }

    /// Whether it has put fewer collectives into a communicator that both share.
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

// === what is seen ===

impl Progress {
    /// Takes the states of the living ranks' processes, as `/proc/PID/stat` names them, about once a second; returns what is to
    /// be reported.
    pub(crate) fn look(&mut self, living: &[(u32, u8)], now: Instant) -> Vec<NodeReport> {
        self.forgive_standstill(now);
        for (rank, state) in living {
            self.ranks.entry(*rank).or_default().see(*state, now);
        }
        let causes: Vec<_> = living
            .iter()
            .map(|(rank, _)| (*rank, self.cause(*rank, living, now)))
            .collect();
        let news = causes.into_iter().filter_map(|(rank, cause)| {
            let pace = self.ranks.get_mut(&rank)?;
            pace.news(rank, cause)
        });
        news.collect()
    }

    /// Time in which this process did not run either is nobody's stall.
    fn forgive_standstill(&mut self, now: Instant) {
        let apart = self
            .looked
            .map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        self.looked = Some(now);
        if apart <= LOOKS_APART_MAX {
            return;
        }
        for pace in self.ranks.values_mut() {
            let later = |at: Instant| (at + apart).min(now);
            pace.moved = pace.moved.map(later);
            pace.held = pace.held.take().map(|(cause, since)| (cause, later(since)));
        }
    }

    fn cause(&self, rank: u32, living: &[(u32, u8)], now: Instant) -> Option<(StallCause, Duration)> {
        let pace = self.ranks.get(&rank)?;
        if let Some((cause, since)) = &pace.held {
            let held = now.saturating_duration_since(*since);
            let patience = match cause {
                StallCause::Uninterruptible => self.limits.uninterruptible,
                _ => self.limits.stopped,
            };
            // Until then, what was said of it stays.
            let cause = Some(cause).filter(|_| held >= patience).or(pace.said.as_ref());
            return cause.map(|cause| (cause.clone(), held));
        }
        let step = pace.step.filter(|_| !pace.leaves)?;
        let still = pace.stands_still(self.limits.no_step, now)?;
        let others = living
            .iter()
            .filter_map(|(other, _)| (*other != rank).then(|| self.ranks.get(other))?);
        let waits_for = |other: &Pace| {
            let earlier = other.step.is_some_and(|of_other| of_other < step);
            let level = other.step == Some(step);
            let moves = other.stands_still(self.limits.no_step, now).is_none();
            other.held.is_some() || earlier || (level && (moves || other.lags(pace)))
        };
        (!others.into_iter().any(waits_for)).then_some((StallCause::NoStep, still))
    }
}

impl Pace {
    fn see(&mut self, state: u8, now: Instant) {
        let cause = match state {
            b'T' | b't' => Some(StallCause::Stopped),
            b'D' => Some(StallCause::Uninterruptible),
            _ => None,
        };
        let before = self.held.take();
        self.held = cause.map(|cause| match &before {
            // A step in between: it had only been caught waiting twice.
            Some((same, since)) if *same == cause => {
                (cause, self.moved.map_or(*since, |moved| moved.max(*since)))
            }
            _ => (cause, now),
        });
        if let (Some((StallCause::Stopped, _)), None) = (&before, &self.held) {
            // It could not step while it was stopped; from now on it can.
            self.moved = self.moved.map(|_| now);
        }
    }

    fn news(&mut self, rank: u32, cause: Option<(StallCause, Duration)>) -> Option<NodeReport> {
        let rank = Rank(rank);
        let now_said = cause.as_ref().map(|(cause, _)| cause.clone());
        let before = std::mem::replace(&mut self.said, now_said);
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
        /// Two ranks that step once a second, twenty times.
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

        /// Looks every second; returns what was said, with the second.
        fn pass(&mut self, seconds: u64) -> Vec<(u64, NodeReport)> {
            let mut said = Vec::new();
            for second in 1..=seconds {
                self.now += Duration::from_secs(1);
                let news = self.progress.look(&self.states, self.now);
                said.extend(news.into_iter().map(|report| (second, report)));
            }
            said
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
    fn a_stopped_rank_is_told_in_seconds_and_those_that_wait_for_it_never() {
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
    fn who_is_at_the_earlier_step_is_to_blame() {
        let mut node = Node::stepping();
        node.step(&[0], 21);
        assert_eq!(node.pass(300), [(59, stalled(1, 20, 60, StallCause::NoStep))]);
        node.step(&[1], 21);
        let back = NodeReport::RankRecovered { rank: Rank(1) };
        assert_eq!(node.pass(1), [(1, back)]);
    }

    #[test]
    fn of_two_at_the_same_step_the_one_with_fewer_collectives_is_to_blame_else_both() {
        let mut node = Node::stepping();
        node.progress.collectives(0, "c0ffee", 41);
        node.progress.collectives(1, "c0ffee", 40);
        assert_eq!(node.pass(100), [(59, stalled(1, 20, 60, StallCause::NoStep))]);
        let mut node = Node::stepping();
        let both = [0, 1].map(|rank| (59, stalled(rank, 20, 60, StallCause::NoStep)));
        assert_eq!(node.pass(100), both);
    }

    #[test]
    fn slow_steps_and_a_first_one_before_a_compilation_have_their_time() {
        let mut node = Node::stepping();
        for step in 21..=40 {
            node.step(&[0, 1], step);
            assert_eq!(node.pass(20), []);
        }
        let (said, _) = node.pass(400).remove(0);
        assert_eq!(said, 10 * 20 - 20, "ten times its 20 s");
        let mut fresh = Node::stepping();
        fresh.progress = Progress::new(Limits::default());
        fresh.step(&[0, 1], 1);
        assert_eq!(fresh.pass(1_000)[0].0, 600);
    }

    #[test]
    fn the_kernel_may_hold_a_rank_for_long_but_not_for_ever() {
        let mut node = Node::stepping();
        node.states[0].1 = b'D';
        for step in 21..=40 {
            // A slow disk: it is seen waiting at every look, and gets on.
            node.step(&[0, 1], step);
            assert_eq!(node.pass(10), []);
        }
        let said = node.pass(100);
        assert_eq!(said, [(20, stalled(0, 40, 30, StallCause::Uninterruptible))]);
    }

    #[test]
    fn another_cause_is_told_anew_and_the_end_of_a_rank_ends_the_watch() {
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
    fn a_machine_that_slept_did_not_stall() {
        let mut node = Node::stepping();
        node.now += Duration::from_secs(3_600);
        assert_eq!(node.pass(50), []);
        node.step(&[0, 1], 21);
        assert_eq!(node.pass(50), []);
    }
}
