//! Confidence in a diagnosis: which sources measured the values it is based on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnosis::finding::{Finding, Source};

/// Confidence in a diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Confidence {
    /// Level of confidence.
    pub level: ConfidenceLevel,
    /// What the diagnosis is based on.
    pub basis: Basis,
    /// Number of independent sources that measured the problem.
    pub witnesses: u32,
    /// Kinds of these sources, each once.
    pub kinds: Vec<WitnessKind>,
    /// True if there is only one witness. Lockstep shows the diagnosis but sends no notification.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_suspect: bool,
}

/// Level of confidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfidenceLevel {
    /// A suspect: there is one witness.
    Low,
    /// One kind of source measured a value beyond a threshold.
    #[default]
    Medium,
    /// Two independent sources agree.
    High,
}

/// What a diagnosis is based on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// An analyser compared the ranks of the run.
    Analysis,
    /// A value is beyond the threshold of a rule.
    #[default]
    Threshold,
}

/// Kind of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WitnessKind {
    /// A training process.
    Rank,
    /// Several training processes that agree.
    Peers,
    /// The kernel of a node.
    Kernel,
    /// The GPU driver.
    Driver,
    /// Network interfaces.
    Nic,
    /// The agent of a node, or the loss of its connection.
    Agent,
    /// The collector itself.
    Collector,
    /// A source of a newer version, or of a rule that a user added.
    #[serde(untagged)]
    Other(String),
}

/// Kind of source of the metrics with each prefix.
const KINDS_BY_PREFIX: [(&str, WitnessKind); 10] = [
    ("train_", WitnessKind::Rank),
    ("nccl_", WitnessKind::Rank),
    ("gpu_", WitnessKind::Driver),
    ("nvswitch_", WitnessKind::Driver),
    ("link_", WitnessKind::Nic),
    ("node_up", WitnessKind::Agent),
    ("node_clock_", WitnessKind::Collector),
    ("node_", WitnessKind::Kernel),
    ("run_", WitnessKind::Agent),
    ("lockstep_", WitnessKind::Collector),
];

impl Confidence {
    /// Returns the confidence in a finding, from its distinct sources.
    #[must_use]
    pub fn of_finding(finding: &Finding) -> Self {
        let mut sources: Vec<&Source> = Vec::new();
        for witness in &finding.witnesses {
            if !sources.contains(&&witness.source) {
                sources.push(&witness.source);
            }
        }
        let kinds = sources.iter().map(|source| match source {
            Source::Rank { .. } => WitnessKind::Rank,
            Source::Peers { .. } => WitnessKind::Peers,
            Source::Kernel { .. } => WitnessKind::Kernel,
            Source::Driver { .. } => WitnessKind::Driver,
            Source::Agent { .. } => WitnessKind::Agent,
        });
        Self {
            level: if finding.is_suspect {
                ConfidenceLevel::Low
            } else {
                ConfidenceLevel::High
            },
            basis: Basis::Analysis,
            witnesses: u32::try_from(sources.len()).unwrap_or(u32::MAX),
            kinds: once_each(kinds),
            is_suspect: finding.is_suspect,
        }
    }

    /// Returns the confidence in a rule that reads these metrics. Each kind of source counts as one witness.
    #[must_use]
    pub fn of_metrics<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let kind = |name: &str| {
            let known = KINDS_BY_PREFIX
                .iter()
                .find(|(prefix, _)| name.starts_with(prefix));
            known.map(|(_, kind)| kind.clone())
        };
        let kinds = once_each(names.into_iter().filter_map(kind));
        let level = if kinds.len() > 1 {
            ConfidenceLevel::High
        } else {
            ConfidenceLevel::Medium
        };
        Self {
            level,
            basis: Basis::Threshold,
            witnesses: u32::try_from(kinds.len()).unwrap_or(u32::MAX),
            kinds,
            is_suspect: false,
        }
    }
}

fn once_each(kinds: impl Iterator<Item = WitnessKind>) -> Vec<WitnessKind> {
    let mut all: Vec<WitnessKind> = kinds.collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_as_sure_as_the_kinds_of_what_it_reads() {
        let one = Confidence::of_metrics(["train_data_seconds", "train_step_seconds"]);
        assert_eq!(
            (one.level, one.kinds),
            (ConfidenceLevel::Medium, vec![WitnessKind::Rank])
        );
        let two = Confidence::of_metrics(["train_step_seconds", "gpu_throttled"]);
        assert_eq!((two.level, two.witnesses), (ConfidenceLevel::High, 2));
        let agent = Confidence::of_metrics(["node_up"]);
        assert_eq!(agent.kinds, [WitnessKind::Agent]);
        let clock =
            Confidence::of_metrics(["lockstep_agent_clock_offset_seconds", "node_clock_offset_seconds"]);
        assert_eq!(
            (clock.level, clock.kinds),
            (ConfidenceLevel::Medium, vec![WitnessKind::Collector])
        );
        let site = Confidence::of_metrics(["power"]);
        assert_eq!((site.level, site.witnesses), (ConfidenceLevel::Medium, 0));
    }
}
