//! The short check of the network between nodes before a run: who measures with whom and when, and what the figures mean.
//!
//! ```text
//! preflight_bandwidth = true                                  1 s a pair, a warning where a pair is slow
//! preflight_bandwidth = 0.5                                   seconds a pair
//! preflight_bandwidth = { seconds = 2, min_mib_s = 900, refuse = true }
//!
//! 4 nodes     round 0: 3–0 1–2     round 1: 3–1 2–0     round 2: 3–2 0–1        no node is in two pairs at once
//! ```
//! Each direction is measured by itself, for half of a pair's time. A pair is slow below a [`SLOW_SHARE`] of what the nodes reach
//! *at their best* (the median of each node's fastest pair: with three nodes, one bad node spoils two pairs of three, and the median
//! of the pairs would be its own), or below the run's own minimum. A node all of whose pairs are slow is the culprit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Below this share of what is usual a pair is slow: congestion halves a bandwidth, a wrong cable or a falling back link does this.
pub const SLOW_SHARE: f64 = 0.25;
/// Time for one pair when nobody says: TCP has grown its window long before.
const SECONDS: f64 = 1.0;
/// The shortest and the longest time for a pair.
const SECONDS_MIN: f64 = 0.1;
/// See [`SECONDS_MIN`].
const SECONDS_MAX: f64 = 30.0;
/// Figures of one attempt, two for a pair: all pairs of 64 nodes. Beyond, there are fewer rounds, and each node meets as many others.
const FIGURES_MAX: u32 = 4_096;
/// A node is not blamed for fewer pairs than this, but the pair is.
const PAIRS_TO_BLAME: usize = 2;

/// What a run wishes to have measured: `true`, seconds a pair, or a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written")]
pub struct BandwidthWish {
    /// Time for one pair, both directions; 0 measures nothing.
    pub seconds: f64,
    /// What any pair should reach at least, in MiB a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_mib_s: Option<f64>,
    /// A slow pair ends the attempt, and a node that is slow in all of its pairs is left out of the next; else both are a warning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refuse: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Wish(bool),
    Seconds(f64),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    seconds: f64,
    min_mib_s: Option<f64>,
    refuse: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            seconds: SECONDS,
            min_mib_s: None,
            refuse: false,
        }
    }
}

impl From<Written> for BandwidthWish {
    fn from(written: Written) -> Self {
        let seconds = |seconds| Self {
            seconds,
            ..Self::default()
        };
        match written {
            Written::Wish(wish) => seconds(if wish { SECONDS } else { 0.0 }),
            Written::Seconds(given) => seconds(given),
            Written::Table(table) => Self {
                seconds: table.seconds,
                min_mib_s: table.min_mib_s,
                refuse: table.refuse,
            },
        }
    }
}

impl BandwidthWish {
    /// Whether nothing is to be measured.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.seconds == 0.0
    }

    /// What is wrong with it, in words.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if !self.is_off() && !(SECONDS_MIN..=SECONDS_MAX).contains(&self.seconds) {
            return Some(format!(
                "measure a pair for {SECONDS_MIN} to {SECONDS_MAX} seconds, or give true or false"
            ));
        }
        let floor = self.min_mib_s.unwrap_or(1.0);
        (!floor.is_finite() || floor <= 0.0).then(|| "min_mib_s must be more than 0".to_owned())
    }

    /// For one direction, in milliseconds.
    #[must_use]
    pub fn one_way_ms(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a few seconds"
        )]
        let ms = (self.seconds.clamp(SECONDS_MIN, SECONDS_MAX) * 500.0) as u64;
        ms
    }
}

/// How many rounds so many nodes measure: each with each other, as far as [`FIGURES_MAX`] allows.
#[must_use]
pub fn rounds(nodes: u32) -> u32 {
    if nodes < 2 {
        return 0;
    }
    let all = nodes - 1 + nodes % 2;
    all.min((FIGURES_MAX / nodes).max(1))
}

/// The pairs of a round, each node once, the lower rank first: a round-robin tournament by the circle method.
#[must_use]
pub fn pairs(nodes: u32, round: u32) -> Vec<(u32, u32)> {
    if nodes < 2 {
        return Vec::new();
    }
    let circle = nodes - 1 + nodes % 2;
    let round = round % circle;
    let turned = (1..=circle / 2).map(|by| ((round + by) % circle, (round + circle - by) % circle));
    // Whoever meets the one in the middle rests when their number is odd.
    std::iter::once((round, circle))
        .chain(turned)
        .filter(|(a, b)| *a < nodes && *b < nodes)
        .map(|(a, b)| (a.min(b), a.max(b)))
        .collect()
}

