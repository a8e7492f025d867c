//! Whether a run learns: the loss of all its ranks over blocks of windows, held against the best block and the first window.
//!
//! ```text
//! loss │■ first                 ■ ■ ■ ■  half of what was learned is lost, for four blocks and a minute: it rises
//!      │   ■                 ■
//!      │      ■   ■ best  ■
//!      └──────────────────────────────── blocks of 16 windows; each is known up to the deviation of its mean
//! ```
//! A spike that recovers takes less than four blocks. Restarts of the learning rate, and batches that are harder for a while, cost less than half of
//! what was learned. Losses that compete (adversarial training) and those that are no measure of progress (policy gradients) do rise, so the loss
//! alone says nothing here: the learning rate has been raised since the best block, or the gradients have grown with the loss.

use std::collections::VecDeque;

use crate::diagnosis::exchange::Score;
use crate::diagnosis::finding::Cause;
use crate::diagnosis::found::word;
use crate::diagnosis::spread::median;
use crate::diagnosis::window::{Steps, Window};
use crate::time::TimestampMs;

/// Windows of a block.
const BLOCK: usize = 16;
/// Blocks in a row in which the loss must have risen, and the time that they take at least.
const RISEN: usize = 4;
const RISEN_MS: i64 = 60_000;
/// Two blocks differ if their means differ by this many deviations.
const DEVIATIONS: f64 = 6.0;
/// Share of what was learned that is lost. Where nothing was learned: of the first loss.
const LOST: f64 = 0.5;
/// Less than this share of the first loss is nothing that was learned.
const LEARNED: f64 = 0.1;
/// Since the best block the rate was raised by this factor, or gradients have grown by that one.
const RATE_RAISED: f64 = 1.2;
const GRADIENTS_GREW: f64 = 2.0;
/// The median distance from the mean of normally distributed values, in deviations.
const NORMAL_MEDIAN: f64 = 0.6745;
/// A fall by less than this share of the loss is none.
const FALL: f64 = 0.005;
/// Steps without a fall of the loss before anything is said.
const PLATEAU_STEPS: u64 = 1_000;

/// The analyser.
#[derive(Debug, Clone, Default)]
pub(super) struct LossTrend {
    windows: Vec<Point>,
    /// The first window: much is learned within a block.
    first: Option<Block>,
    best: Option<Block>,
    recent: VecDeque<Block>,
    /// The block at which the loss has fallen last.
    fallen: Option<Block>,
    now: Option<Point>,
    rise: Option<(f64, Cause)>,
}

/// What all ranks say of one window.
#[derive(Debug, Clone, Copy)]
struct Point {
    loss: f64,
    rate: f64,
    gradient: f64,
    at_ms: TimestampMs,
    last_step: u64,
}

/// Windows put together.
#[derive(Debug, Clone, Copy)]
struct Block {
    loss: f64,
    /// How far the mean of other windows like these would lie from this one.
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

    /// As series of the whole run.
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

    /// What share of the progress is lost, and what came with it.
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

    /// For how long the loss has not fallen, and whether it ever has.
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
    /// `None` where no rank has a loss, or one of them is no number.
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

    /// This block with the loss of one of its windows, which is known less well.
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

    /// By how much this block and another may differ without a reason.
    fn noise(&self, other: &Self) -> f64 {
        DEVIATIONS * self.deviation.hypot(other.deviation)
    }
}

/// The standard deviation of the losses around their course: by the median step from one to the next, which neither a trend nor a few jumps change.
fn scatter(points: &[Point]) -> f64 {
    let mut steps: Vec<f64> = points
        .windows(2)
        .map(|two| (two[1].loss - two[0].loss).abs())
        .collect();
    median(&mut steps) / (NORMAL_MEDIAN * std::f64::consts::SQRT_2)
}
