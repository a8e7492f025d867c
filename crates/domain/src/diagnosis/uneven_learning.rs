//! Finds ranks of one role that learn differently from their peers: their loss differs persistently, or their learning rate does.
//!
//! ```text
//! loss of each rank in a window − median of its peers ─▶ the last 64 differences ─▶ a finding, if nearly all have one sign and are large
//! mean of its inputs and of its labels, in the same way, in deviations of the peers ─▶ cause; without an effect on the loss: information
//! share of the most frequent class of its labels, in the same way                   ─▶ the same
//! ```
//! Losses of small batches vary, but around those of the peers: of 64 windows of a healthy rank, about half are above and half below. A
//! lasting difference with one sign comes from the data (an unbalanced shard, wrong labels, the same batch every time), or from the
//! arithmetic of the rank.
//!
//! Data and losses are compared only between ranks with the same position on the axes along which the data are not divided. With context
//! parallelism, ranks have other parts of the same samples, and their losses differ by design. If the losses of at least half of more than
//! three ranks differ from those of their peers, none of them is the usual one, and nothing is reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, witness};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::members::Members;
use crate::diagnosis::statistics::{median, peers};
use crate::diagnosis::window::{Role, SYNC, Steps, Window};
use crate::event::Severity;
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Number of windows that are compared, and the minimum time for which a rank must differ in them.
const WINDOWS: usize = 64;
const PERIOD_MIN_MS: i64 = 60_000;
/// Number of windows between two comparisons.
const COMPARED_EVERY: u32 = 4;
/// Minimum share of the windows in which the difference has the same sign.
const SAME_SIGN: f64 = 0.9;
/// Minimum mean difference, as a share of the peers' loss.
const LOSS_RATIO: f64 = 0.1;
/// Minimum mean difference, in standard deviations of the mean. With heavy tails, a few windows may dominate the mean.
const DEVIATIONS: f64 = 6.0;
/// Minimum mean difference, as a share of the first loss. A converged loss near zero differs by multiples of itself from rank to rank
/// without any problem.
const FIRST_LOSS_RATIO: f64 = 0.02;
/// Minimum mean difference of inputs or labels, as a share of their standard deviation.
const DATA_RATIO: f64 = 0.25;
/// Minimum mean difference of the share of the most frequent class.
const TOP_CLASS_RATIO: f64 = 0.25;
/// With more ranks than this, the losses of fewer than half of them may differ from those of their peers.
const FEW_RANKS: usize = 3;
/// Number of consecutive windows in which the learning rate of a rank must differ from that of its peers.
const RATE_WINDOWS: u32 = 16;
const RATE_RATIO: f64 = 0.01;

/// The analyser of uneven learning.
#[derive(Debug, Clone, Default)]
pub(super) struct UnevenLearning {
    tracks: Vec<Track>,
    /// Median loss of the first window.
    first_loss: Option<f64>,
}

#[derive(Debug, Clone, Default)]
struct Track {
    /// True if its data and loss, or its learning rate, are compared with those of one rank only.
    data_of_two: bool,
    rate_of_two: bool,
    loss: DifferenceTrack,
    input: DifferenceTrack,
    label: DifferenceTrack,
    label_top: DifferenceTrack,
    rate: Option<DifferencePeriod>,
    other_rate: u32,
    rates: (f64, f64),
}

/// Measured values of a rank, compared with its peers.
#[derive(Debug, Clone, Default)]
struct DifferenceTrack {
    differences: VecDeque<Difference>,
    taken: u32,
    /// Both are smoothed.
    own: f64,
    of_peers: f64,
    period: Option<DifferencePeriod>,
}

#[derive(Debug, Clone, Copy)]
struct Difference {
    value: f64,
    at_ms: TimestampMs,
    last_step: u64,
}

/// Period in which a rank differs from its peers.
#[derive(Debug, Clone, Copy)]
struct DifferencePeriod {
    since_ms: TimestampMs,
    until_ms: TimestampMs,
    since_step: u64,
    ratio: f64,
}

