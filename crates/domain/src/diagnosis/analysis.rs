//! All analysers over one attempt of one run: takes measurements in, gives findings, scores and questions out.

use std::collections::VecDeque;

use crate::diagnosis::causes::Context;
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source};
use crate::diagnosis::found::{Found, Who, witness};
use crate::diagnosis::hang::{Hang, View};
use crate::diagnosis::input::{Pool, Position};
use crate::diagnosis::loss_trend::LossTrend;
use crate::diagnosis::members::Members;
use crate::diagnosis::order;
use crate::diagnosis::rare_stall::RareStall;
use crate::diagnosis::resources::Usage;
use crate::diagnosis::seat::Seat;
use crate::diagnosis::spread::median;
use crate::diagnosis::straggler::Straggler;
use crate::diagnosis::uneven::Uneven;
use crate::diagnosis::window::{Role, Windows};
use crate::event::Severity;
use crate::ident::Rank;
use crate::time::TimestampMs;

pub use crate::diagnosis::exchange::{Member, Progress, Question, STACK_SAMPLES, STACK_SECONDS, Score, Tick};

/// Pools of the reference rank from which the usual time of a step is taken.
const REFERENCE_POOLS: usize = 32;

/// All analysers over one attempt of one run.
#[derive(Debug, Clone)]
pub struct Analysis {
    members: Members,
    seats: Vec<Seat>,
    usage: Usage,
    windows: Windows,
    hang: Hang,
    straggler: Straggler,
    rare_stall: RareStall,
    uneven: Uneven,
    loss_trend: LossTrend,
    reference: Reference,
}

/// The usual time of a step, by the pools of the rank that sent the first one.
#[derive(Debug, Clone, Default)]
struct Reference {
    place: Option<usize>,
    step_seconds: VecDeque<f64>,
}

impl Analysis {
    /// Of an attempt that begins.
    #[must_use]
    pub fn new(members: Vec<Member>) -> Self {
        let members = Members::new(members);
        let ranks = members.len();
        Self {
            seats: vec![Seat::default(); ranks],
            usage: Usage::new(ranks, members.node_count()),
            windows: Windows::new(ranks),
            hang: Hang::default(),
            straggler: Straggler::new(ranks),
            rare_stall: RareStall::new(ranks),
            uneven: Uneven::new(ranks),
            loss_trend: LossTrend::default(),
            reference: Reference::default(),
            members,
        }
    }

    /// Replaces the roles of ranks, which are known only when the script has made its mesh.
    pub fn set_roles(&mut self, roles: &[(Rank, Option<String>)]) {
        self.members.set_roles(roles);
    }

    /// Takes a measurement. Those of one rank come in the order of their times. What is about others than the members is dropped.
    pub fn take(&mut self, tick: Tick) {
        match tick {
            Tick::Pool(pool) => self.take_pool(&pool),
            Tick::Position(position) => self.take_position(&position),
            Tick::Flight(answers) => {
                // Answers carry no time of a node; what they stand beside is what the seats say now.
                let Self {
                    hang,
                    members,
                    seats,
                    usage,
                    ..
                } = self;
                let view = View {
                    members,
                    seats,
                    usage,
                    median_step_s: None,
                    now_ms: 0,
                };
                hang.take_flight(&view, &answers);
            }
            Tick::Stacks(answers) => self.hang.take_stacks(&self.members, answers),
            Tick::Resources(read) => {
                if let Some(place) = self.members.place(read.rank) {
                    let moved_ms = self.seats[place].moved_ms;
                    self.usage.take(place, read, moved_ms);
                }
            }
            Tick::Node(read) => {
                if let Some(node) = self.members.place_of_node(&read.node) {
                    self.usage.take_node(node, &read);
                }
            }
            Tick::Heard { node, at_ms } => {
                if let Some(node) = self.members.place_of_node(&node) {
                    self.members.heard(node, at_ms);
                }
            }
        }
    }

    fn take_pool(&mut self, pool: &Pool) {
        let Some(place) = self.members.place(pool.rank) else {
            return;
        };
        self.members.heard(self.members.node_place(place), pool.at_ms);
        self.seats[place].stepped(pool.last_step, pool.at_ms);
        self.seats[place].has_loader |= pool.mean.data.is_some_and(|data| data > 0.0);
        self.windows.take(place, pool);
        if *self.reference.place.get_or_insert(place) == place
            && let Some(step) = pool.mean.step
        {
            let steps = &mut self.reference.step_seconds;
            if steps.len() >= REFERENCE_POOLS {
                steps.pop_front();
            }
            steps.push_back(step);
        }
    }

    fn take_position(&mut self, position: &Position) {
        let Some(place) = self.members.place(position.rank) else {
            return;
        };
        self.members.heard(self.members.node_place(place), position.at_ms);
        self.seats[place].take(position);
    }

    /// Decides by all that was measured until now. `now_ms` is the collector's clock. Called about once per second.
    pub fn advance(&mut self, now_ms: TimestampMs) -> Progress {
        self.members.look(now_ms);
        let median_step_s = self.reference.median();
        self.compare(median_step_s.unwrap_or(0.0));
        let mut questions = Vec::new();
        let view = View {
            members: &self.members,
            seats: &self.seats,
            usage: &self.usage,
            median_step_s,
            now_ms,
        };
        let mut found: Vec<Found> = Vec::new();
        found.extend(self.hang.advance(&view, &mut questions));
        found.extend(self.straggler.findings(&self.members));
        found.extend(self.rare_stall.findings(&self.members));
        found.extend(self.uneven.findings(&self.members));
        found.extend(blind_nodes(&self.members, now_ms));
        let found = order::sort(found, &self.members);
        Progress {
            scores: found
                .iter()
                .flat_map(|found| found.scores(&self.members))
                .chain(self.loss_trend.scores())
                .collect(),
            findings: found
                .into_iter()
                .map(|found| found.into_finding(&self.members))
                .collect(),
            questions,
        }
    }

    /// Gives the windows that have become complete to those who compare ranks.
    fn compare(&mut self, median_step_s: f64) {
        for window in self.windows.close(&self.members) {
            self.loss_trend.take(&window);
            let context = Context {
                members: &self.members,
                usage: &self.usage,
            };
            for role in Role::all(&window, &self.members) {
                self.straggler.take(&window, &role, &context);
                self.rare_stall
                    .take(&window, &role, &self.straggler, median_step_s);
                self.uneven.take(&window, &role);
            }
        }
    }
}

impl Reference {
    fn median(&self) -> Option<f64> {
        let mut steps: Vec<f64> = self.step_seconds.iter().copied().collect();
        let median = median(&mut steps);
        median.is_finite().then_some(median)
    }
}

fn blind_nodes(members: &Members, now_ms: TimestampMs) -> Vec<Found> {
    let blind = (0..members.node_count()).filter(|node| members.is_blind(*node));
    blind
        .map(|node| {
            let silent_s = members.silent_seconds(node, now_ms);
            let source = Source::Agent {
                node: members.node_name(node).to_string(),
            };
            Found {
                kind: FindingKind::NodeBlind,
                who: Who::Node(node),
                phase: None,
                cause: Cause::NotHeard,
                since_ms: now_ms - (silent_s * 1e3) as i64,
                since_step: None,
                witnesses: vec![witness(source, Evidence::NotHeard, silent_s).in_seconds()],
                severity: Severity::Info,
                lost_seconds: 0.0,
                values: vec![("diagnosis_node_blind_seconds", silent_s)],
                is_symptom: false,
            }
        })
        .collect()
}
