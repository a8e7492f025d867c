//! A run that does not advance, and the rank that keeps it from doing so.
//!
//! ```text
//! nothing moves for 1.5 steps ─▶ stacks of who does not wait ─┐
//! nothing moves for 2.5 steps ─▶ Flight Recorders of all ─────┴─▶ verdict: ended, stopped, in the kernel, missing in an operation, …
//! ```
//! Nothing is said while any rank moves, and nothing when no rank waits for others.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnosis::exchange::{Question, STACK_SAMPLES, STACK_SECONDS};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::found::{Found, WITNESSED_RANKS_MAX, Who, witness};
use crate::diagnosis::input::{FlightAnswer, Phase, ProcessCondition, StackAnswer};
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::resources::Usage;
use crate::diagnosis::seat::Seat;
use crate::diagnosis::spread::median;
use crate::diagnosis::wait_graph::{self, Unfinished, Waits};
use crate::event::Severity;
use crate::ident::Rank;
use crate::run::inspect::Frame;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Nothing has moved for this long, and for this many median steps: a hang, if a rank waits.
const SUSPICION_S: f64 = 5.0;
const SUSPICION_STEPS: f64 = 2.5;
/// The same for looking at stacks, which takes `STACK_SECONDS`.
const LOOK_S: f64 = 3.0;
const LOOK_STEPS: f64 = 1.5;
/// Before a step is known: models are loaded and compiled.
const FIRST_SUSPICION_S: f64 = 7.0;
const FIRST_LOOK_S: f64 = 3.5;
/// The first operations send whole models around: without a culprit nothing is said for this long.
const FIRST_NAMELESS_S: f64 = 120.0;
/// When no page shows a rank that waits, Flight Recorders are asked after this long, because a wait for a GPU does not show.
const HIDDEN_SUSPICION_S: f64 = 15.0;
const HIDDEN_SUSPICION_STEPS: f64 = 5.0;
/// How long answers are waited for.
const FLIGHT_WITHIN_MS: i64 = 4_000;
const STACKS_WITHIN_MS: i64 = (STACK_SECONDS as i64) * 1_000 + 3_000;
/// Ranks whose stacks are asked for.
const ASKED_MAX: usize = 16;
/// A process that uses less of a processor does nothing; one that uses more computes.
const IDLE_SHARE_MAX: f64 = 0.02;
const BUSY_SHARE_MIN: f64 = 0.5;
/// A GPU that is used more works.
const GPU_BUSY_MIN: f64 = 0.1;
/// A rank that works alone is a warning after this long, or after this many times the longest such time of the run.
const ALONE_S: f64 = 60.0;
const ALONE_TIMES: f64 = 3.0;
/// Network errors per second that count as a fault of the network.
const NETWORK_ERRORS_MIN: f64 = 1.0;

/// What the decision stands on.
pub(super) struct View<'a> {
    pub(super) members: &'a Members,
    pub(super) seats: &'a [Seat],
    pub(super) usage: &'a Usage,
    pub(super) median_step_s: Option<f64>,
    pub(super) now_ms: TimestampMs,
}

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
    stacks_asked: BTreeSet<usize>,
    stacks_asked_ms: Option<TimestampMs>,
    /// A rank that waits, asked beside the suspects: if it does not answer, stacks cannot be had.
    has_control: bool,
    stacks: BTreeMap<usize, Vec<Vec<Frame>>>,
    stacks_answered: bool,
    alone_s: f64,
}

/// What a suspect does, as far as it can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// The answer is not there yet.
    Pending,
    /// Something: it will come.
    Work(AloneAt),
    /// Nothing that moves it on.
    Nothing,
    /// Its stack could not be read while others' could.
    HoldsInterpreter,
    /// Its main thread has ended, and Python waits for other threads.
    Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AloneAt {
    Working,
    Saving,
    /// Code between steps, in which a script may wait for what it wants.
    HostCode,
}

