//! Finds ranks whose own gradients, before they are combined with those of the other ranks, are far larger than those of their peers.
//!
//! ```text
//! norm of each rank's own gradients in a window ÷ median of all ranks ─▶ over 10 in 8 windows in a row and for 20 s ─▶ a finding
//! ```
//! After the reduction, all ranks have the same gradients, and no rank can be named as their source. Uneven batches and rare tokens change
//! a norm by small factors, and differently in each step. A lasting factor of ten comes from a loss with another scale, from other data, or
//! from the arithmetic of the rank. Most ranks must be near the median: with two ranks, or two halves, none is the usual one.

use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, witness};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source};
use crate::diagnosis::members::Members;
use crate::diagnosis::statistics::median;
use crate::diagnosis::window::{Role, SYNC, Window};
use crate::time::TimestampMs;

/// Minimum number of ranks with a norm in a window.
const RANKS_MIN: usize = 3;
/// Minimum factor between the norm of a rank and the median of all ranks of its role.
const FACTOR: f64 = 10.0;
/// A finding ends when the factor is lower than this.
const FACTOR_END: f64 = 5.0;
/// Number of consecutive windows in which a rank must stand out, and the minimum time from the first to the last of them.
const WINDOWS: u32 = 8;
const PERIOD_MIN_MS: i64 = 20_000;

/// The analyser of own gradients.
#[derive(Debug, Clone, Default)]
pub(super) struct GradientOutlier {
    periods: Vec<Option<Period>>,
}

/// Consecutive windows in which a rank stands out. A window in which its norm was not measured is ignored.
#[derive(Debug, Clone, Copy)]
struct Period {
    since_ms: TimestampMs,
    until_ms: TimestampMs,
    since_step: u64,
    windows: u32,
    /// Norms in the last window: of the rank, and the median of all ranks.
    own: f64,
    usual: f64,
}

