//! Finds out whether a run learns: compares the loss of all ranks, in blocks of windows, with the best block and the first window.
//!
//! ```text
//! loss │■ first                 ■ ■ ■ ■  half of the progress is lost, for four blocks and one minute: the loss rises
//!      │   ■                 ■
//!      │      ■   ■ best  ■
//!      └──────────────────────────────── blocks of 16 windows; each has the standard deviation of its mean
//! ```
//! A spike that recovers takes less than four blocks. Restarts of the learning rate, and batches that are harder for a while, cost less
//! than half of the progress. Losses that compete (adversarial training) and losses that do not measure progress (policy gradients) do
//! rise, so a rising loss alone is not reported: in addition, the learning rate must have been raised since the best block, or the
//! gradients must have grown with the loss.

use std::collections::VecDeque;

use crate::diagnosis::draft_finding::word;
use crate::diagnosis::finding::Cause;
use crate::diagnosis::messages::Score;
use crate::diagnosis::statistics::median;
use crate::diagnosis::window::{Steps, Window};
use crate::time::TimestampMs;

/// Number of windows per block.
const BLOCK: usize = 16;
/// Number of consecutive blocks in which the loss must be higher, and the minimum time that they must cover.
const RISEN: usize = 4;
const RISEN_MS: i64 = 60_000;
/// Two blocks differ if their means differ by this many deviations.
const DEVIATIONS: f64 = 6.0;
/// Minimum share of the progress that is lost. If there was no progress: share of the first loss.
const LOST: f64 = 0.5;
/// Minimum progress, as a share of the first loss. Less counts as no progress.
const LEARNED: f64 = 0.1;
/// Factors by which the learning rate was raised, or the gradients have grown, since the best block.
const RATE_RAISED: f64 = 1.2;
const GRADIENTS_GREW: f64 = 2.0;
/// Median distance from the mean of normally distributed values, in standard deviations.
const NORMAL_MEDIAN: f64 = 0.6745;
/// Minimum fall of the loss, as a share of the loss. Less counts as no fall.
const FALL: f64 = 0.005;
/// Minimum number of steps without a fall of the loss before it is reported.
const PLATEAU_STEPS: u64 = 1_000;

/// The analyser of the loss.
#[derive(Debug, Clone, Default)]
pub(super) struct LossTrend {
    windows: Vec<Point>,
    /// Block with the loss of the first window, because the loss can fall a lot within a block.
    first: Option<Block>,
    best: Option<Block>,
    recent: VecDeque<Block>,
    /// Block in which the loss last fell.
    fallen: Option<Block>,
    now: Option<Point>,
    rise: Option<(f64, Cause)>,
}

/// Values of all ranks in one window.
#[derive(Debug, Clone, Copy)]
struct Point {
    loss: f64,
    rate: f64,
    gradient: f64,
    at_ms: TimestampMs,
    last_step: u64,
}

/// Several windows combined.
#[derive(Debug, Clone, Copy)]
struct Block {
    loss: f64,
    /// Standard deviation of the mean.
    deviation: f64,
    lowest_rate: f64,
    highest_rate: f64,
    gradient: f64,
    begin_ms: TimestampMs,
    at_ms: TimestampMs,
    last_step: u64,
}

impl LossTrend {
    pub(super) fn take(&mut self, window: &Window) {
        let Some(point) = Point::of(window) else { return };
        self.now = Some(point);
        self.windows.push(point);
        if self.windows.len() < BLOCK {
            return;
        }
        let windows = std::mem::take(&mut self.windows);
        let block = Block::of(&windows);
        self.recent.push_back(block);
        while self.recent.len() > RISEN && block.at_ms - self.recent[1].begin_ms >= RISEN_MS {
            self.recent.pop_front();
        }
        let first = *self.first.get_or_insert_with(|| block.with_loss_of(&windows[0]));
        if self.best.is_none_or(|best| block.loss < best.loss) {
            self.best = Some(block);
        }
        let last_fall = *self.fallen.get_or_insert(first);
        if last_fall.loss - block.loss > last_fall.noise(&block).max(FALL * last_fall.loss.abs()) {
            self.fallen = Some(block);
        }
        self.rise = self.rise();
    }

    /// Returns the scores, which are series of the whole run.
    pub(super) fn scores(&self) -> Vec<Score> {
        let score = |metric, cause: &Cause, value| Score {
            metric,
            rank: None,
            node: None,
            labels: vec![("cause", word(cause))],
            value,
        };
        let rise = self.rise.as_ref();
        let rise = rise.map(|(ratio, cause)| score("diagnosis_loss_rise_ratio", cause, *ratio));
        let plateau = self
            .plateau()
            .map(|(seconds, cause)| score("diagnosis_loss_plateau_seconds", &cause, seconds));
        rise.into_iter().chain(plateau).collect()
    }

