//! Time by what became of it, as numbers and in words.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of causes in a sentence.
const CAUSES_SHOWN: usize = 3;
/// The sentence has a share only if a run held nodes for so long. The share of a shorter time is mostly that of the start-up.
const HELD_MIN_S: f64 = 600.0;

/// What time was lost to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// From the placement of an attempt to the end of its first step.
    StartUp,
    /// Steps after the one from which a later attempt resumed.
    RepeatedSteps,
    /// No step ended, and the run was reported as stalled or hanging.
    Stall,
    /// Saves of checkpoints, while they blocked rank 0.
    Checkpoint,
    /// No step ended, because all ranks waited for one that did something by itself, such as an evaluation.
    OneRankAlone,
    /// Waits of rank 0 for its data loader.
    Data,
    /// Waits for ranks that are slower than the others, or stall now and then, as the analysers measured them.
    Straggler,
    /// From the last step of an attempt to its end.
    Ending,
}

/// What the time of a run is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Each GPU.
    Gpus,
    /// Each rank, because the run uses no GPUs.
    Ranks,
}

/// Time by what became of it, in seconds times GPUs or ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Breakdown {
    /// Time that counts towards the final state.
    pub productive_s: f64,
    /// Time without data.
    pub unknown_s: f64,
    /// Lost time by cause. Causes that cost nothing are absent.
    pub lost_s: BTreeMap<LossCause, f64>,
}

impl LossCause {
    /// Returns the words for a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::StartUp => "start-up",
            Self::RepeatedSteps => "repeated steps",
            Self::Stall => "stalls",
            Self::Checkpoint => "checkpoints",
            Self::OneRankAlone => "one rank alone",
            Self::Data => "data",
            Self::Straggler => "stragglers",
            Self::Ending => "after the last step",
        }
    }
}

impl Counted {
    fn word(self) -> &'static str {
        match self {
            Self::Gpus => "GPU",
            Self::Ranks => "rank",
        }
    }
}

impl Breakdown {
    /// Returns the whole time.
    #[must_use]
    pub fn allocated_s(&self) -> f64 {
        self.productive_s + self.unknown_s + self.total_lost_s()
    }

    /// Returns the lost time of all causes.
    #[must_use]
    pub fn total_lost_s(&self) -> f64 {
        self.lost_s.values().sum()
    }

    /// Returns the productive share of the time that is known, or `None` if nothing is known.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let known_s = self.productive_s + self.total_lost_s();
        (known_s > 0.0).then(|| self.productive_s / known_s)
    }

    /// Returns the causes with their lost time, the largest first.
    #[must_use]
    pub fn causes(&self) -> Vec<(LossCause, f64)> {
        let causes = self.lost_s.iter().map(|(cause, lost_s)| (*cause, *lost_s));
        let mut causes: Vec<_> = causes.collect();
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        causes
    }

    /// Adds the time of another breakdown.
    pub fn merge(&mut self, other: &Self) {
        self.productive_s += other.productive_s;
        self.unknown_s += other.unknown_s;
        for (cause, lost_s) in &other.lost_s {
            *self.lost_s.entry(*cause).or_default() += lost_s;
        }
    }

    /// Returns the productive share, the lost time with its largest causes, and the time without data. Returns `None` if there is no time.
    /// `held_s`: for how long the run held nodes; of several runs, the longest time.
    #[must_use]
    pub fn sentence(&self, counted: Counted, held_s: f64) -> Option<String> {
        if self.allocated_s() <= 0.0 {
            return None;
        }
        let lost_s = self.total_lost_s();
        let (unit, unit_s) = self.unit(counted);
        let mut parts = vec![match self.ratio() {
            None => "unknown".to_owned(),
            Some(_) if held_s < HELD_MIN_S => "too early to say".to_owned(),
            Some(ratio) => format!("{:.1} %", ratio * 100.0),
        }];
        if let Some(lost) = amount(lost_s / unit_s) {
            parts.push(format!("lost {lost} {unit}{}", self.largest_causes(unit_s)));
        }
        let unknown = amount(self.unknown_s / unit_s);
        parts.extend(unknown.map(|unknown| format!("no data for {unknown} {unit}")));
        Some(parts.join(" · "))
    }

    /// Returns a part of the lost time in words, in the unit of the sentence. Returns `None` if it is too small to show.
    #[must_use]
    pub fn part_in_words(&self, counted: Counted, part_s: f64) -> Option<String> {
        let (unit, unit_s) = self.unit(counted);
        Some(format!("{} {unit}", amount(part_s / unit_s)?))
    }

    /// Returns the unit of lost and unknown time, and its length in seconds.
    fn unit(&self, counted: Counted) -> (String, f64) {
        let (unit, unit_s) = if self.total_lost_s().max(self.unknown_s) < 3_600.0 {
            ("min", 60.0)
        } else {
            ("h", 3_600.0)
        };
        (format!("{}-{unit}", counted.word()), unit_s)
    }

    /// Returns the largest causes as the end of a sentence; empty if each of them is too small to show.
    fn largest_causes(&self, unit_s: f64) -> String {
        let causes = self.causes().into_iter().take(CAUSES_SHOWN);
        let shown = causes
            .filter_map(|(cause, lost_s)| Some(format!("{} {}", cause.words(), amount(lost_s / unit_s)?)));
        let shown: Vec<String> = shown.collect();
        if shown.is_empty() {
            String::new()
        } else {
            format!(": {}", shown.join(", "))
        }
    }
}

/// Returns the number with one digit after the point, or `None` if that is zero.
fn amount(number: f64) -> Option<String> {
    (number >= 0.05).then(|| format!("{number:.1}"))
}
