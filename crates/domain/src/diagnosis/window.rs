//! Combines the pools of all ranks into windows that end at step numbers at which a pool of every rank ends.
//!
//! ```text
//! rank 0   |   1–16   |   17–32   |        closes windows at 16 and 32
//! rank 1   | 1–8| 9–16|   17–32   |        its first two pools are combined
//! rank 2   |        1–32          |        then there is one window, 1–32
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::diagnosis::input::{self, Pool, StepParts};
use crate::diagnosis::members::Members;
use crate::diagnosis::statistics::peers;
use crate::time::TimestampMs;

/// Maximum number of pools of one rank that wait for those of the others. If there are more, the oldest is dropped.
const POOLS_MAX: usize = 64;
/// Maximum number of ends of pools that may become the end of a window.
const ENDS_MAX: usize = 256;
/// How long to wait for missing pools after the first pool, if nearly all ranks have sent theirs.
const LATE_MS: i64 = 2_000;
/// Minimum duration of a window: a few short steps are too little for a comparison.
const WINDOW_MS: u64 = 500;
/// A rank that has sent no pool for this long is no longer expected.
const NO_POOL_MS: i64 = 10_000;

/// Indexes of the parts of a step. `STEP` is the whole step.
pub(super) const STEP: usize = 0;
pub(super) const DATA: usize = 1;
pub(super) const FORWARD: usize = 2;
pub(super) const BACKWARD: usize = 3;
pub(super) const OPTIMIZER: usize = 4;
pub(super) const SAVE: usize = 5;
pub(super) const HOST: usize = 6;
pub(super) const SYNC: usize = 7;
pub(super) const PARTS: usize = 8;

/// Parts in which the rank itself works.
pub(super) const OWN: [usize; 6] = [DATA, FORWARD, BACKWARD, OPTIMIZER, SAVE, HOST];

/// Seconds per part; NaN if not measured.
pub(super) type Parts = [f64; PARTS];

/// Steps of one rank: one pool, or several combined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub(super) last_step: u64,
    pub(super) at_ms: TimestampMs,
    pub(super) count: f64,
    pub(super) mean: Parts,
    pub(super) max: Parts,
    pub(super) micro_batch: f64,
    pub(super) learning: Learning,
}

/// Loss and related values of a rank: means over its steps, except the learning rate, which is the last one. NaN if unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Learning {
    pub(super) loss: f64,
    pub(super) rate: f64,
    pub(super) gradient: f64,
    /// Norm of the rank's own gradients.
    pub(super) own_gradient: f64,
    /// Mean and standard deviation of the inputs, and of the labels.
    pub(super) input: (f64, f64),
    pub(super) label: (f64, f64),
    /// Share of the most frequent class among the labels.
    pub(super) label_top: f64,
}

/// The same steps of all ranks.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) last_step: u64,
    /// Latest end of the pools in it.
    pub(super) at_ms: TimestampMs,
    /// Steps of each rank, by place.
    pub(super) ranks: Vec<Option<Steps>>,
}

/// Makes windows from pools.
#[derive(Debug, Clone, Default)]
pub(super) struct Windows {
    queues: Vec<VecDeque<Steps>>,
    newest_ms: Vec<Option<TimestampMs>>,
    ends: BTreeMap<u64, End>,
    closed: Option<u64>,
    /// When the last window ended for each rank, by the clock of its node; before its first window, when its first pool ended.
    closed_ms: Vec<Option<TimestampMs>>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    ranks: usize,
    /// The rank whose pool arrived first, and the end of that pool.
    first_place: usize,
    first_ms: TimestampMs,
}