/// Ranks that keep the others waiting, and by what that is known.
struct Suspects {
    places: Vec<usize>,
    cause: Cause,
    unfinished: Option<Unfinished>,
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
        suspicion.stacks_answered = true;
        for answer in answers {
            if let Some(place) = members.place(answer.rank) {
                suspicion.stacks.insert(place, answer.samples);
            }
        }
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

/// A run in which nothing moves.
struct Still {
    seconds: f64,
    since_ms: TimestampMs,
    since_step: Option<u64>,
    /// Ranks that are seen and whose process runs.
    alive: Vec<usize>,
    /// Of them, those that wait or may wait.
    waiters: Vec<usize>,
    /// Of them, those that do not.
    others: Vec<usize>,
}

impl View<'_> {
    /// Who is where, and for how long nothing has moved.
    fn still(&self) -> Option<Still> {
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

    fn look_after_s(&self) -> f64 {
        self.threshold(LOOK_S, LOOK_STEPS, FIRST_LOOK_S)
    }

    fn suspicion_after_s(&self) -> f64 {
        self.threshold(SUSPICION_S, SUSPICION_STEPS, FIRST_SUSPICION_S)
    }

    fn hidden_after_s(&self) -> f64 {
        self.threshold(HIDDEN_SUSPICION_S, HIDDEN_SUSPICION_STEPS, HIDDEN_SUSPICION_S)
    }

    fn rank_set(&self, places: &[usize]) -> RankSet {
        let mut ranks: Vec<Rank> = places.iter().map(|place| self.members.rank(*place)).collect();
        ranks.sort_unstable();
        ranks.into_iter().collect()
    }

    fn places(&self, ranks: &[Rank]) -> Vec<usize> {
        ranks
            .iter()
            .filter_map(|rank| self.members.place(*rank))
            .collect()
    }
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
            return Some(self.kernel_finding(view, still, &suspects));
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
            self.ask_stacks(view, still, suspects, questions);
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
        self.ask_stacks(view, still, &suspects.places, questions);
        let doing: Vec<(usize, Doing)> = suspects
            .places
            .iter()
            .map(|place| (*place, self.doing(view, *place)))
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
            return Some(self.alone_finding(view, still, suspects, at, longest_alone_s));
        }
        let all_are = |what: Doing| {
            let mut stuck = doing.iter().filter(|(_, doing)| !matches!(doing, Doing::Work(_)));
            stuck.all(|(_, doing)| *doing == what)
        };
        let witnesses = self.stack_witnesses(view, &stuck);
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

    fn ask_stacks(
        &mut self,
        view: &View<'_>,
        still: &Still,
        places: &[usize],
        questions: &mut Vec<Question>,
    ) {
        let mut asked: Vec<usize> = places
            .iter()
            .copied()
            .filter(|place| self.stacks_asked.insert(*place))
            .collect();
        if asked.is_empty() {
            return;
        }
        if !self.has_control {
            let control = still
                .waiters
                .iter()
                .copied()
                .find(|place| !places.contains(place));
            self.has_control = control.is_some();
            asked.extend(control);
        }
        self.stacks_asked_ms = Some(view.now_ms);
        self.stacks_answered = false;
        questions.push(Question::Stacks {
            ranks: view.rank_set(&asked),
        });
    }

    fn doing(&self, view: &View<'_>, place: usize) -> Doing {
        let is_overdue = self
            .stacks_asked_ms
            .is_some_and(|asked| view.now_ms - asked >= STACKS_WITHIN_MS);
        if !self.stacks_answered && !is_overdue {
            return Doing::Pending;
        }
        let (seat, cpu) = (&view.seats[place], view.usage.cpu_share_since_move(place));
        let work = view.usage.work_share_since_move(place);
        let (is_idle, is_busy) = (
            cpu.is_some_and(|share| share < IDLE_SHARE_MAX),
            work.is_some_and(|share| share > BUSY_SHARE_MIN),
        );
        let samples = self.stacks.get(&place).map_or(&[][..], Vec::as_slice);
        if samples.iter().any(|frames| is_shutting_down(frames)) {
            return Doing::Ends;
        }
        let is_gpu_busy = view.usage.gpu(place).and_then(|gpu| gpu.utilization_ratio);
        if different_stacks(samples) > 1 || is_gpu_busy.is_some_and(|busy| busy > GPU_BUSY_MIN) {
            return Doing::Work(AloneAt::Working);
        }
        let control_answered = self
            .stacks
            .iter()
            .any(|(other, samples)| *other != place && !samples.is_empty());
        if samples.is_empty() && control_answered && work.is_none_or(|share| share > BUSY_SHARE_MIN) {
            return Doing::HoldsInterpreter;
        }
        let in_kernel = seat.condition == ProcessCondition::Uninterruptible;
        match seat.phase() {
            Some(Phase::Save) if in_kernel || !is_idle => Doing::Work(AloneAt::Saving),
            // It computes for ever, or it evaluates: a stack that does not change tells the two apart.
            Some(_) if seat.is_in_script() && (!is_busy || samples.is_empty()) => {
                Doing::Work(AloneAt::HostCode)
            }
            // Models are loaded and compiled before the first step: only a process that does nothing at all will never come.
            _ if seat.is_before_first_step() && !is_idle => Doing::Work(AloneAt::Working),
            _ => Doing::Nothing,
        }
    }

