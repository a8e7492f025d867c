//! The time between two changes of a run: some attempts, cut where a change in place was made.
//!
//! ```text
//!  attempt 1 ─────────────────┬──────┬────── attempt 2 ────── attempt 3, with another knob ──────
//!      before the change      │      │        since the change      │
//!                   asked for ┘      └ all ranks have it            └ the next change
//! ```

use domain::run::knob::{Change, ChangeId, InPlaceChange, InPlaceState, KnobAnswer};
use domain::run::state::{Attempt, Machine};
use domain::time::TimestampMs;

/// Length of the window that is read on each side: one sample per second and a burst, four series of one rank.
const WINDOW_MS: i64 = 30 * 60_000;
/// The last samples of an attempt arrive some seconds after its end.
const LATE_MS: i64 = 10_000;

/// The span of time that is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from_ms: TimestampMs,
    pub(super) to_ms: TimestampMs,
    pub(super) ended: bool,
}

impl Span {
    pub(super) fn window_ms(&self) -> i64 {
        (self.to_ms - self.from_ms).max(1)
    }
}

/// A cut among a run's attempts: the bound of a range of attempts, and a time if the cut is in the middle of the attempt at that bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    at: usize,
    ms: Option<TimestampMs>,
}

impl Cut {
    pub(super) fn at(at: usize) -> Self {
        Self { at, ms: None }
    }
}

/// A change and its position.
pub(super) struct AppliedChange<'a> {
    pub(super) id: ChangeId,
    pub(super) change: &'a Change,
    /// The index of its attempt.
    pub(super) at: usize,
    live: Option<&'a InPlaceChange>,
    /// Some ranks have not taken the change over yet.
    pub(super) waits: bool,
}

impl AppliedChange<'_> {
    /// Returns true if the change was made in running ranks.
    pub(super) fn is_in_place(&self) -> bool {
        self.live.is_some()
    }

    /// Returns true if another change limits the time before or after this one. A change in place does not change what is computed. So it
    /// does not limit a change that made a new attempt, whose memory and losses show in the attempt's first steps, unless it reverts that
    /// change.
    pub(super) fn is_cut_by(&self, other: &AppliedChange<'_>) -> bool {
        self.is_in_place() || !other.is_in_place() || other.change.reverted_change() == Some(self.id)
    }

    /// The end of the time before the change.
    pub(super) fn until(&self) -> Cut {
        match self.live {
            None => Cut::at(self.at),
            Some(live) => Cut {
                at: self.at + 1,
                ms: Some(live.asked_ms),
            },
        }
    }

    /// The start of the time in which all ranks have the change.
    pub(super) fn since(&self) -> Cut {
        match self.live {
            None => Cut::at(self.at),
            Some(live) => Cut {
                at: self.at,
                ms: Some(live.settled_ms.unwrap_or(live.asked_ms)),
            },
        }
    }

    /// Returns the answers of the ranks to the change.
    pub(super) fn answers(&self, since: &[Attempt]) -> Vec<KnobAnswer> {
        let behind = usize::from(self.live.is_some()).min(since.len());
        let of_attempts = since[behind..].iter().flat_map(|attempt| &attempt.knobs.answers);
        let live = self.live.iter().flat_map(|live| &live.answers);
        live.chain(of_attempts).cloned().collect()
    }
}

/// The attempts between two cuts.
pub(super) struct AttemptRange<'a> {
    pub(super) attempts: &'a [Attempt],
    from_ms: Option<TimestampMs>,
    to_ms: Option<TimestampMs>,
}

impl<'a> AttemptRange<'a> {
    pub(super) fn new(machine: &'a Machine, from: Cut, to: Cut) -> Self {
        Self {
            attempts: machine.attempts.get(from.at..to.at).unwrap_or_default(),
            from_ms: from.ms,
            to_ms: to.ms,
        }
    }

    pub(super) fn of(attempt: &'a Attempt) -> Self {
        Self {
            attempts: std::slice::from_ref(attempt),
            from_ms: None,
            to_ms: None,
        }
    }

    /// Returns the end of the range: the state just before something was changed.
    pub(super) fn latest(&self, now_ms: TimestampMs) -> Span {
        let span = self.whole(now_ms);
        Span {
            from_ms: span.from_ms.max(span.to_ms - WINDOW_MS),
            ..span
        }
    }

    /// Returns the beginning of the range.
    pub(super) fn earliest(&self, now_ms: TimestampMs) -> Span {
        let span = self.whole(now_ms);
        let to_ms = span.to_ms.min(span.from_ms + WINDOW_MS);
        Span {
            ended: span.ended || to_ms < span.to_ms,
            to_ms,
            ..span
        }
    }

    fn whole(&self, now_ms: TimestampMs) -> Span {
        let begun = self
            .attempts
            .iter()
            .find_map(|attempt| attempt.placement.placed_ms);
        let begun = begun.or(self.attempts.first().map(|attempt| attempt.started_ms));
        let ended_ms = self.attempts.last().and_then(|attempt| attempt.ended_ms);
        // An attempt that ended meanwhile ended before the cut.
        let ended_ms = self
            .to_ms
            .or(ended_ms)
            .map(|to_ms| to_ms.min(ended_ms.unwrap_or(to_ms)));
        let to_ms = ended_ms.unwrap_or(now_ms);
        Span {
            from_ms: self.from_ms.or(begun).unwrap_or(to_ms),
            to_ms,
            ended: ended_ms.is_some_and(|ended| now_ms - ended > LATE_MS),
        }
    }
}

