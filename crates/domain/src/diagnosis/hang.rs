//! Finds a hang, and the rank that causes it.
//!
//! ```text
//! nothing moves for 1.5 steps ─▶ stacks of ranks that do not wait ─┐
//! nothing moves for 2.5 steps ─▶ Flight Recorders of all ranks ────┴─▶ cause: ended, stopped, in the kernel, missing in an operation, …
//! ```
//! There is no finding while any rank moves, or if no rank waits for others. With NCCL, operations are unfinished while healthy GPUs work,
//! and the ranks do not answer at the same instant. Therefore an operation counts only if a later reading shows it again.
//!
//! If a node becomes blind during a hang, for example because its agent restarts, the finding is kept for `KEPT_S`, unless a rank moves. A hang
//! that was found before the start of the collector is kept until a rank moves: what was known of the ranks is lost, so another reading could
//! give another cause.

mod inactivity;
mod report;
mod stacks;
mod suspects;

use self::inactivity::Inactivity;
pub(super) use self::inactivity::View;
use self::report::{
    Suspects, alone_finding, finding_without_culprit, hang_finding, hang_values, kernel_finding,
};
use self::stacks::{Stacks, SuspectActivity};
use self::suspects::{all_enqueued, by_earlier_end, by_flight, by_kernel, by_pages};
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding};
use crate::diagnosis::finding::{Cause, FindingKind};
use crate::diagnosis::input::{FlightAnswer, Phase, StackAnswer};
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::messages::RankRequest;
use crate::diagnosis::rank_status::RankStatus;
use crate::diagnosis::wait_graph::{self, OperationId, WaitGraphResult};
use crate::ident::Rank;
use crate::time::TimestampMs;

/// How long to wait for answers.
const FLIGHT_WITHIN_MS: i64 = 4_000;
/// Time between two readings of NCCL's operations, and maximum number of readings. If each shows another operation, none stands still.
const FLIGHT_AGAIN_MS: i64 = 2_000;
const FLIGHTS_MAX: u32 = 4;
/// Maximum number of ranks whose stacks are requested.
const REQUESTED_MAX: usize = 16;
/// How long a finding is kept if nothing is received from a node. A restart of the agent takes less.
const KEPT_S: f64 = 60.0;
/// Maximum difference between two computed beginnings of the same hang.
const SAME_HANG_MS: i64 = 1_000;

/// The analyser of hangs.
#[derive(Debug, Clone, Default)]
pub(super) struct Hang {
    suspicion: Option<Suspicion>,
    longest_alone_s: f64,
    /// The last finding, if no node was blind when it was made.
    last_found: Option<DraftFinding>,
    earlier: Option<EarlierHang>,
}

/// A hang that was found before the start of the collector.
#[derive(Debug, Clone)]
struct EarlierHang {
    found: DraftFinding,
    /// Time of the first evaluation after the start.
    started_ms: Option<TimestampMs>,
}

/// A suspicion lasts from the first request until a rank moves again.
#[derive(Debug, Clone, Default)]
struct Suspicion {
    /// When it began, by the collector's clock.
    suspected_ms: TimestampMs,
    flight_requested_ms: Option<TimestampMs>,
    /// True if a rank once did not answer in time. Until all have answered, the pages decide.
    is_overdue: bool,
    flight: Option<WaitGraphResult>,
    /// Time from which the next reading may be requested, number of readings, and the operation in the last one. Only with NCCL.
    flight_due_ms: TimestampMs,
    flights: u32,
    last_operation: Option<OperationId>,
    stacks: Stacks,
    alone_s: f64,
    /// Culprits of the last hang that was found during this suspicion.
    named: Vec<usize>,
}

impl Hang {
    /// Continues a hang that was found before the start of the collector.
    pub(super) fn keep(&mut self, found: DraftFinding) {
        self.earlier = Some(EarlierHang {
            found,
            started_ms: None,
        });
    }

    /// Sets the longest time for which a rank worked alone before the start of the collector.
    pub(super) fn set_longest_alone(&mut self, seconds: f64) {
        self.longest_alone_s = seconds;
    }

