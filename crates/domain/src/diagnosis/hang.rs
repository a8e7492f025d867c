//! A run that does not advance, and the rank that keeps it from doing so.
//!
//! ```text
//! nothing moves for 1.5 steps ─▶ stacks of who does not wait ─┐
//! nothing moves for 2.5 steps ─▶ Flight Recorders of all ─────┴─▶ verdict: ended, stopped, in the kernel, missing in an operation, …
//! ```
//! Nothing is said while any rank moves, and nothing when no rank waits for others.

mod report;
mod stacks;
mod still;
mod suspects;

use self::report::{Suspects, alone_finding, hang_finding, kernel_finding, nameless};
use self::stacks::{Doing, Stacks};
use self::still::Still;
pub(super) use self::still::View;
use self::suspects::{all_enqueued, by_kernel, by_pages};
use crate::diagnosis::exchange::Question;
use crate::diagnosis::finding::Cause;
use crate::diagnosis::found::{Found, Who};
use crate::diagnosis::input::{FlightAnswer, Phase, StackAnswer};
use crate::diagnosis::members::Members;
use crate::diagnosis::wait_graph::{self, Waits};
use crate::ident::Rank;
use crate::time::TimestampMs;

/// How long answers are waited for.
const FLIGHT_WITHIN_MS: i64 = 4_000;
/// Ranks whose stacks are asked for.
const ASKED_MAX: usize = 16;

/// The analyser.
#[derive(Debug, Clone, Default)]
pub(super) struct Hang {
    suspicion: Option<Suspicion>,
    longest_alone_s: f64,
}

/// From the first look until something moves again.
#[derive(Debug, Clone, Default)]
struct Suspicion {
    flight_asked_ms: Option<TimestampMs>,
    flight: Option<Waits>,
    stacks: Stacks,
    alone_s: f64,
}

impl Hang {
    pub(super) fn take_flight(&mut self, view: &View<'_>, answers: &[FlightAnswer]) {
        let Some(suspicion) = &mut self.suspicion else {
            return;
        };
        let may_wait = |rank: Rank| {
            let seat = view.members.place(rank).map(|place| &view.seats[place]);
            seat.is_none_or(|seat| {
                !matches!(seat.phase(), Some(Phase::Data | Phase::Save | Phase::Host)) || is_nccl(answers)
            })
        };
        suspicion.flight = Some(wait_graph::read(answers, may_wait));
    }

    pub(super) fn take_stacks(&mut self, members: &Members, answers: Vec<StackAnswer>) {
        let Some(suspicion) = &mut self.suspicion else {
            return;
        };
        suspicion.stacks.take(members, answers);
    }

    pub(super) fn advance(&mut self, view: &View<'_>, questions: &mut Vec<Question>) -> Option<Found> {
        let still = view.still().filter(|still| still.seconds >= view.look_after_s());
        let Some(still) = still else {
            self.close();
            return None;
        };
        let mut suspicion = self.suspicion.take().unwrap_or_default();
        let found = suspicion.advance(view, &still, self.longest_alone_s, questions);
        self.suspicion = Some(suspicion);
        found
    }

    fn close(&mut self) {
        if let Some(suspicion) = self.suspicion.take() {
            self.longest_alone_s = self.longest_alone_s.max(suspicion.alone_s);
        }
    }
}

fn is_nccl(answers: &[FlightAnswer]) -> bool {
    let mut groups = answers
        .iter()
        .filter_map(|answer| answer.digest.as_ref())
        .flat_map(|digest| &digest.groups);
    groups.any(|group| group.backend == "nccl")
}

impl Suspicion {
    fn advance(
        &mut self,
        view: &View<'_>,
        still: &Still,
        longest_alone_s: f64,
        questions: &mut Vec<Question>,
    ) -> Option<Found> {
        let has_waiters = !still.waiters.is_empty();
        if has_waiters {
            self.look(view, still, questions);
        }
        let after_s = if has_waiters {
            view.suspicion_after_s()
        } else {
            view.hidden_after_s()
        };
        if still.seconds < after_s {
            return None;
        }
        if has_waiters && let Some(suspects) = by_kernel(view, still) {
            return Some(kernel_finding(view, still, &suspects));
        }
        if self.flight_asked_ms.is_none() {
            self.flight_asked_ms = Some(view.now_ms);
            questions.push(Question::Flight {
                ranks: view.rank_set(&still.alive),
            });
        }
        let is_overdue = self
            .flight_asked_ms
            .is_some_and(|asked| view.now_ms - asked >= FLIGHT_WITHIN_MS);
        if self.flight.is_none() && !is_overdue {
            return None;
        }
        match self.suspects(view, still) {
            Ok(suspects) => self.judge(view, still, suspects, longest_alone_s, questions),
            Err(found) => found.map(|found| *found),
        }
    }