    // === Findings ===

    fn kernel_finding(&self, view: &View<'_>, still: &Still, suspects: &Suspects) -> Found {
        let condition = match suspects.cause {
            Cause::Stopped => 1.0,
            Cause::Uninterruptible => 2.0,
            _ => 3.0,
        };
        let told = suspects.places.iter().take(WITNESSED_RANKS_MAX);
        let mut witnesses: Vec<Witness> = told
            .map(|place| {
                let node = view.members.node(*place).to_string();
                let source = Source::Kernel { node };
                witness(source, Evidence::ProcessState, condition)
                    .detail(format!("rank {}", view.members.rank(*place)))
            })
            .collect();
        witnesses.extend(waiting_peers(view, still, &suspects.places));
        Found {
            witnesses,
            ..plain_hang(
                view,
                still,
                Who::Ranks(suspects.places.clone()),
                suspects.cause.clone(),
            )
        }
    }

    fn alone_finding(
        &self,
        view: &View<'_>,
        still: &Still,
        suspects: Suspects,
        at: Option<AloneAt>,
        longest_alone_s: f64,
    ) -> Found {
        let limit_s = ALONE_S.max(ALONE_TIMES * longest_alone_s);
        let cause = match at {
            Some(AloneAt::Saving) => Cause::Saving,
            Some(AloneAt::HostCode) => Cause::HostCode,
            _ => Cause::Working,
        };
        let stacks = self.stack_witnesses(view, &suspects.places);
        Found {
            kind: FindingKind::WorksAlone,
            cause,
            severity: if still.seconds > limit_s {
                Severity::Warning
            } else {
                Severity::Info
            },
            values: vec![
                ("diagnosis_alone_seconds", still.seconds),
                ("diagnosis_alone_longest_seconds", longest_alone_s),
            ],
            ..hang_finding(view, still, suspects, stacks)
        }
    }

    fn stack_witnesses(&self, view: &View<'_>, places: &[usize]) -> Vec<Witness> {
        let mut witnesses = Vec::new();
        for place in places.iter().take(WITNESSED_RANKS_MAX) {
            let source = Source::Rank {
                rank: view.members.rank(*place),
            };
            if let Some(samples) = self.stacks.get(place).filter(|samples| !samples.is_empty()) {
                let innermost = samples.last().and_then(|frames| frames.first());
                let place =
                    innermost.map(|frame| format!("{} at {}:{}", frame.function, frame.file, frame.line));
                let different = different_stacks(samples) as f64;
                witnesses.push(
                    witness(source, Evidence::DifferentStacks, different)
                        .against(f64::from(STACK_SAMPLES))
                        .detail(place.unwrap_or_default()),
                );
            }
            if let Some(share) = view.usage.cpu_share_since_move(*place) {
                let source = Source::Kernel {
                    node: view.members.node(*place).to_string(),
                };
                witnesses.push(
                    witness(source, Evidence::CpuShare, share)
                        .in_ratio()
                        .detail(format!("rank {}", view.members.rank(*place))),
                );
            }
        }
        witnesses
    }
}

/// Whether the main thread has left the script and waits for other threads, in `threading._shutdown`.
fn is_shutting_down(frames: &[Frame]) -> bool {
    let outermost = frames.last();
    outermost.is_some_and(|frame| frame.function == "_shutdown" && frame.file.ends_with("threading.py"))
}

/// Stacks that are not the same. The line of the innermost call does not count: a loop that does nothing has several.
fn different_stacks(samples: &[Vec<Frame>]) -> usize {
    let seen: BTreeSet<Vec<(&str, &str, u32)>> = samples
        .iter()
        .map(|frames| {
            let calls = frames.iter().enumerate();
            calls
                .map(|(depth, frame)| {
                    let line = if depth == 0 { 0 } else { frame.line };
                    (frame.file.as_str(), frame.function.as_str(), line)
                })
                .collect()
        })
        .collect();
    seen.len()
}

