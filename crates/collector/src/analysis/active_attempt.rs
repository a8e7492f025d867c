//! The analysers of one attempt, and what they need from one measurement to the next.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use domain::diagnosis::analysis::{Analysis, AnalysisOutput, Measurement, Member};
use domain::diagnosis::finding::Finding;
use domain::event::Event;
use domain::ident::{AttemptNo, NodeName, Rank, RunId};
use domain::time::TimestampMs;

use super::assembly::RankInput;
use super::attempts::Attempt;

/// The analysers of one attempt.
pub(super) struct ActiveAttempt {
    pub(super) no: AttemptNo,
    pub(super) members: Arc<[Member]>,
    pub(super) analysis: Analysis,
    pub(super) findings: Vec<Finding>,
    /// Ranks whose role follows from their values, because no mesh names it.
    stages: HashSet<Rank>,
    /// The newest counts of each rank's process.
    counts: HashMap<Rank, Counts>,
}

/// Counts that grow until a process ends.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    last_step: Option<Count>,
    moves: Option<Count>,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    at_ms: TimestampMs,
    value: u64,
}

impl ActiveAttempt {
    /// Starts the analysis of an attempt. `hang` was found before the start of the collector.
    pub(super) fn new(attempt: &Attempt, hang: Option<Finding>) -> Self {
        let mut active = Self::of(attempt.no, Arc::clone(&attempt.members));
        if let Some(hang) = &hang {
            active.analysis.keep_hang(hang);
        }
        // It is no news.
        active.findings.extend(hang);
        active
    }

    fn of(no: AttemptNo, members: Arc<[Member]>) -> Self {
        Self {
            no,
            analysis: Analysis::new(members.to_vec()),
            members,
            findings: Vec::new(),
            stages: HashSet::new(),
            counts: HashMap::new(),
        }
    }

    /// Returns true if it is this attempt, with the same ranks on the same nodes.
    pub(super) fn is_of(&self, attempt: &Attempt) -> bool {
        let is_same = |a: &Member, b: &Member| (a.rank, &a.node) == (b.rank, &b.node);
        self.no == attempt.no
            && (Arc::ptr_eq(&self.members, &attempt.members)
                || self.members.len() == attempt.members.len()
                    && self
                        .members
                        .iter()
                        .zip(attempt.members.iter())
                        .all(|(a, b)| is_same(a, b)))
    }

    /// Updates the roles and data groups: the mesh is known some time after the ranks.
    pub(super) fn set_roles(&mut self, attempt: &Attempt) {
        if Arc::ptr_eq(&self.members, &attempt.members) {
            return;
        }
        self.members = Arc::clone(&attempt.members);
        let with_roles = self.members.iter().filter(|member| member.role.is_some());
        let roles: Vec<_> = with_roles
            .map(|member| (member.rank, member.role.clone()))
            .collect();
        self.analysis.set_roles(&roles);
        let groups: Vec<_> = self
            .members
            .iter()
            .map(|member| (member.rank, member.data_group.clone()))
            .collect();
        self.analysis.set_data_groups(&groups);
    }

    pub(super) fn is_on(&self, rank: Rank, node: &NodeName) -> bool {
        let at = self.members.binary_search_by_key(&rank, |member| member.rank);
        at.is_ok_and(|at| self.members[at].node == *node)
    }

    pub(super) fn take(&mut self, rank: Rank, input: RankInput) {
        match input {
            RankInput::Measurement(measurement) => {
                if self.is_of_new_process(&measurement) {
                    self.start_again();
                }
                let measurement = self.with_step(measurement);
                self.analysis.take(measurement);
            }
            RankInput::PipelineStage => {
                let at = self.members.binary_search_by_key(&rank, |member| member.rank);
                let is_named = at.is_ok_and(|at| self.members[at].role.is_some());
                if !is_named && self.stages.insert(rank) {
                    self.analysis
                        .set_roles(&[(rank, Some(format!("stage of rank {}", rank.0)))]);
                }
            }
        }
    }

