//! The short network check between nodes before a run: which nodes measure with each other in which round, and how the results are judged.
//!
//! ```text
//! preflight_bandwidth = true                                  1 s per pair, a warning for each slow pair
//! preflight_bandwidth = 0.5                                   seconds per pair
//! preflight_bandwidth = { seconds = 2, min_mib_s = 900, refuse = true }
//!
//! 4 nodes     round 0: 3–0 1–2     round 1: 3–1 2–0     round 2: 3–2 0–1        no node is in two pairs at once
//! ```
//! Each direction is measured separately, for half of the pair's time. A pair is slow if it is below the run's own minimum, or below
//! [`SLOW_SHARE`] of what the nodes reach *at best*: the median of each node's fastest pair. (With three nodes, one bad node spoils two of
//! three pairs, so the median of all pairs would be its own value.) A node is the culprit if all of its pairs are slow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pair is slow below this share of the usual bandwidth: congestion halves a bandwidth, a wrong cable or a link at reduced speed does
/// this.
pub const SLOW_SHARE: f64 = 0.25;
/// Default time for one pair, in seconds: TCP has grown its window long before.
const SECONDS: f64 = 1.0;
/// The shortest time for a pair, in seconds.
const SECONDS_MIN: f64 = 0.1;
/// The longest time for a pair, in seconds.
const SECONDS_MAX: f64 = 30.0;
/// Maximum number of measurements of one attempt, two per pair: all pairs of 64 nodes. With more nodes there are fewer rounds, and each
/// node measures with the same number of other nodes.
const FIGURES_MAX: u32 = 4_096;
/// Minimum number of slow pairs for which a node is blamed. With fewer, only the pair is reported.
const BLAMED_PAIRS_MIN: usize = 2;

/// What a run requests to be measured: `true`, seconds per pair, or a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written")]
pub struct BandwidthOptions {
    /// Time for one pair, both directions, in seconds; 0 turns the measurement off.
    pub seconds: f64,
    /// The minimum bandwidth of every pair, in MiB per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_mib_s: Option<f64>,
    /// If true, a slow pair ends the attempt, and a node that is slow in all of its pairs is excluded from the next attempt. If false, both
    /// are warnings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refuse: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Enabled(bool),
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

impl From<Written> for BandwidthOptions {
    fn from(written: Written) -> Self {
        let seconds = |seconds| Self {
            seconds,
            ..Self::default()
        };
        match written {
            Written::Enabled(enabled) => seconds(if enabled { SECONDS } else { 0.0 }),
            Written::Seconds(given) => seconds(given),
            Written::Table(table) => Self {
                seconds: table.seconds,
                min_mib_s: table.min_mib_s,
                refuse: table.refuse,
            },
        }
    }
}

impl BandwidthOptions {
    /// Returns true if nothing is to be measured.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.seconds == 0.0
    }

    /// Returns what is wrong with the values, as text; `None` if they are valid.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if !self.is_off() && !(SECONDS_MIN..=SECONDS_MAX).contains(&self.seconds) {
            return Some(format!(
                "must be true, false, or {SECONDS_MIN} to {SECONDS_MAX} seconds per pair"
            ));
        }
        let floor = self.min_mib_s.unwrap_or(1.0);
        (!floor.is_finite() || floor <= 0.0).then(|| "min_mib_s must be greater than 0".to_owned())
    }

    /// Returns the time for one direction, in milliseconds.
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

/// Returns the number of rounds for this many nodes: enough for every pair, as far as [`FIGURES_MAX`] allows.
#[must_use]
pub fn rounds(nodes: u32) -> u32 {
    if nodes < 2 {
        return 0;
    }
    let all = nodes - 1 + nodes % 2;
    all.min((FIGURES_MAX / nodes).max(1))
}

/// Returns the pairs of a round, each node at most once, the lower rank first. This is a round-robin tournament by the circle method.
#[must_use]
pub fn pairs(nodes: u32, round: u32) -> Vec<(u32, u32)> {
    if nodes < 2 {
        return Vec::new();
    }
    let circle = nodes - 1 + nodes % 2;
    let round = round % circle;
    let turned = (1..=circle / 2).map(|by| ((round + by) % circle, (round + circle - by) % circle));
    // If the number of nodes is odd, the node that is paired with the middle of the circle pauses.
    std::iter::once((round, circle))
        .chain(turned)
        .filter(|(a, b)| *a < nodes && *b < nodes)
        .map(|(a, b)| (a.min(b), a.max(b)))
        .collect()
}

/// The measured bandwidth from one node to another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairMeasurement {
    /// Index of the sending node in the attempt.
    pub from: u32,
    /// Index of the receiving node, which measured.
    pub to: u32,
    /// MiB per second; 0 if no connection was possible, `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// Why it was not measured, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// The result of judging the measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judgement {
    /// The bandwidth that nodes reach at best, in MiB per second: the median of each node's fastest pair.
    pub usual_mib_s: Option<f64>,
    /// The limit below which a pair is slow, in MiB per second.
    pub limit_mib_s: f64,
    /// Nodes that send slowly to all other nodes, or receive slowly from all of them.
    pub culprits: Vec<Culprit>,
    /// Slow pairs that no culprit explains.
    pub slow: Vec<PairRate>,
    /// The slowest pair.
    pub slowest: Option<PairRate>,
}

/// The bandwidth from one node to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairRate {
    /// Index of the sending node.
    pub from: u32,
    /// Index of the receiving node.
    pub to: u32,
    /// MiB per second.
    pub mib_s: f64,
}

/// A node whose network is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Culprit {
    /// Index of the node.
    pub node: u32,
    /// Bandwidth of its fastest slow pair, in MiB per second.
    pub best_mib_s: f64,
    /// Whether sending is slow, and whether receiving is slow.
    pub ways: (bool, bool),
}

/// Judges the measurements so far.
#[must_use]
pub fn judge(figures: &[PairMeasurement], options: &BandwidthOptions) -> Judgement {
    let rate = |figure: &PairMeasurement| {
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
    let limit = (usual_mib_s.unwrap_or(0.0) * SLOW_SHARE).max(options.min_mib_s.unwrap_or(0.0));
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
    // The upper one of two middle values: of two nodes, or of two values one of which is slow, the better one is the usual bandwidth.
    best.get(best.len() / 2).copied()
}

fn culprit(measured: &[PairRate], node: u32, limit: f64) -> Option<Culprit> {
    let all_slow = |way: fn(&PairRate) -> u32| {
        let own: Vec<f64> = measured
            .iter()
            .filter(|pair| way(pair) == node)
            .map(|pair| pair.mib_s)
            .collect();
        let slow = own.len() >= BLAMED_PAIRS_MIN && own.iter().all(|mib_s| *mib_s < limit);
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