/// Returns all changes that were made, in their order.
pub(super) fn changes(machine: &Machine) -> impl Iterator<Item = AppliedChange<'_>> {
    machine.attempts.iter().enumerate().flat_map(|(at, attempt)| {
        let own = attempt.knobs.change.as_deref().map(|change| (0, change, None));
        let live = attempt.knobs.live.iter().filter(|live| live.is_made());
        let live = live.map(|live| (live.no, &live.change, Some(live)));
        own.into_iter()
            .chain(live)
            .map(move |(no, change, live)| AppliedChange {
                id: ChangeId {
                    attempt: attempt.no,
                    live: no,
                },
                change,
                at,
                live,
                waits: live.is_some_and(|live| live.state == InPlaceState::Asked),
            })
    })
}

#[cfg(test)]
mod tests {
    use domain::ident::{AttemptNo, RunId};
    use domain::run::spec::Spec;
    use domain::run::state::{AttemptKnobs, Placement};

    use super::*;

    /// When an attempt was placed, started and ended, and whether it changed a knob.
    type Given = (Option<i64>, i64, Option<i64>, bool);

    fn machine(attempts: &[Given]) -> Machine {
        let id = RunId::new("r").expect("a name");
        let (mut machine, _) = Machine::submit(id, Spec::default(), 0);
        let first = machine.attempts[0].clone();
        let attempt = |(n, &(placed_ms, started_ms, ended_ms, changed)): (u32, &Given)| Attempt {
            no: AttemptNo(n),
            started_ms,
            ended_ms,
            placement: Placement {
                placed_ms,
                ..Placement::default()
            },
            knobs: AttemptKnobs {
                change: changed.then(Box::default),
                ..AttemptKnobs::default()
            },
            ..first.clone()
        };
        machine.attempts = (1..).zip(attempts).map(attempt).collect();
        machine
    }

    #[test]
    fn each_side_is_read_near_the_change() {
        let hour = 3_600_000;
        let run = machine(&[
            (Some(10), 0, Some(hour), false),
            (Some(hour + 20), hour, Some(hour + 500), true),
            (Some(hour + 900), hour + 600, None, false),
            (Some(2 * hour), 2 * hour, None, true),
        ]);
        let applied: Vec<usize> = changes(&run).map(|applied| applied.at).collect();
        assert_eq!(applied, [1, 3]);
        let span = |from_ms, to_ms, ended| Span {
            from_ms,
            to_ms,
            ended,
        };
        let before = AttemptRange::new(&run, Cut::at(0), Cut::at(1));
        let since = AttemptRange::new(&run, Cut::at(1), Cut::at(3));
        assert_eq!(before.latest(3 * hour), span(hour - WINDOW_MS, hour, true));
        assert_eq!(
            before.latest(hour + 5),
            span(hour - WINDOW_MS, hour, false),
            "samples may come"
        );
        assert_eq!(since.earliest(hour + 950), span(hour + 20, hour + 950, false));
        assert_eq!(
            since.earliest(3 * hour),
            span(hour + 20, hour + 20 + WINDOW_MS, true)
        );
    }

    #[test]
    fn a_change_in_place_splits_its_attempt_at_its_request_and_at_the_last_ranks_answer() {
        let mut run = machine(&[(Some(10), 0, None, false)]);
        let live = |no, state, asked_ms, settled_ms| InPlaceChange {
            no,
            state,
            asked_ms,
            settled_ms,
            ..InPlaceChange::default()
        };
        run.attempts[0].knobs.live = vec![
            live(1, InPlaceState::Taken, 60_000, Some(62_000)),
            live(2, InPlaceState::Refused, 70_000, Some(71_000)),
            live(3, InPlaceState::Asked, 90_000, None),
        ];
        let applied: Vec<AppliedChange<'_>> = changes(&run).collect();
        assert_eq!(
            applied.iter().map(|applied| applied.id.live).collect::<Vec<_>>(),
            [1, 3]
        );
        assert!(!applied[0].waits && applied[1].waits);
        let before = AttemptRange::new(&run, Cut::at(0), applied[0].until()).latest(100_000);
        assert_eq!((before.from_ms, before.to_ms, before.ended), (10, 60_000, true));
        let since = AttemptRange::new(&run, applied[0].since(), applied[1].until()).earliest(95_000);
        assert_eq!((since.from_ms, since.to_ms, since.ended), (62_000, 90_000, false));
        // The attempt ends, and another one continues with the change.
        run.attempts[0].ended_ms = Some(85_000);
        run.attempts[0].knobs.live.truncate(2);
        let mut next = Attempt {
            started_ms: 86_000,
            ended_ms: None,
            ..run.attempts[0].clone()
        };
        next.knobs.live.clear();
        run.attempts.push(next);
        let applied: Vec<AppliedChange<'_>> = changes(&run).collect();
        let since = AttemptRange::new(&run, applied[0].since(), Cut::at(2)).earliest(99_000);
        assert_eq!((since.from_ms, since.to_ms, since.ended), (62_000, 99_000, false));
    }

    #[test]
    fn a_revert_in_place_ends_its_change_and_other_changes_in_place_do_not() {
        let mut run = machine(&[(Some(10), 0, Some(50), false), (Some(60), 55, None, true)]);
        let live = |no, reverts| InPlaceChange {
            no,
            state: InPlaceState::Taken,
            change: Change {
                reverts,
                ..Change::default()
            },
            ..InPlaceChange::default()
        };
        run.attempts[1].knobs.live = vec![live(1, None), live(2, Some(AttemptNo(2)))];
        let applied: Vec<AppliedChange<'_>> = changes(&run).collect();
        let cut: Vec<bool> = applied[1..]
            .iter()
            .map(|other| applied[0].is_cut_by(other))
            .collect();
        assert_eq!(cut, [false, true]);
        assert!(applied[1].is_cut_by(&applied[2]));
    }
}