    /// Returns true if a later count of the rank is lower than a known one. Then a launcher has started the ranks again within the attempt,
    /// as `torchrun --max-restarts` does, or the known count came late from the attempt before.
    fn is_of_new_process(&self, measurement: &Measurement) -> bool {
        let (rank, at_ms, last_step, moves) = match measurement {
            Measurement::Pool(pool) => (pool.rank, pool.at_ms, Some(pool.last_step), None),
            Measurement::Position(position) => {
                let moves = position.page.map(|page| page.moves);
                (position.rank, position.at_ms, None, moves)
            }
            _ => return false,
        };
        let is_lower = |known: Option<Count>, value: Option<u64>| {
            known
                .zip(value)
                .is_some_and(|(known, value)| at_ms > known.at_ms && value < known.value)
        };
        let known = self.counts.get(&rank).copied().unwrap_or_default();
        is_lower(known.last_step, last_step) || is_lower(known.moves, moves)
    }

    /// Forgets all measurements. Steps of different processes cannot be compared.
    fn start_again(&mut self) {
        self.analysis = Analysis::new(self.members.to_vec());
        self.stages.clear();
        self.counts.clear();
    }

    /// Adds the step to a position. A position arrives without it, because the step is reported when it ends.
    fn with_step(&mut self, mut measurement: Measurement) -> Measurement {
        match &mut measurement {
            Measurement::Pool(pool) => {
                let counts = self.counts.entry(pool.rank).or_default();
                note(&mut counts.last_step, pool.at_ms, pool.last_step);
            }
            Measurement::Position(position) => {
                if let Some(page) = position.page.as_mut() {
                    let counts = self.counts.entry(position.rank).or_default();
                    note(&mut counts.moves, position.at_ms, page.moves);
                    let last_step = counts.last_step.map_or(0, |last_step| last_step.value);
                    page.step = page.step.max(last_step);
                }
            }
            _ => {}
        }
        measurement
    }

    /// Returns an event for each new finding that is certain enough to notify a person.
    pub(super) fn news(&self, run: &RunId, output: &AnalysisOutput, now_ms: TimestampMs) -> Vec<Event> {
        let is_reported = |finding: &&Finding| !finding.is_suspect && !finding.is_symptom;
        let was_reported = |finding: &Finding| {
            let before = self.findings.iter().filter(is_reported);
            before
                .into_iter()
                .any(|before| (&before.kind, &before.culprit) == (&finding.kind, &finding.culprit))
        };
        let new = output
            .findings
            .iter()
            .filter(is_reported)
            .filter(|finding| !was_reported(finding));
        new.map(|finding| Event {
            node: finding.culprit.only_node().map(str::to_owned),
            run: Some(run.to_string()),
            ..Event::new(now_ms, finding.severity, "finding", finding.sentence())
        })
        .collect()
    }
}

/// Replaces a known count by a later one.
fn note(known: &mut Option<Count>, at_ms: TimestampMs, value: u64) {
    if known.is_none_or(|known| known.at_ms <= at_ms) {
        *known = Some(Count { at_ms, value });
    }
}

#[cfg(test)]
mod tests {
    use domain::diagnosis::analysis::RankRequest;
    use domain::diagnosis::finding::FindingKind;
    use domain::diagnosis::input::{Learning, Page, Phase, Pool, Position, ProcessCondition, StepParts};

    use super::*;

    const BEGIN_MS: TimestampMs = 1_000_000;

    fn node() -> NodeName {
        NodeName::new("a").expect("a good name")
    }

    fn attempt() -> ActiveAttempt {
        let member = |rank| Member {
            rank: Rank(rank),
            node: node(),
            role: None,
            data_group: None,
        };
        ActiveAttempt::of(AttemptNo(1), (0..4).map(member).collect())
    }

    fn at_ms(second: u64) -> TimestampMs {
        BEGIN_MS + second.cast_signed() * 1_000
    }

    /// One step of a second. The others wait for a slow rank.
    fn pool(rank: u32, step: u64, second: u64, is_slow: bool) -> RankInput {
        let parts = StepParts {
            step: Some(1.0),
            forward: Some(if is_slow { 0.8 } else { 0.4 }),
            sync: Some(if is_slow { 0.1 } else { 0.5 }),
            ..StepParts::default()
        };
        RankInput::Measurement(Measurement::Pool(Pool {
            rank: Rank(rank),
            node: node(),
            first_step: step,
            last_step: step,
            at_ms: at_ms(second),
            mean: parts,
            max: parts,
            micro_batch: None,
            learning: Learning::default(),
            parameters: None,
        }))
    }