impl GradientOutlier {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            periods: vec![None; ranks],
        }
    }

    pub(super) fn take(&mut self, window: &Window, role: &Role<'_>) {
        // Ranks that never wait for each other do not train the same model.
        if role.steps.iter().all(|steps| steps.mean[SYNC] <= 0.0) {
            return;
        }
        let norms = role.steps.iter().map(|steps| steps.learning.own_gradient);
        let known: Vec<(usize, f64)> = role
            .places
            .iter()
            .copied()
            .zip(norms)
            .filter(|(_, norm)| norm.is_finite())
            .collect();
        if known.len() < RANKS_MIN {
            return;
        }
        let usual = median(&mut known.iter().map(|(_, norm)| *norm).collect::<Vec<_>>());
        for (place, own) in known {
            let period = &mut self.periods[place];
            let factor = if period.is_some_and(|period| period.is_lasting()) {
                FACTOR_END
            } else {
                FACTOR
            };
            *period =
                (usual > 0.0 && own > factor * usual).then(|| Period::new(window, own, usual).after(*period));
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<DraftFinding> {
        let lasting = |(place, period): (usize, &Option<Period>)| {
            let period = period.as_ref().filter(|period| period.is_lasting())?;
            Some(period.finding(place, members))
        };
        self.periods.iter().enumerate().filter_map(lasting).collect()
    }
}

impl Period {
    fn new(window: &Window, own: f64, usual: f64) -> Self {
        Self {
            since_ms: window.at_ms,
            until_ms: window.at_ms,
            since_step: window.last_step,
            windows: 1,
            own,
            usual,
        }
    }

    /// Continues a period that began in an earlier window.
    fn after(self, before: Option<Self>) -> Self {
        match before {
            None => self,
            Some(before) => Self {
                since_ms: before.since_ms,
                since_step: before.since_step,
                windows: before.windows.saturating_add(1),
                ..self
            },
        }
    }

    fn is_lasting(&self) -> bool {
        self.windows >= WINDOWS && self.until_ms - self.since_ms >= PERIOD_MIN_MS
    }

    fn finding(&self, place: usize, members: &Members) -> DraftFinding {
        let (rank, ranks) = (members.rank(place), members.peers(place));
        let norm = |source: Source, own: f64, other: f64| {
            witness(source, Evidence::OwnGradientNorm, own).against(other)
        };
        let (kind, culprit) = (FindingKind::UnevenLearning, DraftCulprit::Ranks(vec![place]));
        DraftFinding {
            since_step: Some(self.since_step),
            witnesses: vec![
                norm(Source::Rank { rank }, self.own, self.usual),
                norm(Source::Peers { ranks }, self.usual, self.own),
            ],
            values: vec![("diagnosis_gradient_outlier_factor", self.own / self.usual)],
            ..DraftFinding::new(kind, culprit, Cause::LargerGradients, self.since_ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::messages::Member;
    use crate::diagnosis::window::{Learning, PARTS, Steps};
    use crate::ident::{NodeName, Rank};

    const NORMS: [f64; 4] = [1.0, 2.0, 1.5, 1.2];
    const LARGE: [f64; 4] = [1.0, 2.0, 1.5, 100.0];
    const UNKNOWN: [f64; 4] = [f64::NAN; 4];

    /// Passes windows that end every five seconds. Returns the ranks that are named after the last one, and since which step.
    fn named_after(windows: &[[f64; 4]]) -> Vec<(u32, u64)> {
        let member = |rank| Member {
            rank: Rank(rank),
            node: NodeName::new("a").expect("a name"),
            role: None,
            data_group: None,
        };
        let members = Members::new((0..4).map(member).collect());
        let mut outlier = GradientOutlier::new(4);
        for (number, norms) in (1..).zip(windows) {
            let window = window(number, norms);
            for role in Role::all(&window, &members) {
                outlier.take(&window, &role);
            }
        }
        let named = |finding: DraftFinding| match finding.culprit {
            DraftCulprit::Ranks(places) => {
                (members.rank(places[0]).0, finding.since_step.unwrap_or_default())
            }
            culprit => panic!("{culprit:?}"),
        };
        outlier.findings(&members).into_iter().map(named).collect()
    }

    fn window(number: u64, norms: &[f64; 4]) -> Window {
        let at_ms = number as i64 * 5_000;
        let unknown = (f64::NAN, f64::NAN);
        let steps = |norm: &f64| Steps {
            last_step: number,
            at_ms,
            count: 1.0,
            mean: [0.2; PARTS],
            max: [0.2; PARTS],
            micro_batch: f64::NAN,
            learning: Learning {
                loss: f64::NAN,
                rate: f64::NAN,
                gradient: f64::NAN,
                own_gradient: *norm,
                input: unknown,
                label: unknown,
                label_top: f64::NAN,
            },
        };
        Window {
            last_step: number,
            at_ms,
            ranks: norms.iter().map(|norm| Some(steps(norm))).collect(),
        }
    }

    #[test]
    fn a_rank_is_named_after_eight_windows_until_it_is_near_its_peers() {
        let mut windows = vec![NORMS];
        windows.extend([LARGE; 7]);
        assert_eq!(named_after(&windows), []);
        windows.push(LARGE);
        assert_eq!(named_after(&windows), [(3, 2)]);
        windows.push([1.0, 2.0, 1.5, 12.0]);
        assert_eq!(named_after(&windows), [(3, 2)]);
        windows.push([1.0, 2.0, 1.5, 4.0]);
        assert_eq!(named_after(&windows), []);
    }

    #[test]
    fn single_large_norms_are_healthy() {
        let windows: Vec<[f64; 4]> = (1..100)
            .map(|number| if number % 8 == 0 { NORMS } else { LARGE })
            .collect();
        assert_eq!(named_after(&windows), []);
        assert_eq!(named_after(&[[1.0, 9.0, 0.5, 1.1]; 100]), []);
        assert_eq!(named_after(&[[0.0, 0.0, 0.0, 1.0]; 100]), [], "of nothing");
    }

    #[test]
    fn a_norm_that_is_not_measured_neither_starts_nor_ends_a_finding() {
        let mut windows = [LARGE, UNKNOWN, UNKNOWN].repeat(8);
        assert_eq!(named_after(&windows), [(3, 1)]);
        windows.extend([UNKNOWN; 4]);
        assert_eq!(named_after(&windows), [(3, 1)]);
        assert_eq!(named_after(&[[1.0, 1.0, f64::NAN, f64::INFINITY]; 20]), []);
    }

    #[test]
    fn without_a_majority_none_is_named() {
        assert_eq!(named_after(&[[1.0, f64::NAN, f64::NAN, 100.0]; 20]), []);
        assert_eq!(named_after(&[[1.0, f64::NAN, 1.0, 100.0]; 20]), [(3, 1)]);
        assert_eq!(named_after(&[[1.0, 1.0, 100.0, 100.0]; 20]), []);
    }
}