impl Windows {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            queues: vec![VecDeque::new(); ranks],
            newest_ms: vec![None; ranks],
            closed_ms: vec![None; ranks],
            ..Self::default()
        }
    }

    pub(super) fn take(&mut self, place: usize, pool: &Pool) {
        self.newest_ms[place] = Some(pool.at_ms);
        self.closed_ms[place].get_or_insert(pool.at_ms);
        let queue = &mut self.queues[place];
        let is_late = self.closed.is_some_and(|closed| pool.last_step <= closed);
        let is_known = queue
            .back()
            .is_some_and(|newest| pool.last_step <= newest.last_step);
        if is_late || is_known || pool.first_step > pool.last_step {
            return;
        }
        if queue.len() >= POOLS_MAX {
            queue.pop_front();
        }
        queue.push_back(Steps {
            last_step: pool.last_step,
            at_ms: pool.at_ms,
            count: (pool.last_step - pool.first_step + 1) as f64,
            mean: parts(&pool.mean),
            max: parts(&pool.max),
            micro_batch: pool.micro_batch.unwrap_or(f64::NAN),
            learning: Learning::of(&pool.learning),
        });
        let end = self.ends.entry(pool.last_step).or_insert(End {
            ranks: 0,
            first_place: place,
            first_ms: pool.at_ms,
        });
        end.ranks += 1;
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_first();
        }
    }

    /// Returns the windows that are complete, and those that did not become complete in time.
    pub(super) fn close(&mut self, members: &Members) -> Vec<Window> {
        let Some(watermark_ms) = members.watermark_ms() else {
            return Vec::new();
        };
        if self.ends.is_empty() {
            return Vec::new();
        }
        let expected = self.expected(members, watermark_ms);
        let complete = |end: &End| {
            end.ranks >= expected
                || (watermark_ms - end.first_ms >= LATE_MS && end.ranks * 10 >= expected * 9)
        };
        let ends: Vec<u64> = self
            .ends
            .iter()
            .filter(|(_, end)| expected > 0 && complete(end))
            .map(|(step, _)| *step)
            .collect();
        ends.into_iter().filter_map(|step| self.close_at(step)).collect()
    }

    fn expected(&self, members: &Members, watermark_ms: TimestampMs) -> usize {
        let places = self.newest_ms.iter().enumerate();
        places
            .filter(|(place, newest_ms)| {
                newest_ms.is_some_and(|newest| watermark_ms - newest < NO_POOL_MS)
                    && !members.is_blind(members.node_place(*place))
            })
            .count()
    }

    fn close_at(&mut self, last_step: u64) -> Option<Window> {
        let end = self.ends.get(&last_step)?;
        // The clocks of nodes may differ, so both times are of the same rank. If its clock was set back, the window ends.
        let closed_ms = self.closed_ms[end.first_place].unwrap_or(end.first_ms);
        if end.first_ms.abs_diff(closed_ms) < WINDOW_MS {
            return None;
        }
        self.closed = Some(last_step);
        self.ends = self.ends.split_off(&(last_step + 1));
        let ranks: Vec<Option<Steps>> = self
            .queues
            .iter_mut()
            .zip(&mut self.closed_ms)
            .map(|(queue, closed_ms)| {
                let mut together: Option<Steps> = None;
                while let Some(steps) = queue.pop_front_if(|steps| steps.last_step <= last_step) {
                    together = Some(together.map_or(steps, |known| known.and(&steps)));
                }
                *closed_ms = together.map(|steps| steps.at_ms).or(*closed_ms);
                together
            })
            .collect();
        let at_ms = ranks.iter().flatten().map(|steps| steps.at_ms).max();
        Some(Window {
            last_step,
            at_ms: at_ms.unwrap_or(0),
            ranks,
        })
    }
}

impl Steps {
    fn and(mut self, later: &Self) -> Self {
        let count = self.count + later.count;
        for part in 0..PARTS {
            self.mean[part] = (self.mean[part] * self.count + later.mean[part] * later.count) / count;
            self.max[part] = self.max[part].max(later.max[part]);
        }
        Self {
            last_step: later.last_step,
            at_ms: later.at_ms,
            count,
            micro_batch: later.micro_batch,
            learning: self.learning.and(self.count, &later.learning, later.count),
            ..self
        }
    }

    /// Returns the mean without the longest step, if there are at least three steps.
    pub(super) fn usual(&self, part: usize) -> f64 {
        if self.count < 3.0 {
            return self.mean[part];
        }
        ((self.mean[part] * self.count - self.max[part]) / (self.count - 1.0)).max(0.0)
    }
}

impl Learning {
    fn of(learning: &input::Learning) -> Self {
        let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
        Self {
            loss: known(learning.loss),
            rate: known(learning.rate),
            gradient: known(learning.gradient),
            own_gradient: known(learning.own_gradient),
            input: (known(learning.input.mean), known(learning.input.deviation)),
            label: (known(learning.label.mean), known(learning.label.deviation)),
            label_top: known(learning.label_top),
        }
    }

    /// Combines the values of `count` steps with those of later steps. A value that only one of them has is used as it is.
    fn and(&self, count: f64, later: &Self, later_count: f64) -> Self {
        let mean = |own: f64, other: f64| match (own.is_nan(), other.is_nan()) {
            (true, _) => other,
            (_, true) => own,
            _ => (own * count + other * later_count) / (count + later_count),
        };
        let both = |own: (f64, f64), other: (f64, f64)| (mean(own.0, other.0), mean(own.1, other.1));
        Self {
            loss: mean(self.loss, later.loss),
            rate: if later.rate.is_nan() {
                self.rate
            } else {
                later.rate
            },
            gradient: mean(self.gradient, later.gradient),
            own_gradient: mean(self.own_gradient, later.own_gradient),
            input: both(self.input, later.input),
            label: both(self.label, later.label),
            label_top: mean(self.label_top, later.label_top),
        }
    }
}

fn parts(parts: &StepParts) -> Parts {
    [
        parts.step,
        parts.data,
        parts.forward,
        parts.backward,
        parts.optimizer,
        // A pool without a save took no time for saving.
        parts.save.or(Some(0.0)),
        parts.host,
        parts.sync,
    ]
    .map(|part| part.unwrap_or(f64::NAN))
}