    pub(super) fn take_flight(
        &mut self,
        view: &View<'_>,
        suspected_ms: TimestampMs,
        answers: &[FlightAnswer],
    ) {
        let Some(suspicion) = self.suspicion_of(suspected_ms) else {
            return;
        };
        let may_wait = |rank: Rank| {
            let status = view.members.place(rank).map(|place| &view.rank_statuses[place]);
            status.is_none_or(|status| {
                !matches!(status.phase(), Some(Phase::Data | Phase::Save | Phase::Host)) || is_nccl(answers)
            })
        };
        let result = wait_graph::read(answers, may_wait);
        let at_ms = answers.iter().map(|answer| answer.at_ms).max();
        match result.operation().filter(|_| is_nccl(answers)) {
            Some(operation) => suspicion.take_operation(operation, result, at_ms.unwrap_or_default()),
            None => suspicion.flight = Some(result),
        }
    }

    pub(super) fn take_stacks(
        &mut self,
        members: &Members,
        suspected_ms: TimestampMs,
        answers: Vec<StackAnswer>,
    ) {
        if let Some(suspicion) = self.suspicion_of(suspected_ms) {
            suspicion.stacks.take(members, answers);
        }
    }

    /// Returns the suspicion for which an answer was requested. `None` if it is over: the answer describes ranks that have moved since.
    fn suspicion_of(&mut self, suspected_ms: TimestampMs) -> Option<&mut Suspicion> {
        let suspicion = self.suspicion.as_mut();
        suspicion.filter(|suspicion| suspicion.suspected_ms == suspected_ms)
    }

    pub(super) fn advance(
        &mut self,
        view: &View<'_>,
        requests: &mut Vec<RankRequest>,
    ) -> Option<DraftFinding> {
        let inactivity = view.inactivity();
        if let Some(earlier) = &mut self.earlier {
            let found = earlier.advance(view, inactivity.as_ref());
            if found.is_some() {
                return found;
            }
            self.earlier = None;
        }
        let is_inactive = |inactivity: &Inactivity| inactivity.seconds >= view.stacks_after_s();
        let blind_s = view.shortest_blindness_s();
        let may_return = blind_s.is_some_and(|blind_s| blind_s <= KEPT_S);
        if may_return
            && inactivity.as_ref().is_none_or(is_inactive)
            && let Some(found) = &self.last_found
        {
            return Some(DraftFinding {
                is_kept: true,
                ..found.clone()
            });
        }
        let Some(inactivity) = inactivity.filter(is_inactive) else {
            self.close();
            return None;
        };
        let new = || Suspicion::new(view.now_ms);
        let mut suspicion = self.suspicion.take().unwrap_or_else(new);
        let found = suspicion.advance(view, &inactivity, self.longest_alone_s, requests);
        self.suspicion = Some(suspicion);
        self.last_found = found.clone().filter(|_| blind_s.is_none());
        found
    }

    fn close(&mut self) {
        self.last_found = None;
        if let Some(suspicion) = self.suspicion.take() {
            self.longest_alone_s = self.longest_alone_s.max(suspicion.alone_s);
        }
    }
}