/// Value of a rank, value of its peers, and the unit in which they are compared.
#[derive(Debug, Clone, Copy)]
struct Compared {
    place: usize,
    own: f64,
    of_peers: f64,
    unit: f64,
}

impl UnevenLearning {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            tracks: vec![Track::default(); ranks],
            first_loss: None,
        }
    }

    pub(super) fn take(&mut self, window: &Window, role: &Role<'_>, members: &Members) {
        // Ranks that never wait for each other do not train the same model.
        if role.steps.iter().all(|steps| steps.mean[SYNC] <= 0.0) {
            return;
        }
        let ranks: Vec<(usize, &Steps)> = role
            .places
            .iter()
            .copied()
            .zip(role.steps.iter().copied())
            .collect();
        let mut groups: BTreeMap<usize, Vec<(usize, &Steps)>> = BTreeMap::new();
        for rank in &ranks {
            groups.entry(members.data_group(rank.0)).or_default().push(*rank);
        }
        for group in groups.values() {
            self.take_data(window, group);
        }
        let rates = compared(&ranks, |steps| (steps.learning.rate, 1.0));
        if rates.len() == ranks.len() {
            for rate in &rates {
                let track = &mut self.tracks[rate.place];
                track.rate_of_two = rates.len() == 2;
                track.take_rate(window, rate.own, rate.of_peers);
            }
        }
    }

    /// Compares the losses and the data of ranks that see samples of the same kind.
    fn take_data(&mut self, window: &Window, ranks: &[(usize, &Steps)]) {
        let losses = compared(ranks, |steps| (steps.learning.loss, 1.0));
        if !losses.is_empty() {
            let mut all: Vec<f64> = losses.iter().map(|loss| loss.own).collect();
            let first_loss = *self.first_loss.get_or_insert_with(|| median(&mut all).abs());
            for loss in &losses {
                let track = &mut self.tracks[loss.place];
                track.data_of_two = losses.len() == 2;
                track.loss.take(window, loss, |mean, of_peers| {
                    (mean > FIRST_LOSS_RATIO * first_loss && mean > LOSS_RATIO * of_peers.abs())
                        .then(|| mean / of_peers.abs())
                });
            }
        }
        let is_far = |mean: f64, _: f64| (mean > DATA_RATIO).then_some(mean);
        let inputs = compared(ranks, |steps| steps.learning.input);
        for input in &inputs {
            let track = &mut self.tracks[input.place];
            track.data_of_two = inputs.len() == 2;
            track.input.take(window, input, is_far);
        }
        for label in &compared(ranks, |steps| steps.learning.label) {
            self.tracks[label.place].label.take(window, label, is_far);
        }
        for top in &compared(ranks, |steps| (steps.learning.label_top, 1.0)) {
            self.tracks[top.place]
                .label_top
                .take(window, top, |mean, _| (mean > TOP_CLASS_RATIO).then_some(mean));
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<DraftFinding> {
        let without_usual = self.groups_without_usual_rank(members);
        let of_data = |(place, track): (usize, &Track)| {
            let is_unknown = without_usual.contains(&members.data_group(place));
            track.different_learning(place, members).filter(|_| !is_unknown)
        };
        let tracks = || self.tracks.iter().enumerate();
        let of_rate = |(place, track): (usize, &Track)| track.different_learning_rate(place, members);
        one_of_each_pair(
            tracks()
                .filter_map(of_data)
                .chain(tracks().filter_map(of_rate))
                .collect(),
        )
    }

    /// Returns the numbers of the groups in which the losses of at least half of the ranks differ from those of their peers.
    fn groups_without_usual_rank(&self, members: &Members) -> BTreeSet<usize> {
        let mut groups: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (place, track) in self.tracks.iter().enumerate() {
            let (ranks, differing) = groups.entry(members.data_group(place)).or_default();
            *ranks += 1;
            *differing += usize::from(track.loss.long_period().is_some());
        }
        let has_no_usual =
            |(_, (ranks, differing)): &(usize, (usize, usize))| *ranks > FEW_RANKS && differing * 2 >= *ranks;
        groups
            .into_iter()
            .filter(has_no_usual)
            .map(|(group, _)| group)
            .collect()
    }
}

/// Returns for each rank with a known value that value and the median of its peers, if at least two ranks have one. The unit is the median
/// of all units.
fn compared(ranks: &[(usize, &Steps)], value: impl Fn(&Steps) -> (f64, f64)) -> Vec<Compared> {
    let known: Vec<(usize, f64, f64)> = ranks
        .iter()
        .map(|(place, steps)| (*place, value(steps).0, value(steps).1))
        .filter(|(_, own, unit)| own.is_finite() && *unit > 0.0)
        .collect();
    if known.len() < 2 {
        return Vec::new();
    }
    let unit = median(&mut known.iter().map(|(.., unit)| *unit).collect::<Vec<_>>());
    let of_peers = peers(&known.iter().map(|(_, own, _)| *own).collect::<Vec<_>>());
    known
        .iter()
        .zip(of_peers)
        .map(|(&(place, own, _), (of_peers, _))| Compared {
            place,
            own,
            of_peers,
            unit,
        })
        .collect()
}

impl DifferenceTrack {
    /// `ratio` converts the mean difference and the value of the peers to a ratio. It returns `None` if the difference is too small for a
    /// finding.
    fn take(&mut self, window: &Window, value: &Compared, ratio: impl Fn(f64, f64) -> Option<f64>) {
        let smooth = |known: f64, now: f64| known + (now - known) / WINDOWS as f64;
        if self.differences.is_empty() {
            (self.own, self.of_peers) = (value.own, value.of_peers);
        }
        self.own = smooth(self.own, value.own);
        self.of_peers = smooth(self.of_peers, value.of_peers);
        if self.differences.len() >= WINDOWS {
            self.differences.pop_front();
        }
        self.differences.push_back(Difference {
            value: (value.own - value.of_peers) / value.unit,
            at_ms: window.at_ms,
            last_step: window.last_step,
        });
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(COMPARED_EVERY) {
            self.period = self.compare(ratio);
        }
    }

    fn compare(&self, ratio: impl Fn(f64, f64) -> Option<f64>) -> Option<DifferencePeriod> {
        let (oldest, newest) = (self.differences.front()?, self.differences.back()?);
        if self.differences.len() < WINDOWS {
            return None;
        }
        let count = self.differences.len() as f64;
        let values = || self.differences.iter().map(|difference| difference.value);
        let mean = values().sum::<f64>() / count;
        let same_sign = values().filter(|value| value.signum() == mean.signum()).count() as f64;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        if same_sign < SAME_SIGN * count || mean.abs() <= DEVIATIONS * (variance / count).sqrt() {
            return None;
        }
        let before = self.period;
        Some(DifferencePeriod {
            since_ms: before.map_or(oldest.at_ms, |period| period.since_ms),
            since_step: before.map_or(oldest.last_step, |period| period.since_step),
            until_ms: newest.at_ms,
            ratio: ratio(mean.abs(), self.of_peers)?,
        })
    }

    /// Returns the period if the rank has differed for long enough.
    fn long_period(&self) -> Option<DifferencePeriod> {
        self.period
            .filter(|period| period.until_ms - period.since_ms >= PERIOD_MIN_MS)
    }

    fn witnesses(&self, what: &Evidence, rank: Rank, peers: &RankSet) -> [Witness; 2] {
        let ranks = peers.clone();
        [
            witness(Source::Rank { rank }, what.clone(), self.own).against(self.of_peers),
            witness(Source::Peers { ranks }, what.clone(), self.of_peers).against(self.own),
        ]
    }
}

impl Track {
    fn take_rate(&mut self, window: &Window, rate: f64, of_peers: f64) {
        let ratio = (rate - of_peers).abs() / rate.abs().max(of_peers.abs());
        if ratio.is_nan() || ratio <= RATE_RATIO {
            (self.other_rate, self.rate) = (0, None);
            return;
        }
        self.other_rate += 1;
        self.rates = (rate, of_peers);
        if self.other_rate >= RATE_WINDOWS {
            let period = self.rate.get_or_insert(DifferencePeriod {
                since_ms: window.at_ms,
                since_step: window.last_step,
                until_ms: window.at_ms,
                ratio,
            });
            period.ratio = ratio;
        }
    }

    /// Returns the finding if the loss differs, or only the inputs or labels do.
    fn different_learning(&self, place: usize, members: &Members) -> Option<DraftFinding> {
        let (loss, label, top, input) = (
            self.loss.long_period(),
            self.label.long_period(),
            self.label_top.long_period(),
            self.input.long_period(),
        );
        let period = loss.or(label).or(top).or(input)?;
        let cause = match (label.or(top), input) {
            (Some(_), _) => Cause::OtherLabels,
            (None, Some(_)) => Cause::OtherInputs,
            (None, None) => Cause::OtherLoss,
        };
        let (rank, peers) = (members.rank(place), members.data_peers(place));
        let measured = [
            (loss, &self.loss, Evidence::OwnLoss),
            (label, &self.label, Evidence::LabelMean),
            (top, &self.label_top, Evidence::TopClassShare),
            (input, &self.input, Evidence::InputMean),
        ];
        let witnesses = measured
            .iter()
            .filter(|(period, ..)| period.is_some())
            .flat_map(|(_, track, what)| track.witnesses(what, rank, &peers))
            .collect();
        let values = loss.map(|loss| ("diagnosis_uneven_loss_ratio", loss.ratio));
        let severity = if loss.is_some() {
            Severity::Warning
        } else {
            Severity::Info
        };
        let culprit = culprit(place, members, self.data_of_two.then_some(peers));
        Some(DraftFinding {
            severity,
            values: values.into_iter().collect(),
            ..draft_finding(culprit, period, cause, witnesses)
        })
    }

    fn different_learning_rate(&self, place: usize, members: &Members) -> Option<DraftFinding> {
        let period = self.rate?;
        let (rank, ranks) = (members.rank(place), members.peers(place));
        let (own, of_peers) = self.rates;
        let witnesses = vec![
            witness(Source::Rank { rank }, Evidence::LearningRate, own).against(of_peers),
            witness(
                Source::Peers { ranks: ranks.clone() },
                Evidence::LearningRate,
                of_peers,
            )
            .against(own),
        ];
        let culprit = culprit(place, members, self.rate_of_two.then_some(ranks));
        Some(DraftFinding {
            values: vec![("diagnosis_uneven_learning_rate_ratio", period.ratio)],
            ..draft_finding(culprit, period, Cause::OtherLearningRate, witnesses)
        })
    }
}

/// Returns the culprit. If two ranks differ, neither of them is the usual one; `other` is then the other one.
fn culprit(place: usize, members: &Members, other: Option<RankSet>) -> DraftCulprit {
    match other {
        Some(other) => DraftCulprit::Sides(vec![[members.rank(place)].into_iter().collect(), other]),
        None => DraftCulprit::Ranks(vec![place]),
    }
}

fn draft_finding(
    culprit: DraftCulprit,
    period: DifferencePeriod,
    cause: Cause,
    witnesses: Vec<Witness>,
) -> DraftFinding {
    DraftFinding {
        since_step: Some(period.since_step),
        witnesses,
        ..DraftFinding::new(FindingKind::UnevenLearning, culprit, cause, period.since_ms)
    }
}

/// Two ranks that differ from each other make only one finding.
fn one_of_each_pair(found: Vec<DraftFinding>) -> Vec<DraftFinding> {
    let mut kept: Vec<DraftFinding> = Vec::new();
    for found in found {
        let is_known = |known: &DraftFinding| match (&known.culprit, &found.culprit) {
            (DraftCulprit::Sides(known_sides), DraftCulprit::Sides(sides)) => {
                known.cause == found.cause && sides.iter().all(|side| known_sides.contains(side))
            }
            _ => false,
        };
        if !kept.iter().any(is_known) {
            kept.push(found);
        }
    }
    kept
}
