//! Ranks of one role that learn something else than their peers: their loss stays apart, or they step with another rate.
//!
//! ```text
//! loss of each rank in a window − median of its peers ─▶ the last 64 differences ─▶ apart, if nearly all have one sign and they are large
//! ```
//! Losses of small batches scatter, but around those of the peers: of 64 windows of healthy ranks about half lie on either side. A lasting
//! difference on one side comes from the data (an unbalanced shard, wrong labels, one batch over and over), or from the rank's arithmetic.

use std::collections::VecDeque;

use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source};
use crate::diagnosis::found::{Found, Who, witness};
use crate::diagnosis::members::Members;
use crate::diagnosis::spread::{median, peers};
use crate::diagnosis::window::{Role, SYNC, Window};
use crate::event::Severity;
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
    differences: VecDeque<Difference>,
    taken: u32,
    /// The loss of the peers, smoothed.
    peers_loss: f64,
    own_loss: f64,
    of_two: bool,
    loss: Option<Apart>,
    rate: Option<Apart>,
    other_rate: u32,
    rates: (f64, f64),
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
        let known: Vec<usize> = (0..role.places.len())
            .filter(|at| role.steps[*at].learning.loss.is_finite())
            .collect();
        if known.len() > 1 {
            let losses: Vec<f64> = known.iter().map(|at| role.steps[*at].learning.loss).collect();
            let first_loss = *self
                .first_loss
                .get_or_insert_with(|| median(&mut losses.clone()).abs());
            for ((at, loss), (of_peers, _)) in known.iter().zip(&losses).zip(peers(&losses)) {
                let track = &mut self.tracks[role.places[*at]];
                track.of_two = known.len() == 2;
                track.take_loss(window, *loss, of_peers, first_loss);
            }
        }
        let rates: Vec<f64> = role.steps.iter().map(|steps| steps.learning.rate).collect();
        if rates.iter().all(|rate| rate.is_finite()) {
            for ((place, rate), (of_peers, _)) in role.places.iter().zip(&rates).zip(peers(&rates)) {
                let track = &mut self.tracks[*place];
                track.of_two = rates.len() == 2;
                track.take_rate(window, *rate, of_peers);
            }
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<Found> {
        let found = self.tracks.iter().enumerate().flat_map(|(place, track)| {
            let lasts = |apart: &Apart| apart.until_ms - apart.since_ms >= LASTS_MS;
            let loss = track
                .loss
                .filter(lasts)
                .map(|apart| track.finding(place, apart, Cause::OtherLoss, members));
            let rate = track
                .rate
                .map(|apart| track.finding(place, apart, Cause::OtherLearningRate, members));
            [loss, rate].into_iter().flatten()
        });
        one_of_each_pair(found.collect())
    }
}

impl Track {
    fn take_loss(&mut self, window: &Window, loss: f64, of_peers: f64, first_loss: f64) {
        let smooth = |known: f64, now: f64| known + (now - known) / WINDOWS as f64;
        if self.differences.is_empty() {
            (self.own_loss, self.peers_loss) = (loss, of_peers);
        }
        self.own_loss = smooth(self.own_loss, loss);
        self.peers_loss = smooth(self.peers_loss, of_peers);
        if self.differences.len() >= WINDOWS {
            self.differences.pop_front();
        }
        self.differences.push_back(Difference {
            value: loss - of_peers,
            at_ms: window.at_ms,
            last_step: window.last_step,
        });
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(COMPARED_EVERY) {
            self.loss = self.apart(first_loss);
        }
    }

    fn apart(&self, first_loss: f64) -> Option<Apart> {
        let (oldest, newest) = (self.differences.front()?, self.differences.back()?);
        if self.differences.len() < WINDOWS {
            return None;
        }
        let count = self.differences.len() as f64;
        let values = || self.differences.iter().map(|difference| difference.value);
        let mean = values().sum::<f64>() / count;
        let same_sign = values().filter(|value| value.signum() == mean.signum()).count() as f64;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let ratio = mean.abs() / self.peers_loss.abs();
        let is_apart = same_sign >= SAME_SIGN * count
            && mean.abs() > DEVIATIONS * (variance / count).sqrt()
            && mean.abs() > FIRST_LOSS_RATIO * first_loss
            && ratio > LOSS_RATIO;
        is_apart.then(|| {
            let before = self.loss;
            Apart {
                since_ms: before.map_or(oldest.at_ms, |apart| apart.since_ms),
                since_step: before.map_or(oldest.last_step, |apart| apart.since_step),
                until_ms: newest.at_ms,
                ratio,
            }
        })
    }

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

    fn finding(&self, place: usize, apart: Apart, cause: Cause, members: &Members) -> Found {
        let (rank, peers) = (members.rank(place), members.peers(place));
        let (evidence, metric, (own, of_peers)) = if cause == Cause::OtherLoss {
            let losses = (self.own_loss, self.peers_loss);
            (Evidence::OwnLoss, "diagnosis_uneven_loss_ratio", losses)
        } else {
            (
                Evidence::LearningRate,
                "diagnosis_uneven_learning_rate_ratio",
                self.rates,
            )
        };
        // Of two that differ neither is the usual one.
        let who = if self.of_two {
            let own: RankSet = [rank].into_iter().collect();
            Who::Sides(vec![own, peers.clone()])
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
            witnesses: vec![
                witness(Source::Rank { rank }, evidence.clone(), own).against(of_peers),
                witness(Source::Peers { ranks: peers }, evidence, of_peers).against(own),
            ],
            severity: Severity::Warning,
            lost_seconds: 0.0,
            values: vec![(metric, apart.ratio)],
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