    fn position(rank: u32, moves: u64, second: u64) -> RankInput {
        let page = Page {
            step: 0,
            phase: Phase::Forward,
            in_phase_s: 0.1,
            moves,
        };
        at_page(rank, second, page)
    }

    fn at_page(rank: u32, second: u64, page: Page) -> RankInput {
        RankInput::Measurement(Measurement::Position(Position {
            rank: Rank(rank),
            node: node(),
            at_ms: at_ms(second),
            process: ProcessCondition::Alive,
            page: Some(page),
        }))
    }

    /// Plays steps of all ranks; rank 2 may be slow. Returns the stragglers at the end.
    fn stragglers(
        attempt: &mut ActiveAttempt,
        steps: std::ops::Range<u64>,
        from_second: u64,
        is_slow: bool,
    ) -> usize {
        let mut found = 0;
        for (second, step) in (from_second..).zip(steps) {
            for rank in 0..4 {
                attempt.take(Rank(rank), pool(rank, step, second, is_slow && rank == 2));
            }
            let output = attempt.analysis.advance(at_ms(second));
            let stragglers = output
                .findings
                .iter()
                .filter(|finding| finding.kind == FindingKind::Straggler);
            found = stragglers.count();
        }
        found
    }

    #[test]
    fn ranks_that_a_launcher_starts_again_are_compared_from_their_first_step() {
        let mut attempt = attempt();
        assert_eq!(stragglers(&mut attempt, 1_000..1_020, 0, false), 0);
        assert_eq!(stragglers(&mut attempt, 1..21, 60, true), 1);
        assert_eq!(
            stragglers(&mut attempt, 1..3, 120, false),
            0,
            "a straggler of the processes before"
        );
    }

    #[test]
    fn a_lower_count_of_an_earlier_time_is_no_new_process() {
        let mut attempt = attempt();
        attempt.take(Rank(1), position(1, 70, 10));
        attempt.take(Rank(1), pool(1, 30, 10, false));
        for (input, is_new) in [
            (position(1, 60, 9), false),
            (position(1, 71, 11), false),
            (position(1, 0, 12), true),
            (pool(1, 29, 9, false), false),
            (pool(1, 31, 11, false), false),
            (pool(1, 2, 12, false), true),
            (pool(2, 2, 12, false), false),
        ] {
            let RankInput::Measurement(measurement) = input else {
                panic!("a measurement")
            };
            assert_eq!(attempt.is_of_new_process(&measurement), is_new, "{measurement:?}");
        }
    }

    #[test]
    fn a_new_process_is_before_its_first_step_again() {
        let mut attempt = attempt();
        attempt.take(Rank(1), pool(1, 30, 10, false));
        attempt.take(Rank(1), position(1, 70, 10));
        let step = |attempt: &mut ActiveAttempt, moves, second| {
            let RankInput::Measurement(measurement) = position(1, moves, second) else {
                panic!("a measurement")
            };
            match attempt.with_step(measurement) {
                Measurement::Position(position) => position.page.map(|page| page.step),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(step(&mut attempt, 71, 11), Some(30));
        attempt.take(Rank(1), position(1, 1, 20));
        assert_eq!(step(&mut attempt, 2, 21), Some(0));
    }

    #[test]
    fn the_last_steps_before_a_hang_do_not_restart_it_when_their_pool_arrives_late() {
        let mut attempt = attempt();
        assert_eq!(stragglers(&mut attempt, 1..21, 0, false), 0);
        let mut stacks_requested = 0;
        for second in 21..31 {
            for rank in 0..4 {
                if second == 24 {
                    attempt.take(Rank(rank), pool(rank, 21, 20, false));
                }
                let page = Page {
                    step: 0,
                    phase: if rank == 2 { Phase::Data } else { Phase::Collective },
                    in_phase_s: (second - 20) as f64,
                    moves: 70,
                };
                attempt.take(Rank(rank), at_page(rank, second, page));
            }
            let output = attempt.analysis.advance(at_ms(second));
            let requests = output.requests.iter();
            stacks_requested += requests
                .filter(|request| matches!(request, RankRequest::Stacks { .. }))
                .count();
        }
        assert_eq!(stacks_requested, 1, "once per hang");
    }
}
