//! Ranks of one role that learn something else than their peers: their loss stays apart, or they step with another rate.
//!
//! ```text
//! loss of each rank in a window − median of its peers ─▶ the last 64 differences ─▶ apart, if nearly all have one sign and they are large
//! mean of its inputs, mean of its labels, the same way, in deviations of the peers' ─▶ why; without an effect on the loss: information
//! ```
//! Losses of small batches scatter, but around those of the peers: of 64 windows of healthy ranks about half lie on either side. A lasting
//! difference on one side comes from the data (an unbalanced shard, wrong labels, one batch over and over), or from the rank's arithmetic.

use std::collections::VecDeque;

use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::found::{Found, Who, witness};
use crate::diagnosis::members::Members;
use crate::diagnosis::spread::{median, peers};
use crate::diagnosis::window::{Role, SYNC, Steps, Window};
use crate::event::Severity;
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Windows that are compared, and how long a rank must have been apart in them.
const WINDOWS: usize = 64;
const LASTS_MS: i64 = 60_000;
/// Windows from one comparison to the next.
const COMPARED_EVERY: u32 = 4;
/// Share of the windows in which the difference has the same sign.
const SAME_SIGN: f64 = 0.9;
/// The mean difference, as a share of the peers' loss. Less is not worth a finding.
const LOSS_RATIO: f64 = 0.1;
/// The mean difference exceeds so many deviations of the mean. With heavy tails a few windows may carry it.
const DEVIATIONS: f64 = 6.0;
/// A converged loss near zero differs by multiples of itself from rank to rank, and nothing is wrong: the difference is at least this share of the
/// loss in the beginning.
const FIRST_LOSS_RATIO: f64 = 0.02;
/// The mean difference of inputs or labels, as a share of their standard deviation.
const DATA_RATIO: f64 = 0.25;
/// Windows in a row in which a rank steps with another rate than its peers.
const RATE_WINDOWS: u32 = 16;
const RATE_RATIO: f64 = 0.01;

/// The analyser.
#[derive(Debug, Clone, Default)]
pub(super) struct Uneven {
    tracks: Vec<Track>,
    /// The median loss of the first window.
    first_loss: Option<f64>,
}

#[derive(Debug, Clone, Default)]
struct Track {
    of_two: bool,
    loss: Lasting,
    input: Lasting,
    label: Lasting,
    rate: Option<Apart>,
    other_rate: u32,
    rates: (f64, f64),
}

/// What a rank measures, held against its peers.
#[derive(Debug, Clone, Default)]
struct Lasting {
    differences: VecDeque<Difference>,
    taken: u32,
    /// Both smoothed.
    own: f64,
    of_peers: f64,
    apart: Option<Apart>,
}

#[derive(Debug, Clone, Copy)]
struct Difference {
    value: f64,
    at_ms: TimestampMs,
    last_step: u64,
}

/// A rank is apart from its peers in this time.
#[derive(Debug, Clone, Copy)]
struct Apart {
    since_ms: TimestampMs,
    until_ms: TimestampMs,
    since_step: u64,
    ratio: f64,
}

/// A value of a rank, those of its peers, and the unit in which they are compared.
#[derive(Debug, Clone, Copy)]
struct Compared {
    at: usize,
    own: f64,
    of_peers: f64,
    unit: f64,
}