    /// Asks early for the stacks of those that do not wait; of DDP's ranks in the backward pass no page tells which of them do.
    fn look(&mut self, view: &View<'_>, still: &Still, questions: &mut Vec<Question>) {
        let unsure = still.waiters.iter().copied();
        let unsure: Vec<usize> = unsure
            .filter(|place| !view.seats[*place].waits() && view.seats[*place].page.is_some())
            .collect();
        let suspects = if still.others.is_empty() {
            &unsure
        } else {
            &still.others
        };
        if (1..=ASKED_MAX).contains(&suspects.len()) {
            self.stacks.ask(view, still, suspects, questions);
        }
    }

    /// Who keeps the others waiting; or the finding that names no one, if there is one.
    fn suspects(&self, view: &View<'_>, still: &Still) -> Result<Suspects, Option<Box<Found>>> {
        let waits_by_page = still.waiters.iter().any(|place| view.seats[*place].waits());
        match &self.flight {
            Some(Waits::Culprits {
                ranks,
                cause,
                unfinished,
            }) => Ok(Suspects {
                places: view.places(ranks),
                cause: cause.clone(),
                unfinished: Some(unfinished.clone()),
            }),
            Some(Waits::Sides {
                sides,
                cause,
                unfinished,
            }) => {
                let sides = sides.iter().map(|side| side.iter().copied().collect()).collect();
                Err(Some(Box::new(nameless(
                    view,
                    still,
                    Who::Sides(sides),
                    cause.clone(),
                    Some(unfinished),
                ))))
            }
            Some(Waits::AllEnqueued {
                not_started,
                silent,
                unfinished,
            }) => all_enqueued(view, still, not_started, silent, unfinished),
            Some(Waits::Nothing) if !waits_by_page => Err(None),
            Some(Waits::Nothing | Waits::NoAnswers) | None => by_pages(view, still),
        }
    }

    fn judge(
        &mut self,
        view: &View<'_>,
        still: &Still,
        suspects: Suspects,
        longest_alone_s: f64,
        questions: &mut Vec<Question>,
    ) -> Option<Found> {
        let can_be_alone = matches!(suspects.cause, Cause::NotEnqueued);
        if !can_be_alone || suspects.places.len() > ASKED_MAX {
            return Some(hang_finding(view, still, suspects, Vec::new()));
        }
        self.stacks.ask(view, still, &suspects.places, questions);
        let doing: Vec<(usize, Doing)> = suspects
            .places
            .iter()
            .map(|place| (*place, self.stacks.doing(view, *place)))
            .collect();
        if doing.iter().any(|(_, doing)| *doing == Doing::Pending) {
            return None;
        }
        let stuck: Vec<usize> = doing
            .iter()
            .filter(|(_, doing)| !matches!(doing, Doing::Work(_)))
            .map(|(place, _)| *place)
            .collect();
        if stuck.is_empty() {
            self.alone_s = still.seconds;
            let at = doing.iter().find_map(|(_, doing)| match doing {
                Doing::Work(at) => Some(*at),
                _ => None,
            });
            let witnesses = self.stacks.witnesses(view, &suspects.places);
            let found = alone_finding(view, still, suspects, at, longest_alone_s, witnesses);
            return Some(found);
        }
        let all_are = |what: Doing| {
            let mut stuck = doing.iter().filter(|(_, doing)| !matches!(doing, Doing::Work(_)));
            stuck.all(|(_, doing)| *doing == what)
        };
        let witnesses = self.stacks.witnesses(view, &stuck);
        let suspects = Suspects {
            places: stuck,
            cause: if all_are(Doing::HoldsInterpreter) {
                Cause::HoldsInterpreter
            } else if all_are(Doing::Ends) {
                Cause::Ended
            } else {
                suspects.cause
            },
            ..suspects
        };
        Some(hang_finding(view, still, suspects, witnesses))
    }
}
