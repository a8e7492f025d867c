//! All analysers of one attempt: they read measurements and return findings, scores and requests.

use std::collections::VecDeque;

use crate::diagnosis::causes::Context;
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, witness};
use crate::diagnosis::finding::{Cause, Evidence, Finding, FindingKind, Source};
use crate::diagnosis::gradient_outlier::GradientOutlier;
use crate::diagnosis::hang::{Hang, View};
use crate::diagnosis::input::{Pool, Position};
use crate::diagnosis::loss_trend::LossTrend;
use crate::diagnosis::members::Members;
use crate::diagnosis::rank_status::RankStatus;
use crate::diagnosis::rare_stall::RareStall;
use crate::diagnosis::replicas::Replicas;
use crate::diagnosis::resources::Usage;
use crate::diagnosis::root_causes;
use crate::diagnosis::statistics::median;
use crate::diagnosis::straggler::Straggler;
use crate::diagnosis::uneven_learning::UnevenLearning;
use crate::diagnosis::window::{Role, Windows};
use crate::event::Severity;
use crate::ident::Rank;
use crate::time::TimestampMs;

pub use crate::diagnosis::messages::{
    AnalysisOutput, Measurement, Member, RankRequest, STACK_SAMPLES, STACK_SECONDS, Score,
};

/// Number of pools of the reference rank from which the usual step time is computed.
const REFERENCE_POOLS: usize = 32;
/// A finding about what a rank learns ends if nothing is received from its node for this long. A restart of the agent takes less.
const LEARNING_KNOWN_S: f64 = 60.0;

/// All analysers of one attempt.
#[derive(Debug, Clone)]
pub struct Analysis {
    members: Members,
    rank_statuses: Vec<RankStatus>,
    usage: Usage,
    windows: Windows,
    hang: Hang,
    straggler: Straggler,
    rare_stall: RareStall,
    uneven_learning: UnevenLearning,
    gradient_outlier: GradientOutlier,
    replicas: Replicas,
    loss_trend: LossTrend,
    reference: Reference,
}

/// The usual step time, from the pools of the reference rank: the rank that sent the first pool.
#[derive(Debug, Clone, Default)]
struct Reference {
    place: Option<usize>,
    step_seconds: VecDeque<f64>,
}

impl Analysis {
    /// Starts the analysis of an attempt.
    #[must_use]
    pub fn new(members: Vec<Member>) -> Self {
        let members = Members::new(members);
        let ranks = members.len();
        Self {
            rank_statuses: vec![RankStatus::default(); ranks],
            usage: Usage::new(ranks, members.node_count()),
            windows: Windows::new(ranks),
            hang: Hang::default(),
            straggler: Straggler::new(ranks),
            rare_stall: RareStall::new(ranks),
            uneven_learning: UnevenLearning::new(ranks),
            gradient_outlier: GradientOutlier::new(ranks),
            replicas: Replicas::new(ranks),
            loss_trend: LossTrend::default(),
            reference: Reference::default(),
            members,
        }
    }

    /// Replaces the roles of ranks. They are known only after the script has made its mesh.
    pub fn set_roles(&mut self, roles: &[(Rank, Option<String>)]) {
        self.members.set_roles(roles);
    }

    /// Continues a hang that was found before the start of the collector, until a rank moves.
    pub fn keep_hang(&mut self, finding: &Finding) {
        if let Some(found) = DraftFinding::of_hang(finding, &self.members) {
            self.hang.keep(found);
        }
    }

    /// Sets the longest time for which a rank worked alone before the start of the collector, in seconds.
    pub fn set_longest_alone(&mut self, seconds: f64) {
        self.hang.set_longest_alone(seconds);
    }

    /// Replaces the data groups of ranks. If they change, what ranks have learned until now was compared with the wrong peers, and is
    /// forgotten.
    pub fn set_data_groups(&mut self, groups: &[(Rank, Option<String>)]) {
        if self.members.set_data_groups(groups) {
            self.uneven_learning = UnevenLearning::new(self.members.len());
        }
    }

    /// Takes one measurement. The measurements of one rank must come in order of their times. Measurements of ranks that are not members
    /// are dropped.
    pub fn take(&mut self, measurement: Measurement) {
        match measurement {
            Measurement::Pool(pool) => self.take_pool(&pool),
            Measurement::Position(position) => self.take_position(&position),
            Measurement::Flight {
                suspected_ms,
                answers,
            } => {
                // Answers have no time of a node. They are compared with the current status of the ranks.
                let Self {
                    hang,
                    members,
                    rank_statuses,
                    usage,
                    ..
                } = self;
                let view = View {
                    members,
                    rank_statuses,
                    usage,
                    median_step_s: None,
                    now_ms: 0,
                };
                hang.take_flight(&view, suspected_ms, &answers);
            }
            Measurement::Stacks {
                suspected_ms,
                answers,
            } => self.hang.take_stacks(&self.members, suspected_ms, answers),
            Measurement::Resources(read) => {
                if let Some(place) = self.members.place(read.rank) {
                    let moved_ms = self.rank_statuses[place].moved_ms;
                    self.usage.take(place, read, moved_ms);
                }
            }
            Measurement::Node(read) => {
                if let Some(node) = self.members.place_of_node(&read.node) {
                    self.usage.take_node(node, &read);
                }
            }
            Measurement::CompleteUntil { node, at_ms } => {
                if let Some(node) = self.members.place_of_node(&node) {
                    self.members.set_complete_until(node, at_ms);
                }
            }
        }
    }