impl EarlierHang {
    /// Returns the finding as long as no rank has moved since. Nodes may take `KEPT_S` to report again.
    fn advance(&mut self, view: &View<'_>, inactivity: Option<&Inactivity>) -> Option<DraftFinding> {
        let started_ms = *self.started_ms.get_or_insert(view.now_ms);
        let silent_s = view.shortest_blindness_s();
        let silent_s = silent_s.unwrap_or_else(|| seconds(view.now_ms - started_ms));
        let may_report = silent_s <= KEPT_S;
        let mut found = DraftFinding {
            is_kept: true,
            ..self.found.clone()
        };
        let Some(inactivity) = inactivity else {
            return may_report.then_some(found);
        };
        let is_same = inactivity.seconds >= view.stacks_after_s()
            && inactivity.since_ms <= found.since_ms + SAME_HANG_MS
            && (may_report || view.sees_all_nodes());
        found.lost_seconds = inactivity.seconds;
        found.values = hang_values(inactivity);
        is_same.then_some(found)
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
    fn new(suspected_ms: TimestampMs) -> Self {
        Self {
            suspected_ms,
            stacks: Stacks::new(suspected_ms),
            ..Self::default()
        }
    }

    /// Takes a reading of NCCL's operations, `operation` being the unfinished one.
    fn take_operation(&mut self, operation: OperationId, result: WaitGraphResult, at_ms: TimestampMs) {
        self.flights += 1;
        if self.last_operation.as_ref() == Some(&operation) {
            self.flight = Some(result);
        } else if self.flights >= FLIGHTS_MAX {
            self.flight = Some(WaitGraphResult::Nothing);
        } else {
            (self.flight_requested_ms, self.flight_due_ms) = (None, at_ms + FLIGHT_AGAIN_MS);
            self.last_operation = Some(operation);
        }
    }

    fn advance(
        &mut self,
        view: &View<'_>,
        inactivity: &Inactivity,
        longest_alone_s: f64,
        requests: &mut Vec<RankRequest>,
    ) -> Option<DraftFinding> {
        let found = self.find(view, inactivity, longest_alone_s, requests);
        if let Some(found) = &found
            && let DraftCulprit::Ranks(places) = &found.culprit
            && found.kind == FindingKind::Hang
            && !found.is_suspect()
        {
            self.named.clone_from(places);
        }
        found
    }

    fn find(
        &mut self,
        view: &View<'_>,
        inactivity: &Inactivity,
        longest_alone_s: f64,
        requests: &mut Vec<RankRequest>,
    ) -> Option<DraftFinding> {
        let has_waiters = !inactivity.waiters.is_empty();
        if has_waiters {
            self.request_stacks_early(view, inactivity, requests);
        }
        let after_s = if has_waiters {
            view.suspicion_after_s()
        } else {
            view.hidden_after_s()
        };
        if inactivity.seconds < after_s {
            return None;
        }
        if has_waiters && let Some(suspects) = by_kernel(view, inactivity, &self.named) {
            return Some(kernel_finding(view, inactivity, &suspects));
        }
        if self.flight_requested_ms.is_none() && view.now_ms >= self.flight_due_ms {
            self.flight_requested_ms = Some(view.now_ms);
            requests.push(RankRequest::Flight {
                suspected_ms: self.suspected_ms,
                ranks: view.rank_set(&inactivity.alive),
            });
        }
        self.is_overdue |= self
            .flight_requested_ms
            .is_some_and(|requested_ms| view.now_ms - requested_ms >= FLIGHT_WITHIN_MS);
        if self.flight.is_none() && !self.is_overdue {
            return None;
        }
        match self.suspects(view, inactivity) {
            Ok(suspects) => self.assess(view, inactivity, suspects, longest_alone_s, requests),
            Err(found) => found.map(|found| {
                let is_unknown = found.culprit == DraftCulprit::Unknown;
                let ended = by_earlier_end(view, inactivity).filter(|_| is_unknown);
                ended.map_or(*found, |ended| kernel_finding(view, inactivity, &ended))
            }),
        }
    }

    /// Requests early the stacks of the ranks that do not wait. If all may wait, any of them may be the culprit: in DDP's backward pass the
    /// page does not show whether a rank waits, and a rank may wait for a message that no rank sends.
    fn request_stacks_early(
        &mut self,
        view: &View<'_>,
        inactivity: &Inactivity,
        requests: &mut Vec<RankRequest>,
    ) {
        let mut suspects = inactivity.others.clone();
        if suspects.is_empty() {
            suspects = inactivity.waiters.clone();
            suspects.retain(|place| view.rank_statuses[*place].page.is_some());
        }
        if suspects.len() > REQUESTED_MAX {
            suspects.retain(|place| !view.rank_statuses[*place].waits());
        }
        if (1..=REQUESTED_MAX).contains(&suspects.len()) {
            self.stacks.request(view, inactivity, &suspects, requests);
        }
    }

    /// Returns the ranks that make the others wait. If none can be named, returns the finding without a culprit, if there is one.
    fn suspects(
        &self,
        view: &View<'_>,
        inactivity: &Inactivity,
    ) -> Result<Suspects, Option<Box<DraftFinding>>> {
        let waits_by_page = inactivity
            .waiters
            .iter()
            .any(|place| view.rank_statuses[*place].waits());
        match &self.flight {
            Some(WaitGraphResult::Culprits {
                ranks,
                cause,
                unfinished,
            }) => Ok(by_flight(view, inactivity, ranks, cause, unfinished)),
            Some(WaitGraphResult::Sides {
                sides,
                cause,
                unfinished,
            }) => {
                let sides = sides.iter().map(|side| side.iter().copied().collect()).collect();
                Err(Some(Box::new(finding_without_culprit(
                    view,
                    inactivity,
                    DraftCulprit::Sides(sides),
                    cause.clone(),
                    Some(unfinished),
                ))))
            }
            Some(WaitGraphResult::AllEnqueued {
                not_started,
                silent,
                unfinished,
            }) => all_enqueued(view, inactivity, not_started, silent, unfinished),
            Some(WaitGraphResult::Nothing) if !waits_by_page => Err(None),
            Some(WaitGraphResult::Nothing | WaitGraphResult::NoAnswers) | None => by_pages(view, inactivity),
        }
    }

    fn assess(
        &mut self,
        view: &View<'_>,
        inactivity: &Inactivity,
        suspects: Suspects,
        longest_alone_s: f64,
        requests: &mut Vec<RankRequest>,
    ) -> Option<DraftFinding> {
        let can_be_alone = matches!(suspects.cause, Cause::NotEnqueued);
        if !can_be_alone || suspects.places.len() > REQUESTED_MAX {
            return Some(hang_finding(view, inactivity, suspects, Vec::new()));
        }
        self.stacks.request(view, inactivity, &suspects.places, requests);
        let activity: Vec<(usize, SuspectActivity)> = suspects
            .places
            .iter()
            .map(|place| (*place, self.stacks.activity(view, *place)))
            .collect();
        if activity
            .iter()
            .any(|(_, activity)| *activity == SuspectActivity::Pending)
        {
            return None;
        }
        let stuck: Vec<usize> = activity
            .iter()
            .filter(|(_, activity)| !matches!(activity, SuspectActivity::Work(_)))
            .map(|(place, _)| *place)
            .collect();
        let places = suspects.places.iter();
        let is_starting = places
            .map(|place| &view.rank_statuses[*place])
            .all(RankStatus::is_before_first_step);
        // Before the first step, a rank may wait for files that another one downloads or unpacks.
        let may_wait_for_suspect = is_starting && stuck.len() < suspects.places.len();
        if stuck.is_empty() || may_wait_for_suspect {
            self.alone_s = inactivity.seconds;
            let at = activity.iter().find_map(|(_, activity)| match activity {
                SuspectActivity::Work(at) => Some(*at),
                _ => None,
            });
            let witnesses = self.stacks.witnesses(view, &suspects.places);
            let found = alone_finding(view, inactivity, suspects, at, longest_alone_s, witnesses);
            return Some(found);
        }
        if inactivity.seconds < view.stuck_after_s() {
            return None;
        }
        let all_are = |what: SuspectActivity| {
            let mut stuck = activity
                .iter()
                .filter(|(_, activity)| !matches!(activity, SuspectActivity::Work(_)));
            stuck.all(|(_, activity)| *activity == what)
        };
        let witnesses = self.stacks.witnesses(view, &stuck);
        let suspects = Suspects {
            places: stuck,
            cause: if all_are(SuspectActivity::HoldsInterpreter) {
                Cause::HoldsInterpreter
            } else if all_are(SuspectActivity::Ends) {
                Cause::Ended
            } else {
                suspects.cause
            },
            ..suspects
        };
        Some(hang_finding(view, inactivity, suspects, witnesses))
    }
}
