//! The culprit of a diagnosis, as typed fields.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnosis::finding::{Culprit, Finding};
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::series::Labels;

/// Labels that name a link: an InfiniBand or Ethernet port, an NVLink or an NVSwitch.
const LINK_LABELS: [&str; 5] = ["link", "nvlink", "device", "interface", "nvswitch"];

/// The culprit of a diagnosis. The fields other than `kind` say where it is, as far as known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamedCulprit {
    /// Kind of the culprit.
    pub kind: CulpritKind,
    /// Node of the culprit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The rank, if the culprit is one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// The ranks, if the culprit is several ranks: `0-7,9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankSet>,
    /// NVML index of the GPU on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Network device, port, NVLink or NVSwitch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Mount point of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
}

/// Kind of a culprit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CulpritKind {
    /// One or more ranks.
    Rank,
    /// A whole node.
    Node,
    /// A GPU.
    Gpu,
    /// A network device, port, NVLink or NVSwitch.
    Link,
    /// A volume of a node.
    Volume,
    /// The culprit is unknown.
    #[default]
    Unknown,
}

impl NamedCulprit {
    /// Returns the culprit of an alert: the one that its labels name, refined by the finding from which the alert was made.
    #[must_use]
    pub fn of(labels: &Labels, finding: Option<&Finding>) -> Self {
        let named = Self::from_labels(labels);
        match finding.map(|finding| &finding.culprit) {
            Some(Culprit::Ranks { ranks, nodes }) if named.rank.is_none() => Self {
                kind: CulpritKind::Rank,
                rank: ranks.only(),
                ranks: (ranks.len() > 1).then(|| ranks.clone()),
                node: match nodes.as_slice() {
                    [node] => Some(node.clone()),
                    _ => named.node,
                },
                ..named
            },
            Some(Culprit::Node { node, ranks }) if named.rank.is_none() => Self {
                kind: CulpritKind::Node,
                node: Some(node.clone()),
                ranks: (!ranks.is_empty()).then(|| ranks.clone()),
                ..named
            },
            _ => named,
        }
    }

    fn from_labels(labels: &Labels) -> Self {
        let text = |name: &str| labels.get(name).map(str::to_owned);
        let mut named = Self {
            kind: CulpritKind::Unknown,
            node: text("node"),
            rank: labels.get("rank").and_then(|rank| rank.parse().ok()).map(Rank),
            ranks: None,
            gpu: labels.get("gpu").and_then(|gpu| gpu.parse().ok()),
            link: LINK_LABELS.into_iter().find_map(text),
            mountpoint: text("mountpoint"),
        };
        named.kind = match &named {
            Self { rank: Some(_), .. } => CulpritKind::Rank,
            // The labels of an NVLink also name the GPU at one of its ends.
            Self { link: Some(_), .. } => CulpritKind::Link,
            Self { gpu: Some(_), .. } => CulpritKind::Gpu,
            Self {
                mountpoint: Some(_), ..
            } => CulpritKind::Volume,
            Self { node: Some(_), .. } => CulpritKind::Node,
            _ => CulpritKind::Unknown,
        };
        named
    }

    /// Returns true if a series belongs to the culprit and not to one of its peers.
    #[must_use]
    pub fn owns(&self, series: &Labels) -> bool {
        let is_same =
            |name: &str, value: Option<&str>| value.is_none_or(|value| series.get(name) == Some(value));
        let rank = self.rank.map(|rank| rank.to_string());
        let gpu = self.gpu.map(|gpu| gpu.to_string());
        match self.kind {
            CulpritKind::Unknown => false,
            CulpritKind::Rank => match (&rank, &self.ranks) {
                (Some(rank), _) => series.get("rank") == Some(rank),
                (None, Some(ranks)) => series
                    .get("rank")
                    .and_then(|rank| rank.parse().ok())
                    .is_some_and(|rank| ranks.contains(Rank(rank))),
                (None, None) => false,
            },
            CulpritKind::Node => self.node.is_some() && is_same("node", self.node.as_deref()),
            CulpritKind::Gpu | CulpritKind::Link | CulpritKind::Volume => {
                is_same("node", self.node.as_deref())
                    && is_same("gpu", gpu.as_deref())
                    && is_same("mountpoint", self.mountpoint.as_deref())
                    && self
                        .link
                        .as_deref()
                        .is_none_or(|link| LINK_LABELS.iter().any(|name| series.get(name) == Some(link)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::new(pairs.iter().copied()).expect("well formed")
    }

    #[test]
    fn the_narrowest_label_names_the_kind() {
        for (pairs, kind) in [
            (
                &[("run", "r"), ("node", "a"), ("rank", "3")][..],
                CulpritKind::Rank,
            ),
            (&[("node", "a"), ("gpu", "3")], CulpritKind::Gpu),
            (&[("node", "a"), ("gpu", "3"), ("nvlink", "1")], CulpritKind::Link),
            (&[("node", "a"), ("device", "mlx5_0")], CulpritKind::Link),
            (&[("node", "a"), ("mountpoint", "/data")], CulpritKind::Volume),
            (&[("node", "a")], CulpritKind::Node),
            (&[("run", "r")], CulpritKind::Unknown),
        ] {
            assert_eq!(NamedCulprit::of(&labels(pairs), None).kind, kind, "{pairs:?}");
        }
    }

    #[test]
    fn the_series_of_the_culprit_are_distinguished_from_those_of_its_peers() {
        let rank = NamedCulprit::of(&labels(&[("run", "r"), ("node", "a"), ("rank", "3")]), None);
        assert!(rank.owns(&labels(&[("run", "r"), ("rank", "3")])));
        assert!(!rank.owns(&labels(&[("run", "r"), ("rank", "4")])));
        let gpu = NamedCulprit::of(&labels(&[("node", "a"), ("gpu", "3")]), None);
        assert!(gpu.owns(&labels(&[("node", "a"), ("gpu", "3"), ("uuid", "x")])));
        assert!(!gpu.owns(&labels(&[("node", "b"), ("gpu", "3")])));
        assert!(!NamedCulprit::default().owns(&labels(&[("run", "r")])));
    }
}