fn by_kernel(view: &View<'_>, still: &Still) -> Option<Suspects> {
    // At the end of a run ranks end one after the other, and some of them save for long.
    let waits_by_page = still
        .waiters
        .iter()
        .any(|place| view.seats[*place].page.is_some());
    let causes = [
        (ProcessCondition::Ended, Cause::Ended),
        (ProcessCondition::Stopped, Cause::Stopped),
        (ProcessCondition::Uninterruptible, Cause::Uninterruptible),
    ];
    causes.into_iter().find_map(|(condition, cause)| {
        if condition == ProcessCondition::Ended && !waits_by_page {
            return None;
        }
        let places: Vec<usize> = (0..view.seats.len())
            .filter(|place| {
                let seat = &view.seats[*place];
                // Checkpoints and models are written and read for long.
                let is_storage = condition == ProcessCondition::Uninterruptible
                    && (seat.phase() == Some(Phase::Save) || seat.is_before_first_step());
                seat.condition == condition
                    && !is_storage
                    && !view.members.is_blind(view.members.node_place(*place))
            })
            .collect();
        (!places.is_empty()).then_some(Suspects {
            places,
            cause,
            unfinished: None,
        })
    })
}

/// Without Flight Recorders: the ranks that do not wait while others do.
fn by_pages(view: &View<'_>, still: &Still) -> Result<Suspects, Option<Box<Found>>> {
    let waits = |place: &usize| view.seats[*place].waits();
    let waits_hidden = |place: &usize| matches!(view.seats[*place].phase(), Some(Phase::Backward) | None);
    if !still
        .waiters
        .iter()
        .any(|place| waits(place) || waits_hidden(place))
    {
        return Err(None);
    }
    if still.others.is_empty() {
        // All may be in the backward pass, which takes its time when it is compiled.
        if view.median_step_s.is_none() || !still.waiters.iter().any(waits) {
            return Err(None);
        }
        let who = Who::Unknown;
        return Err(Some(Box::new(nameless(view, still, who, Cause::Unknown, None))));
    }
    Ok(Suspects {
        places: still.others.clone(),
        cause: Cause::NotEnqueued,
        unfinished: None,
    })
}

fn all_enqueued(
    view: &View<'_>,
    still: &Still,
    not_started: &[Rank],
    silent: &[Rank],
    unfinished: &Unfinished,
) -> Result<Suspects, Option<Box<Found>>> {
    let apart: Vec<usize> = view
        .places(silent)
        .into_iter()
        .filter(|place| still.others.contains(place))
        .collect();
    let (places, cause) = if !not_started.is_empty() {
        (view.places(not_started), Cause::KernelNotStarted)
    } else {
        (apart, Cause::NotEnqueued)
    };
    if !places.is_empty() {
        return Ok(Suspects {
            places,
            cause,
            unfinished: Some(unfinished.clone()),
        });
    }
    if view.median_step_s.is_none() && still.seconds < FIRST_NAMELESS_S {
        return Err(None);
    }
    if silent.is_empty()
        && let Some(found) = by_network(view, still, unfinished)
    {
        return Err(Some(Box::new(found)));
    }
    let who = Who::Unknown;
    Err(Some(Box::new(nameless(
        view,
        still,
        who,
        Cause::Unknown,
        Some(unfinished),
    ))))
}

/// The nodes whose counters show errors while all ranks wait in one operation.
fn by_network(view: &View<'_>, still: &Still, unfinished: &Unfinished) -> Option<Found> {
    let errors = |node: usize| {
        view.usage
            .network_errors(node)
            .filter(|rate| *rate >= NETWORK_ERRORS_MIN)
    };
    let bad: Vec<(usize, f64)> = (0..view.members.node_count())
        .filter_map(|node| errors(node).map(|rate| (node, rate)))
        .collect();
    let most = bad.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.0;
    let who = if bad.len() < view.members.node_count() {
        Who::Node(most)
    } else {
        Who::Unknown
    };
    let mut found = nameless(view, still, who, Cause::Network, Some(unfinished));
    let nics = bad.into_iter().take(WITNESSED_RANKS_MAX).map(|(node, rate)| {
        let node = view.members.node_name(node).to_string();
        witness(Source::Nic { node }, Evidence::NetworkErrors, rate)
    });
    found.witnesses.splice(0..0, nics);
    Some(found)
}