/// What went from one node to another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// The sending node's place among the attempt's nodes.
    pub from: u32,
    /// The receiving one's, which measured.
    pub to: u32,
    /// MiB a second; 0 when nothing could go through, none when it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// Why not, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// What the figures mean.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judgement {
    /// What nodes reach at their best, in MiB a second: the median of each one's fastest pair.
    pub usual_mib_s: Option<f64>,
    /// Below this a pair is slow.
    pub limit_mib_s: f64,
    /// Nodes that are slow whomever they send to, or receive from.
    pub culprits: Vec<Culprit>,
    /// Slow pairs that no culprit explains.
    pub slow: Vec<PairRate>,
    /// The slowest pair.
    pub slowest: Option<PairRate>,
}

/// What was measured from one node to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairRate {
    /// The sending node's place among the nodes.
    pub from: u32,
    /// The receiving one's.
    pub to: u32,
    /// MiB a second.
    pub mib_s: f64,
}

/// A node whose network is at fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Culprit {
    /// Its place among the nodes.
    pub node: u32,
    /// Its fastest slow pair.
    pub best_mib_s: f64,
    /// Sending is slow, receiving is.
    pub ways: (bool, bool),
}

/// Judges what was measured so far.
#[must_use]
pub fn judge(figures: &[Figure], wish: &BandwidthWish) -> Judgement {
    let rate = |figure: &Figure| {
        Some(PairRate {
            from: figure.from,
            to: figure.to,
            mib_s: figure.mib_s?,
        })
    };
    let measured: Vec<PairRate> = figures.iter().filter_map(rate).collect();
    let nodes = measured
        .iter()
        .flat_map(|pair| [pair.from + 1, pair.to + 1])
        .max()
        .unwrap_or(0);
    let usual_mib_s = usual(&measured, nodes);
    let limit = (usual_mib_s.unwrap_or(0.0) * SLOW_SHARE).max(wish.min_mib_s.unwrap_or(0.0));
    let culprits: Vec<Culprit> = (0..nodes)
        .filter_map(|node| culprit(&measured, node, limit))
        .collect();
    let explained = |pair: &PairRate| {
        culprits.iter().any(|culprit| {
            culprit.node == pair.from && culprit.ways.0 || culprit.node == pair.to && culprit.ways.1
        })
    };
    let slow = measured
        .iter()
        .filter(|pair| pair.mib_s < limit && !explained(pair))
        .copied()
        .collect();
    let slowest = measured
        .iter()
        .copied()
        .min_by(|a, b| a.mib_s.total_cmp(&b.mib_s));
    Judgement {
        usual_mib_s,
        limit_mib_s: limit,
        culprits,
        slow,
        slowest,
    }
}

fn usual(measured: &[PairRate], nodes: u32) -> Option<f64> {
    let best_of = |node| {
        let own = measured
            .iter()
            .filter(|pair| pair.from == node || pair.to == node);
        own.map(|pair| pair.mib_s).reduce(f64::max)
    };
    let mut best: Vec<f64> = (0..nodes).filter_map(best_of).collect();
    best.sort_by(f64::total_cmp);
    // The upper one of two in the middle: with two nodes, or one of two that is slow, the better is what is usual.
    best.get(best.len() / 2).copied()
}

fn culprit(measured: &[PairRate], node: u32, limit: f64) -> Option<Culprit> {
    let all_slow = |way: fn(&PairRate) -> u32| {
        let own: Vec<f64> = measured
            .iter()
            .filter(|pair| way(pair) == node)
            .map(|pair| pair.mib_s)
            .collect();
        let slow = own.len() >= PAIRS_TO_BLAME && own.iter().all(|mib_s| *mib_s < limit);
        slow.then(|| own.into_iter().fold(0.0, f64::max))
    };
    let (sends, receives) = (all_slow(|pair| pair.from), all_slow(|pair| pair.to));
    let best_mib_s = [sends, receives].into_iter().flatten().reduce(f64::max)?;
    Some(Culprit {
        node,
        best_mib_s,
        ways: (sends.is_some(), receives.is_some()),
    })
}

#[cfg(test)]
mod tests;
