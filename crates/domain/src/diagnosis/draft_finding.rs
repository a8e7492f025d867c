//! The result of one analyser, before it is sorted among the results of the others.

use crate::diagnosis::finding::{Cause, Culprit, Evidence, Finding, FindingKind, Source, Witness};
use crate::diagnosis::input::Phase;
use crate::diagnosis::members::Members;
use crate::diagnosis::messages::Score;
use crate::event::Severity;
use crate::ident::{NodeName, Rank};
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Maximum number of ranks of one finding that get a series; the first ones get it.
const SCORED_RANKS_MAX: usize = 64;
/// Maximum number of ranks of one finding for which a witness is written.
pub(super) const WITNESSED_RANKS_MAX: usize = 8;

/// A finding whose culprits are still places (indexes of members).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DraftFinding {
    pub(super) kind: FindingKind,
    pub(super) culprit: DraftCulprit,
    pub(super) phase: Option<Phase>,
    pub(super) cause: Cause,
    pub(super) since_ms: TimestampMs,
    pub(super) since_step: Option<u64>,
    pub(super) witnesses: Vec<Witness>,
    pub(super) severity: Severity,
    pub(super) lost_seconds: f64,
    /// Series of each culprit.
    pub(super) values: Vec<(&'static str, f64)>,
    pub(super) is_symptom: bool,
    /// True if the finding is from before a node became blind, and is kept while the node may come back.
    pub(super) is_kept: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum DraftCulprit {
    /// Places of the culprits, at least one.
    Ranks(Vec<usize>),
    /// A node, without any conclusion about its ranks.
    Node(usize),
    Sides(Vec<RankSet>),
    Unknown,
}

impl DraftFinding {
    /// Returns a warning without a phase, a step, witnesses, lost time and values.
    pub(super) fn new(kind: FindingKind, culprit: DraftCulprit, cause: Cause, since_ms: TimestampMs) -> Self {
        Self {
            kind,
            culprit,
            phase: None,
            cause,
            since_ms,
            since_step: None,
            witnesses: Vec::new(),
            severity: Severity::Warning,
            lost_seconds: 0.0,
            values: Vec::new(),
            is_symptom: false,
            is_kept: false,
        }
    }

    /// Returns a hang as it was found before. `None` if it is another finding, if it was not certain, or if a culprit is not a member.
    pub(super) fn of_hang(finding: &Finding, members: &Members) -> Option<Self> {
        if finding.kind != FindingKind::Hang || finding.is_suspect || finding.is_symptom {
            return None;
        }
        let places = |ranks: &RankSet| {
            let places: Option<Vec<usize>> = ranks.iter().map(|rank| members.place(rank)).collect();
            places.filter(|places| !places.is_empty())
        };
        let culprit = match &finding.culprit {
            Culprit::Ranks { ranks, .. } => DraftCulprit::Ranks(places(ranks)?),
            Culprit::Node { node, ranks } => match places(ranks) {
                Some(places) => DraftCulprit::Ranks(places),
                None => DraftCulprit::Node(members.place_of_node(&NodeName::new(node.as_str()).ok()?)?),
            },
            Culprit::Sides { sides } => DraftCulprit::Sides(sides.clone()),
            Culprit::Unknown => DraftCulprit::Unknown,
        };
        let cause = finding.cause.clone();
        Some(Self {
            phase: finding.phase,
            since_step: finding.since_step,
            witnesses: finding.witnesses.clone(),
            severity: finding.severity,
            lost_seconds: finding.lost_seconds,
            values: vec![("diagnosis_hang_seconds", finding.lost_seconds)],
            is_kept: true,
            ..Self::new(FindingKind::Hang, culprit, cause, finding.since_ms)
        })
    }

    /// Returns true if there is only one witness.
    pub(super) fn is_suspect(&self) -> bool {
        let names_culprit = matches!(self.culprit, DraftCulprit::Ranks(_));
        let mut sources: Vec<&Source> = Vec::new();
        let mut witnesses = 0;
        for witness in &self.witnesses {
            if sources.contains(&&witness.source) {
                continue;
            }
            sources.push(&witness.source);
            witnesses += match &witness.source {
                // If only peers wait and the culprit is not named, several of them together count as two witnesses.
                Source::Peers { ranks } if !names_culprit => ranks.len().min(2),
                Source::Agent { .. } => 2,
                _ => 1,
            };
        }
        witnesses < 2
    }

    /// Returns the node whose ranks are all culprits, if the attempt has other nodes and this node has more than one rank.
    pub(super) fn whole_node(&self, members: &Members) -> Option<usize> {
        match &self.culprit {
            DraftCulprit::Node(node) => Some(*node),
            DraftCulprit::Ranks(places) => {
                let node = members.node_place(*places.first()?);
                let is_whole = members.node_count() > 1
                    && places.len() > 1
                    && places.len() == members.ranks_on(node)
                    && places.iter().all(|place| members.node_place(*place) == node);
                is_whole.then_some(node)
            }
            DraftCulprit::Sides(_) | DraftCulprit::Unknown => None,
        }
    }

    pub(super) fn scores(&self, members: &Members) -> Vec<Score> {
        if self.is_symptom {
            return Vec::new();
        }
        let values = if self.is_suspect() {
            vec![("diagnosis_suspect", 1.0)]
        } else {
            self.values.clone()
        };
        let mut labels = vec![("cause", word(&self.cause))];
        if let Some(phase) = &self.phase {
            labels.push(("phase", word(phase)));
        }
        let mut scores = Vec::new();
        for (metric, value) in values {
            let score = |rank: Option<Rank>, node: Option<usize>| Score {
                metric,
                rank,
                node: node.map(|node| members.node_name(node).clone()),
                labels: if metric == "diagnosis_suspect" {
                    let kind = ("kind", word(&self.kind));
                    labels.iter().cloned().chain([kind]).collect()
                } else {
                    labels.clone()
                },
                value,
            };
            match (&self.culprit, self.whole_node(members)) {
                (_, Some(node)) => scores.push(score(None, Some(node))),
                (DraftCulprit::Ranks(places), None) => {
                    let named = places.iter().take(SCORED_RANKS_MAX);
                    scores
                        .extend(named.map(|place| {
                            score(Some(members.rank(*place)), Some(members.node_place(*place)))
                        }));
                }
                (DraftCulprit::Node(_) | DraftCulprit::Sides(_) | DraftCulprit::Unknown, None) => {
                    scores.push(score(None, None))
                }
            }
        }
        scores
    }

    pub(super) fn into_finding(self, members: &Members) -> Finding {
        let is_suspect = self.is_suspect();
        let culprit = match (&self.culprit, self.whole_node(members)) {
            (DraftCulprit::Ranks(places), Some(node)) => Culprit::Node {
                node: members.node_name(node).to_string(),
                ranks: places.iter().map(|place| members.rank(*place)).collect(),
            },
            (_, Some(node)) => Culprit::Node {
                node: members.node_name(node).to_string(),
                ranks: RankSet::default(),
            },
            (DraftCulprit::Ranks(places), None) => Culprit::ranks(
                places
                    .iter()
                    .map(|place| (members.rank(*place), members.node(*place))),
            ),
            (DraftCulprit::Sides(sides), None) => Culprit::Sides { sides: sides.clone() },
            (DraftCulprit::Node(_) | DraftCulprit::Unknown, None) => Culprit::Unknown,
        };
        Finding {
            kind: self.kind,
            culprit,
            phase: self.phase,
            cause: self.cause,
            since_ms: self.since_ms,
            since_step: self.since_step,
            witnesses: self.witnesses,
            is_suspect,
            is_symptom: self.is_symptom,
            severity: self.severity,
            lost_seconds: self.lost_seconds,
        }
    }
}

/// Returns the serialised name of a variant without fields.
pub(super) fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Returns a witness without a unit and a detail.
pub(super) fn witness(source: Source, what: Evidence, value: f64) -> Witness {
    Witness {
        source,
        what,
        value,
        unit: String::new(),
        compared_with: None,
        detail: String::new(),
    }
}

impl Witness {
    pub(super) fn in_seconds(mut self) -> Self {
        "seconds".clone_into(&mut self.unit);
        self
    }

    pub(super) fn in_ratio(mut self) -> Self {
        "ratio".clone_into(&mut self.unit);
        self
    }

    pub(super) fn against(mut self, value: f64) -> Self {
        self.compared_with = value.is_finite().then_some(value);
        self
    }

    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}
