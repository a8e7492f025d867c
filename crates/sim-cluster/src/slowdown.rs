//! How much each rank is slowed down in a step, by faults that have begun and by pauses.

use std::sync::Arc;

use domain::time::TimestampMs;

use crate::fault::FaultKind;
use crate::gpu::BRAKED_SLOWDOWN;
use crate::scenario::Scenario;
use crate::training::{Parts, Slowdown, StepTime};

/// A fault that has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BegunFault {
    pub(crate) at_ms: TimestampMs,
    /// The number of the step in which it began.
    pub(crate) step: u64,
    pub(crate) kind: FaultKind,
}

/// What slows down the ranks of an attempt.
pub(crate) struct Slowdowns {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) seed: u64,
    /// When the first step began.
    pub(crate) since_ms: TimestampMs,
    pub(crate) slow_data: f64,
    /// By rank: true if the rank's GPU is braked.
    pub(crate) braked: Vec<bool>,
    pub(crate) begun: Vec<BegunFault>,
}

impl Slowdowns {
    /// Returns the slowdown of a rank in the step that begins at this time.
    pub(crate) fn of(&self, rank: usize, time: StepTime) -> Slowdown {
        let mut slow = Slowdown {
            compute: if self.braked.get(rank).copied().unwrap_or(false) {
                BRAKED_SLOWDOWN
            } else {
                1.0
            },
            data: self.slow_data,
            more: Parts::default(),
        };
        for fault in self
            .begun
            .iter()
            .filter(|fault| fault.at_ms as f64 <= time.begins_ms)
        {
            self.add_fault(fault, rank, time, &mut slow);
        }
        for pause in &self.scenario.pauses {
            let is_meant = pause.rank.is_none_or(|only| only as usize == rank);
            if is_meant && let Some(number) = occurrence(self.since_ms, pause.every_s, pause.every_s, time) {
                slow.more.add(pause.part, pause.seconds(self.seed, number));
            }
        }
        slow
    }

    fn add_fault(&self, fault: &BegunFault, rank: usize, time: StepTime, slow: &mut Slowdown) {
        let is = |culprit: u32| culprit as usize == rank;
        match fault.kind {
            FaultKind::Slow {
                rank: culprit,
                part,
                ratio,
            } if culprit.is_none_or(is) => slow.more.add(part, ratio * self.scenario.step_s),
            FaultKind::Stall {
                rank: culprit,
                part,
                stall_s,
                period_s,
            } if is(culprit) && occurrence(fault.at_ms, 0.0, period_s, time).is_some() => {
                slow.more.add(part, stall_s);
            }
            FaultKind::LargerBatch { rank: culprit, ratio } if is(culprit) => slow.compute *= 1.0 + ratio,
            FaultKind::BusyProcessor { rank: culprit, share } if is(culprit) => {
                slow.compute /= 1.0 - share;
                slow.data /= 1.0 - share;
            }
            _ => {}
        }
    }
}

/// Returns the number of the newest regular event between the beginnings of two steps, if there is one. A long step may contain several
/// events; they are one.
fn occurrence(since_ms: TimestampMs, first_s: f64, every_s: f64, time: StepTime) -> Option<u64> {
    let count = |at_ms: f64| {
        let after_s = (at_ms - since_ms as f64) / 1e3 - first_s;
        if after_s < 0.0 {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let events = (after_s / every_s) as u64 + 1;
        events
    };
    let (before, now) = (count(time.previous_ms), count(time.begins_ms));
    (now > before).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Part;
    use crate::scenario::Pause;
    use crate::workload::workloads;

    fn slowdowns(faults: &[FaultKind], pauses: &[Pause]) -> Slowdowns {
        let begun = faults.iter().map(|kind| BegunFault {
            at_ms: 10_000,
            step: 1,
            kind: *kind,
        });
        Slowdowns {
            scenario: Arc::new(Scenario {
                step_s: 0.5,
                pauses: pauses.to_vec(),
                ..Scenario::even("r".to_owned(), &workloads()[0])
            }),
            seed: 7,
            since_ms: 0,
            slow_data: 1.0,
            braked: vec![false; 4],
            begun: begun.collect(),
        }
    }

    fn step(begins_ms: f64) -> StepTime {
        StepTime {
            previous_ms: begins_ms - 500.0,
            begins_ms,
        }
    }

    #[test]
    fn a_fault_slows_down_its_rank_and_only_after_it_began() {
        let slow = FaultKind::Slow {
            rank: Some(2),
            part: Part::Forward,
            ratio: 0.4,
        };
        let slowdowns = slowdowns(&[slow], &[]);
        assert_eq!(slowdowns.of(2, step(9_999.0)).more, Parts::default());
        assert!((slowdowns.of(2, step(10_001.0)).more.forward - 0.2).abs() < 1e-9);
        assert_eq!(slowdowns.of(1, step(10_001.0)).more, Parts::default());
    }

    #[test]
    fn stalls_and_pauses_come_once_per_period() {
        let stall = FaultKind::Stall {
            rank: 1,
            part: Part::Data,
            stall_s: 2.0,
            period_s: 20.0,
        };
        let pause = Pause {
            rank: None,
            part: Part::Save,
            every_s: 30.0,
            median_s: 3.0,
            sigma: 0.0,
        };
        let slowdowns = slowdowns(&[stall], &[pause]);
        let steps = || (0..200).map(|number| step(f64::from(number) * 500.0));
        let stalls = steps()
            .filter(|time| slowdowns.of(1, *time).more.data > 0.0)
            .count();
        assert_eq!(stalls, 5, "from 10 s to 100 s");
        let saves = steps()
            .filter(|time| slowdowns.of(3, *time).more.save > 0.0)
            .count();
        assert_eq!(saves, 3);
    }
}