    fn take_pool(&mut self, pool: &Pool) {
        let Some(place) = self.members.place(pool.rank) else {
            return;
        };
        self.members
            .set_complete_until(self.members.node_place(place), pool.at_ms);
        self.rank_statuses[place].record_step_end(pool.last_step, pool.at_ms);
        self.rank_statuses[place].has_loader |= pool.mean.data.is_some_and(|data| data > 0.0);
        self.windows.take(place, pool);
        self.replicas.take(place, pool);
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
        self.members
            .set_complete_until(self.members.node_place(place), position.at_ms);
        self.rank_statuses[place].take(position);
    }

    /// Returns the findings, scores and requests from all measurements until now. `now_ms` is the time of the collector's clock. Call it
    /// about once per second.
    pub fn advance(&mut self, now_ms: TimestampMs) -> AnalysisOutput {
        self.members.update_blind_nodes(now_ms);
        let median_step_s = self.reference.median();
        self.compare(median_step_s.unwrap_or(0.0));
        self.replicas.compare(self.members.watermark_ms());
        let mut requests = Vec::new();
        let view = View {
            members: &self.members,
            rank_statuses: &self.rank_statuses,
            usage: &self.usage,
            median_step_s,
            now_ms,
        };
        let mut found: Vec<DraftFinding> = Vec::new();
        found.extend(self.hang.advance(&view, &mut requests));
        found.extend(self.straggler.findings(&self.members));
        found.extend(self.rare_stall.findings(&self.members));
        let learning = self.uneven_learning.findings(&self.members).into_iter();
        let learning = learning.chain(self.gradient_outlier.findings(&self.members));
        found.extend(learning.filter(|found| !is_of_lost_node(found, &self.members, now_ms)));
        found.extend(self.replicas.findings(&self.members));
        found.extend(blind_nodes(&self.members, now_ms));
        let found = root_causes::sort(found, &self.members);
        AnalysisOutput {
            scores: found
                .iter()
                .flat_map(|found| found.scores(&self.members))
                .chain(self.loss_trend.scores())
                .collect(),
            findings: found
                .into_iter()
                .map(|found| found.into_finding(&self.members))
                .collect(),
            requests,
        }
    }

    /// Passes windows that have become complete to the analysers that compare ranks.
    fn compare(&mut self, median_step_s: f64) {
        for window in self.windows.close(&self.members) {
            self.loss_trend.take(&window);
            self.straggler.begin_window();
            let context = Context {
                members: &self.members,
                usage: &self.usage,
            };
            for role in Role::all(&window, &self.members) {
                self.straggler.take(&window, &role, &context);
                self.rare_stall
                    .take(&window, &role, &self.straggler, median_step_s);
                self.uneven_learning.take(&window, &role, &self.members);
                self.gradient_outlier.take(&window, &role);
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

/// Returns true if nothing has been received from the node of a culprit for `LEARNING_KNOWN_S`.
fn is_of_lost_node(found: &DraftFinding, members: &Members, now_ms: TimestampMs) -> bool {
    let DraftCulprit::Ranks(places) = &found.culprit else {
        return false;
    };
    places.iter().any(|place| {
        let node = members.node_place(*place);
        members.is_blind(node) && members.seconds_without_data(node, now_ms) > LEARNING_KNOWN_S
    })
}

fn blind_nodes(members: &Members, now_ms: TimestampMs) -> Vec<DraftFinding> {
    let blind = (0..members.node_count()).filter(|node| members.is_blind(*node));
    blind
        .map(|node| {
            let silent_s = members.seconds_without_data(node, now_ms);
            let source = Source::Agent {
                node: members.node_name(node).to_string(),
            };
            let (kind, culprit) = (FindingKind::NodeBlind, DraftCulprit::Node(node));
            let since_ms = now_ms - (silent_s * 1e3) as i64;
            DraftFinding {
                witnesses: vec![witness(source, Evidence::NotHeard, silent_s).in_seconds()],
                severity: Severity::Info,
                values: vec![("diagnosis_node_blind_seconds", silent_s)],
                ..DraftFinding::new(kind, culprit, Cause::NotHeard, since_ms)
            }
        })
        .collect()
}