fn plain_hang(view: &View<'_>, still: &Still, who: Who, cause: Cause) -> Found {
    let phase = match &who {
        Who::Ranks(places) => common_phase(view, places),
        _ => None,
    };
    Found {
        kind: FindingKind::Hang,
        who,
        phase,
        cause,
        since_ms: still.since_ms,
        since_step: still.since_step,
        witnesses: Vec::new(),
        severity: Severity::Critical,
        lost_seconds: still.seconds,
        values: vec![("diagnosis_hang_seconds", still.seconds)],
        is_symptom: false,
    }
}

fn common_phase(view: &View<'_>, places: &[usize]) -> Option<Phase> {
    let mut phases = places.iter().map(|place| view.seats[*place].phase());
    let first = phases.next().flatten()?;
    phases.all(|phase| phase == Some(first)).then_some(first)
}

fn hang_finding(view: &View<'_>, still: &Still, suspects: Suspects, more: Vec<Witness>) -> Found {
    let mut witnesses = Vec::new();
    if let Some(unfinished) = &suspects.unfinished {
        witnesses.push(unfinished_witness(unfinished));
        for (rank, enqueued) in unfinished.last_enqueued.iter().take(WITNESSED_RANKS_MAX) {
            let source = Source::Rank { rank: *rank };
            let last = enqueued.map_or(0.0, |last| last as f64);
            witnesses.push(
                witness(source, Evidence::LastEnqueued, last)
                    .against(unfinished.sequence as f64)
                    .detail(format!("group {}", unfinished.group)),
            );
        }
    }
    witnesses.extend(waiting_peers(view, still, &suspects.places));
    for place in suspects.places.iter().take(WITNESSED_RANKS_MAX) {
        let seat = &view.seats[*place];
        if let (Some(moved_ms), Some(heard_ms), Some(_)) =
            (seat.moved_ms, view.members.heard_ms(*place), &seat.page)
        {
            let source = Source::Rank {
                rank: view.members.rank(*place),
            };
            witnesses.push(
                witness(source, Evidence::SecondsWithoutMove, seconds(heard_ms - moved_ms)).in_seconds(),
            );
        }
    }
    witnesses.extend(more);
    Found {
        witnesses,
        ..plain_hang(view, still, Who::Ranks(suspects.places), suspects.cause)
    }
}

fn nameless(
    view: &View<'_>,
    still: &Still,
    who: Who,
    cause: Cause,
    unfinished: Option<&Unfinished>,
) -> Found {
    let mut witnesses: Vec<Witness> = unfinished.map(unfinished_witness).into_iter().collect();
    witnesses.extend(waiting_peers(view, still, &[]));
    Found {
        witnesses,
        ..plain_hang(view, still, who, cause)
    }
}

fn unfinished_witness(unfinished: &Unfinished) -> Witness {
    let source = Source::Peers {
        ranks: unfinished.waiters.iter().copied().collect(),
    };
    witness(source, Evidence::UnfinishedOperation, unfinished.sequence as f64)
        .detail(format!("{} in group {}", unfinished.operation, unfinished.group))
}

/// The ranks that wait, without the suspects, and for how long.
fn waiting_peers(view: &View<'_>, still: &Still, suspects: &[usize]) -> Option<Witness> {
    let suspects: BTreeSet<usize> = suspects.iter().copied().collect();
    let peers: Vec<usize> = still
        .waiters
        .iter()
        .copied()
        .filter(|place| !suspects.contains(place))
        .collect();
    let since = |seat: &Seat| seat.page.map(|_| seat.phase_since_ms).or(seat.moved_ms);
    let mut waits: Vec<f64> = peers
        .iter()
        .filter_map(|place| {
            Some(seconds(
                view.members.heard_ms(*place)? - since(&view.seats[*place])?,
            ))
        })
        .collect();
    let what = if peers.iter().any(|place| view.seats[*place].waits()) {
        Evidence::WaitsInCollective
    } else {
        Evidence::SecondsWithoutMove
    };
    (!peers.is_empty()).then(|| {
        let ranks = view.rank_set(&peers);
        witness(Source::Peers { ranks }, what, median(&mut waits)).in_seconds()
    })
}