/// The ranks of a role in a window: their places, and the medians of their peers.
pub(super) struct Role<'a> {
    pub(super) places: Vec<usize>,
    pub(super) steps: Vec<&'a Steps>,
    /// Median of the peers of each rank, per part; `usual` without the longest step, `mean` with it.
    usual: [Vec<(f64, f64)>; PARTS],
    mean: [Vec<(f64, f64)>; PARTS],
}

impl<'a> Role<'a> {
    /// Returns the roles of a window whose ranks can be compared.
    pub(super) fn all(window: &'a Window, members: &Members) -> Vec<Self> {
        let mut by_role: Vec<Vec<usize>> = vec![Vec::new(); members.role_count()];
        for (place, steps) in window.ranks.iter().enumerate() {
            if steps
                .as_ref()
                .is_some_and(|steps| steps.mean[SYNC].is_finite() && steps.mean[STEP] > 0.0)
            {
                by_role[members.role(place)].push(place);
            }
        }
        by_role.retain(|places| places.len() > 1);
        by_role
            .into_iter()
            .map(|places| {
                let steps: Vec<&Steps> = places
                    .iter()
                    .filter_map(|place| window.ranks[*place].as_ref())
                    .collect();
                let of = |value: &dyn Fn(&Steps) -> f64| {
                    peers(&steps.iter().map(|steps| value(steps)).collect::<Vec<_>>())
                };
                Role {
                    usual: std::array::from_fn(|part| of(&|steps| steps.usual(part))),
                    mean: std::array::from_fn(|part| of(&|steps| steps.mean[part])),
                    places,
                    steps,
                }
            })
            .collect()
    }

    /// Returns the lead of a rank per step, without and with the longest step.
    pub(super) fn leads(&self, at: usize) -> (f64, f64) {
        (
            self.usual[SYNC][at].0 - self.steps[at].usual(SYNC),
            self.mean[SYNC][at].0 - self.steps[at].mean[SYNC],
        )
    }

    /// Returns the wait per step of the rank's peers and of the rank itself, including the longest step.
    pub(super) fn peers_wait(&self, at: usize) -> (f64, f64) {
        (self.mean[SYNC][at].0, self.steps[at].mean[SYNC])
    }

    /// Returns the median wait of the peers without the longest step, and their median deviation from it.
    pub(super) fn usual_wait(&self, at: usize) -> (f64, f64) {
        self.usual[SYNC][at]
    }

    /// Returns the median of the peers for a part, without the longest step.
    pub(super) fn usual_of_peers(&self, part: usize, at: usize) -> f64 {
        self.usual[part][at].0
    }

    /// Returns the part in which the rank exceeds its peers most per step, including the longest step, and by how much.
    pub(super) fn largest_excess(&self, at: usize) -> (usize, f64) {
        largest(|part| self.steps[at].mean[part] - self.mean[part][at].0)
    }
}

/// Returns the rank's own part with the largest value. Unknown values are ignored.
pub(super) fn largest(value: impl Fn(usize) -> f64) -> (usize, f64) {
    let known = OWN
        .iter()
        .map(|part| (*part, value(*part)))
        .filter(|(_, value)| value.is_finite());
    known.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((HOST, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::messages::Member;
    use crate::ident::{NodeName, Rank};

    const NODES: [&str; 2] = ["a", "b"];

    fn node(place: usize) -> NodeName {
        NodeName::new(NODES[place]).expect("a name")
    }

    fn pool(place: usize, step: u64, at_ms: TimestampMs) -> Pool {
        Pool {
            rank: Rank(place as u32),
            node: node(place),
            first_step: step,
            last_step: step,
            at_ms,
            mean: StepParts::default(),
            max: StepParts::default(),
            micro_batch: None,
            learning: input::Learning::default(),
            parameters: None,
        }
    }

    /// Returns the steps at which windows end if the clock of the second node is ten minutes behind.
    fn ends_of_windows(steps: u64, step_ms: i64) -> Vec<u64> {
        let member = |place: usize| Member {
            rank: Rank(place as u32),
            node: node(place),
            role: None,
            data_group: None,
        };
        let mut members = Members::new((0..2).map(member).collect());
        let (mut windows, mut ended) = (Windows::new(2), Vec::new());
        for step in 1..=steps {
            // In turn, the pool of one rank and of the other arrives first.
            for place in [step % 2, (step + 1) % 2].map(|place| place as usize) {
                let at_ms = 1_000_000_000 + step as i64 * step_ms - place as i64 * 600_000;
                windows.take(place, &pool(place, step, at_ms));
                members.set_complete_until(place, at_ms);
            }
            ended.extend(windows.close(&members).iter().map(|window| window.last_step));
        }
        ended
    }

    #[test]
    fn windows_end_although_the_clock_of_one_node_is_ten_minutes_behind() {
        assert_eq!(ends_of_windows(6, 1_000), [2, 3, 4, 5, 6]);
    }

    #[test]
    fn windows_are_not_too_short_if_the_clocks_of_nodes_differ() {
        assert_eq!(ends_of_windows(13, 100), [6, 11]);
    }
}