    /// Returns the share of the progress that is lost, and the cause.
    fn rise(&self) -> Option<(f64, Cause)> {
        let (first, best) = (self.first?, self.best?);
        let (oldest, newest) = (self.recent.front()?, self.recent.back()?);
        if self.recent.len() < RISEN || newest.at_ms - oldest.begin_ms < RISEN_MS || best.loss <= 0.0 {
            return None;
        }
        let learned = first.loss - best.loss;
        let (from, whole) = if learned > first.noise(&best).max(LEARNED * first.loss.abs()) {
            (best.loss, learned)
        } else {
            (first.loss.max(best.loss), first.loss.abs())
        };
        let lowest = self.recent.iter().min_by(|a, b| a.loss.total_cmp(&b.loss))?;
        let lost = (lowest.loss - from) / whole;
        let falls = oldest.loss - newest.loss > oldest.deviation.max(newest.deviation);
        if lost < LOST || falls || lowest.loss - best.loss < best.noise(lowest) {
            return None;
        }
        let rates = self.recent.iter().map(|block| block.highest_rate);
        let highest_rate = rates.fold(f64::NAN, f64::max);
        let gradients = self.recent.iter().map(|block| block.gradient);
        let gradient = gradients.fold(f64::INFINITY, f64::min);
        if highest_rate > RATE_RAISED * best.lowest_rate {
            Some((lost, Cause::LearningRateRaised))
        } else if gradient.is_finite() && gradient > GRADIENTS_GREW * best.gradient {
            Some((lost, Cause::GradientsGrew))
        } else {
            None
        }
    }

    /// Returns the seconds for which the loss has not fallen, and whether it ever fell.
    fn plateau(&self) -> Option<(f64, Cause)> {
        let (first, fallen, now) = (self.first?, self.fallen?, self.now?);
        if now.last_step - fallen.last_step < PLATEAU_STEPS || self.rise.is_some() {
            return None;
        }
        let cause = if fallen.at_ms == first.at_ms {
            Cause::NeverFell
        } else {
            Cause::StoppedFalling
        };
        Some(((now.at_ms - fallen.at_ms) as f64 / 1e3, cause))
    }
}

impl Point {
    /// Returns `None` if no rank has a finite loss.
    fn of(window: &Window) -> Option<Self> {
        let all = || window.ranks.iter().flatten();
        let mean = |of: &dyn Fn(&Steps) -> f64| {
            let known: Vec<f64> = all().map(of).filter(|value| value.is_finite()).collect();
            known.iter().sum::<f64>() / known.len() as f64
        };
        let loss = mean(&|steps| steps.learning.loss);
        loss.is_finite().then(|| Self {
            loss,
            rate: mean(&|steps| steps.learning.rate),
            gradient: mean(&|steps| steps.learning.gradient),
            at_ms: window.at_ms,
            last_step: window.last_step,
        })
    }
}

impl Block {
    fn of(points: &[Point]) -> Self {
        let count = points.len() as f64;
        let loss = points.iter().map(|point| point.loss).sum::<f64>() / count;
        let gradients = || {
            points
                .iter()
                .map(|point| point.gradient)
                .filter(|norm| norm.is_finite())
        };
        let rates = || points.iter().map(|point| point.rate);
        let (first, last) = (points[0], points[points.len() - 1]);
        Self {
            loss,
            deviation: scatter(points) / count.sqrt(),
            lowest_rate: rates().fold(f64::NAN, f64::min),
            highest_rate: rates().fold(f64::NAN, f64::max),
            gradient: gradients().sum::<f64>() / gradients().count() as f64,
            begin_ms: first.at_ms,
            at_ms: last.at_ms,
            last_step: last.last_step,
        }
    }

    /// Returns this block with the loss of one of its windows, which has a larger deviation.
    fn with_loss_of(self, point: &Point) -> Self {
        Self {
            loss: point.loss,
            deviation: self.deviation * (BLOCK as f64).sqrt(),
            begin_ms: point.at_ms,
            at_ms: point.at_ms,
            last_step: point.last_step,
            ..self
        }
    }

    /// Returns the difference between two blocks that can be chance.
    fn noise(&self, other: &Self) -> f64 {
        DEVIATIONS * self.deviation.hypot(other.deviation)
    }
}

/// Returns the standard deviation of the losses around their trend. It is computed from the median difference between consecutive losses,
/// which neither a trend nor a few jumps change.
fn scatter(points: &[Point]) -> f64 {
    let mut steps: Vec<f64> = points
        .windows(2)
        .map(|two| (two[1].loss - two[0].loss).abs())
        .collect();
    median(&mut steps) / (NORMAL_MEDIAN * std::f64::consts::SQRT_2)
}