impl Uneven {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            tracks: vec![Track::default(); ranks],
            first_loss: None,
        }
    }

    pub(super) fn take(&mut self, window: &Window, role: &Role<'_>) {
        // Ranks that never wait for each other do not train one model.
        if role.steps.iter().all(|steps| steps.mean[SYNC] <= 0.0) {
            return;
        }
        let losses = compared(role, |steps| (steps.learning.loss, 1.0));
        if !losses.is_empty() {
            let mut all: Vec<f64> = losses.iter().map(|loss| loss.own).collect();
            let first_loss = *self.first_loss.get_or_insert_with(|| median(&mut all).abs());
            for loss in &losses {
                let track = &mut self.tracks[role.places[loss.at]];
                track.of_two = losses.len() == 2;
                track.loss.take(window, loss, |mean, of_peers| {
                    (mean > FIRST_LOSS_RATIO * first_loss && mean > LOSS_RATIO * of_peers.abs())
                        .then(|| mean / of_peers.abs())
                });
            }
        }
        let is_far = |mean: f64, _: f64| (mean > DATA_RATIO).then_some(mean);
        let inputs = compared(role, |steps| steps.learning.input);
        for input in &inputs {
            let track = &mut self.tracks[role.places[input.at]];
            track.of_two = inputs.len() == 2;
            track.input.take(window, input, is_far);
        }
        for label in &compared(role, |steps| steps.learning.label) {
            self.tracks[role.places[label.at]]
                .label
                .take(window, label, is_far);
        }
        let rates = compared(role, |steps| (steps.learning.rate, 1.0));
        if rates.len() == role.places.len() {
            for rate in &rates {
                let track = &mut self.tracks[role.places[rate.at]];
                track.of_two = rates.len() == 2;
                track.take_rate(window, rate.own, rate.of_peers);
            }
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<Found> {
        let tracks = self.tracks.iter().enumerate();
        one_of_each_pair(
            tracks
                .flat_map(|(place, track)| track.findings(place, members))
                .collect(),
        )
    }
}

/// Of each rank that knows it, if there are two at least, a value and the median of its peers. The unit is the median of all.
fn compared(role: &Role<'_>, value: impl Fn(&Steps) -> (f64, f64)) -> Vec<Compared> {
    let known: Vec<(usize, f64, f64)> = role
        .steps
        .iter()
        .enumerate()
        .map(|(at, steps)| (at, value(steps).0, value(steps).1))
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
        .map(|(&(at, own, _), (of_peers, _))| Compared {
            at,
            own,
            of_peers,
            unit,
        })
        .collect()
}

impl Lasting {
    /// `ratio`: by how much the mean difference is apart, given it and the value of the peers; `None` if it is not worth a finding.
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
            self.apart = self.compare(ratio);
        }
    }

    fn compare(&self, ratio: impl Fn(f64, f64) -> Option<f64>) -> Option<Apart> {
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
        let before = self.apart;
        Some(Apart {
            since_ms: before.map_or(oldest.at_ms, |apart| apart.since_ms),
            since_step: before.map_or(oldest.last_step, |apart| apart.since_step),
            until_ms: newest.at_ms,
            ratio: ratio(mean.abs(), self.of_peers)?,
        })
    }

    /// Apart for long enough.
    fn lasting(&self) -> Option<Apart> {
        self.apart
            .filter(|apart| apart.until_ms - apart.since_ms >= LASTS_MS)
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
            let apart = self.rate.get_or_insert(Apart {
                since_ms: window.at_ms,
                since_step: window.last_step,
                until_ms: window.at_ms,
                ratio,
            });
            apart.ratio = ratio;
        }
    }

    fn findings(&self, place: usize, members: &Members) -> Vec<Found> {
        [
            self.learns_otherwise(place, members),
            self.steps_otherwise(place, members),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The loss is apart, or only what it is made of.
    fn learns_otherwise(&self, place: usize, members: &Members) -> Option<Found> {
        let (loss, label, input) = (self.loss.lasting(), self.label.lasting(), self.input.lasting());
        let apart = loss.or(label).or(input)?;
        let cause = match (label, input) {
            (Some(_), _) => Cause::OtherLabels,
            (None, Some(_)) => Cause::OtherInputs,
            (None, None) => Cause::OtherLoss,
        };
        let (rank, peers) = (members.rank(place), members.peers(place));
        let measured = [
            (loss, &self.loss, Evidence::OwnLoss),
            (label, &self.label, Evidence::LabelMean),
            (input, &self.input, Evidence::InputMean),
        ];
        let witnesses = measured
            .iter()
            .filter(|(apart, ..)| apart.is_some())
            .flat_map(|(_, lasting, what)| lasting.witnesses(what, rank, &peers))
            .collect();
        let values = loss.map(|loss| ("diagnosis_uneven_loss_ratio", loss.ratio));
        let severity = if loss.is_some() {
            Severity::Warning
        } else {
            Severity::Info
        };
        Some(Found {
            severity,
            values: values.into_iter().collect(),
            ..self.found(place, apart, cause, witnesses, members)
        })
    }

    fn steps_otherwise(&self, place: usize, members: &Members) -> Option<Found> {
        let apart = self.rate?;
        let (rank, ranks) = (members.rank(place), members.peers(place));
        let (own, of_peers) = self.rates;
        let witnesses = vec![
            witness(Source::Rank { rank }, Evidence::LearningRate, own).against(of_peers),
            witness(Source::Peers { ranks }, Evidence::LearningRate, of_peers).against(own),
        ];
        Some(Found {
            values: vec![("diagnosis_uneven_learning_rate_ratio", apart.ratio)],
            ..self.found(place, apart, Cause::OtherLearningRate, witnesses, members)
        })
    }

    fn found(
        &self,
        place: usize,
        apart: Apart,
        cause: Cause,
        witnesses: Vec<Witness>,
        members: &Members,
    ) -> Found {
        // Of two that differ neither is the usual one.
        let who = if self.of_two {
            let own: RankSet = [members.rank(place)].into_iter().collect();
            Who::Sides(vec![own, members.peers(place)])
        } else {
            Who::Ranks(vec![place])
        };
        Found {
            kind: FindingKind::UnevenLearning,
            who,
            phase: None,
            cause,
            since_ms: apart.since_ms,
            since_step: Some(apart.since_step),
            witnesses,
            severity: Severity::Warning,
            lost_seconds: 0.0,
            values: Vec::new(),
            is_symptom: false,
        }
    }
}

/// Two ranks are apart from each other: that is one finding.
fn one_of_each_pair(found: Vec<Found>) -> Vec<Found> {
    let mut kept: Vec<Found> = Vec::new();
    for found in found {
        let is_known = |known: &Found| match (&known.who, &found.who) {
            (Who::Sides(known_sides), Who::Sides(sides)) => {
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
