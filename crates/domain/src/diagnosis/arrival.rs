//! Finds ranks that arrive late at collectives, by comparing the arrivals of all ranks at the same collective.
//!
//! ```text
//! arrivals of ranks ──▶ Window (the newest collectives, by function and sequence number) ──▶ lateness by rank ──▶ late_ranks
//! ```
//! A collective ends for all ranks when the last rank has arrived and the data has moved. Therefore, if the kernels were timed, the rank
//! with the shortest kernel arrived last. A rank arrived later than the first by the difference between the longest kernel and its own; no
//! common clock is needed. If the kernels were not timed, the times at which the ranks enqueued the collective are used; they need clocks
//! that agree. A rank whose GPU is slow may still enqueue in time, so the two measures are never mixed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of collectives of one communicator that are compared. If there are more, the oldest is dropped.
const COLLECTIVES_MAX: usize = 64;
/// Maximum number of ranks of one communicator. Other ranks are not compared.
const RANKS_MAX: usize = 16_384;
/// Minimum number of collectives: with fewer, a late rank cannot be told from chance.
const COLLECTIVES_MIN: usize = 3;
/// Minimum lateness in seconds. Ranks always differ by some hundred microseconds; a smaller delay costs a step next to nothing.
const LATE_SECONDS_MIN: f64 = 0.001;
/// Minimum lateness of a late rank, as a share of that of the latest rank.
const SHARE_OF_LATEST: f64 = 0.5;
/// Maximum lateness of the middle rank, as a share of that of the latest. Above it, all ranks differ by chance and none is late.
const USUAL_SHARE_MAX: f64 = 0.25;

/// Arrival of one rank at one collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Number of the rank.
    pub rank: u32,
    /// When the rank enqueued the collective, in nanoseconds since the Unix epoch, corrected by the offset of its clock.
    pub at_ns: i64,
    /// Duration of the rank's kernel on the GPU, if it was timed.
    pub duration_ns: Option<u64>,
}

/// How lateness was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// By the duration of kernels.
    Kernel,
    /// By the time of enqueueing.
    Enqueue,
}

impl Measure {
    /// Returns the word used in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Measure::Kernel => "kernel",
            Measure::Enqueue => "enqueue",
        }
    }
}

/// Usual lateness of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lateness {
    /// Number of the rank.
    pub rank: u32,
    /// Median time in seconds between the first rank and this rank, over the compared collectives.
    pub seconds: f64,
    /// Number of compared collectives.
    pub collectives: usize,
}

/// The newest collectives of one communicator.
#[derive(Debug, Clone, Default)]
pub struct Window {
    collectives: BTreeMap<Collective, BTreeMap<u32, Arrival>>,
    /// Collectives in the order of their first arrival.
    order: VecDeque<Collective>,
}

/// Identifies a collective in its communicator: the function, and its sequence number.
type Collective = (Arc<str>, u64);

impl Window {
    /// Adds an arrival. If it is known without its duration, sets the duration.
    pub fn add(&mut self, function: &Arc<str>, sequence: u64, arrival: Arrival) {
        let key = (Arc::clone(function), sequence);
        if !self.collectives.contains_key(&key) {
            if self.order.len() >= COLLECTIVES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.collectives.remove(&oldest);
            }
            self.order.push_back(key.clone());
        }
        let ranks = self.collectives.entry(key).or_default();
        let known = ranks.get(&arrival.rank).copied();
        if known.is_none() && ranks.len() >= RANKS_MAX {
            return;
        }
        let duration_ns = arrival.duration_ns.or(known.and_then(|known| known.duration_ns));
        ranks.insert(
            arrival.rank,
            Arrival {
                duration_ns,
                ..arrival
            },
        );
    }

    /// Returns the usual lateness of each rank, ordered by rank; by kernels if enough of them were timed. Returns `None` if there are too
    /// few collectives.
    #[must_use]
    pub fn lateness(&self) -> Option<(Measure, Vec<Lateness>)> {
        [Measure::Kernel, Measure::Enqueue]
            .into_iter()
            .find_map(|measure| {
                let usual = usual_lateness(self.collectives.values(), measure);
                (!usual.is_empty()).then_some((measure, usual))
            })
    }
}

/// Returns the ranks that make the others wait, the latest first. Returns none if all ranks differ only by chance.
#[must_use]
pub fn late_ranks(usual: &[Lateness]) -> Vec<Lateness> {
    let mut late: Vec<Lateness> = usual.to_vec();
    late.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let Some(latest) = late.first().map(|latest| latest.seconds) else {
        return Vec::new();
    };
    // With two ranks, this takes the lateness of the rank that arrives first.
    let middle = late[late.len() / 2].seconds;
    if latest < LATE_SECONDS_MIN || middle > latest * USUAL_SHARE_MAX {
        return Vec::new();
    }
    late.retain(|lateness| lateness.seconds >= latest * SHARE_OF_LATEST);
    late
}

fn usual_lateness<'a>(
    collectives: impl Iterator<Item = &'a BTreeMap<u32, Arrival>>,
    measure: Measure,
) -> Vec<Lateness> {
    let mut by_rank: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for arrivals in collectives {
        for (rank, seconds) in lateness(arrivals.values(), measure) {
            by_rank.entry(rank).or_default().push(seconds);
        }
    }
    let enough = by_rank
        .into_iter()
        .filter(|(_, seconds)| seconds.len() >= COLLECTIVES_MIN);
    enough
        .map(|(rank, mut seconds)| Lateness {
            rank,
            collectives: seconds.len(),
            seconds: median(&mut seconds),
        })
        .collect()
}

/// Returns for one collective the seconds between the first rank and each rank. Returns nothing if the measure is missing for a rank or
/// there is only one rank.
fn lateness<'a>(arrivals: impl Iterator<Item = &'a Arrival> + Clone, measure: Measure) -> Vec<(u32, f64)> {
    // A long kernel means an early arrival. Negated durations therefore have the order of the arrivals.
    let came = |arrival: &Arrival| match measure {
        Measure::Kernel => arrival
            .duration_ns
            .and_then(|ns| i64::try_from(ns).ok())
            .map(|ns| -ns),
        Measure::Enqueue => Some(arrival.at_ns),
    };
    let times: Option<Vec<(u32, i64)>> = arrivals
        .map(|arrival| came(arrival).map(|came| (arrival.rank, came)))
        .collect();
    let times = times.filter(|times| times.len() >= 2).unwrap_or_default();
    let first = times.iter().map(|(_, came)| *came).min().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a difference within one collective")]
    let seconds = |came: i64| came.saturating_sub(first) as f64 / 1e9;
    times
        .into_iter()
        .map(|(rank, came)| (rank, seconds(came)))
        .collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Ranks arrive within 0.3 ms of each other, those in `late` later by the given time. All kernels end together, 2 ms after the last
    /// arrival.
    fn window(ranks: u32, collectives: u64, late: &[(u32, i64)], timed: bool) -> Window {
        let mut window = Window::default();
        let function = Arc::from("AllReduce");
        for sequence in 0..collectives {
            let came = |rank: u32| {
                let scatter = (i64::from(rank) * 7_919 + sequence as i64 * 104_729) % 300 * 1_000;
                let by = late.iter().find(|(of, _)| *of == rank).map_or(0, |(_, by)| *by);
                sequence as i64 * 50 * MS + scatter + by
            };
            let end = (0..ranks).map(came).max().unwrap_or(0) + 2 * MS;
            for rank in 0..ranks {
                let arrival = Arrival {
                    rank,
                    at_ns: came(rank),
                    duration_ns: timed.then(|| end.abs_diff(came(rank))),
                };
                window.add(&function, sequence, arrival);
            }
        }
        window
    }

    fn named(window: &Window) -> Vec<u32> {
        let (_, usual) = window.lateness().unwrap_or((Measure::Enqueue, Vec::new()));
        late_ranks(&usual).iter().map(|late| late.rank).collect()
    }

    #[test]
    fn the_one_late_rank_of_64_is_named_by_either_measure() {
        for (timed, measure) in [(true, Measure::Kernel), (false, Measure::Enqueue)] {
            let window = window(64, 10, &[(37, 3 * MS)], timed);
            assert_eq!(named(&window), [37]);
            let (by, usual) = window.lateness().unwrap_or((Measure::Enqueue, Vec::new()));
            assert_eq!((by, usual.len()), (measure, 64));
            assert!((usual[37].seconds - 0.003).abs() < 0.000_4, "{:?}", usual[37]);
        }
    }

    #[test]
    fn no_rank_is_named_if_all_vary_equally() {
        assert_eq!(named(&window(64, 10, &[], true)), [] as [u32; 0]);
        let all: Vec<(u32, i64)> = (0..64).map(|rank| (rank, i64::from(rank) * MS)).collect();
        assert_eq!(named(&window(64, 10, &all, true)), [] as [u32; 0]);
    }

    #[test]
    fn a_late_node_is_named_with_all_its_ranks_and_one_of_two_as_well() {
        let node: Vec<(u32, i64)> = (8..16).map(|rank| (rank, 5 * MS)).collect();
        let mut late = named(&window(64, 10, &node, true));
        late.sort_unstable();
        assert_eq!(late, (8..16).collect::<Vec<u32>>());
        assert_eq!(named(&window(2, 10, &[(1, 5 * MS)], true)), [1]);
    }

    #[test]
    fn two_collectives_or_one_rank_say_nothing() {
        assert!(window(64, 2, &[(3, 9 * MS)], true).lateness().is_none());
        assert!(window(1, 10, &[], true).lateness().is_none());
    }

    #[test]
    fn a_clock_that_is_wrong_does_not_matter_to_kernels() {
        let right = window(8, 10, &[(5, 3 * MS)], true);
        let mut wrong = Window::default();
        for ((function, sequence), arrivals) in &right.collectives {
            for arrival in arrivals.values() {
                let off = i64::from(arrival.rank == 2) * 400 * MS;
                let arrival = Arrival {
                    at_ns: arrival.at_ns + off,
                    ..*arrival
                };
                wrong.add(function, *sequence, arrival);
            }
        }
        assert_eq!(named(&wrong), [5]);
    }

    #[test]
    fn the_oldest_collective_goes_and_a_late_duration_completes_an_arrival() {
        let mut window = window(4, 200, &[], false);
        assert_eq!(window.collectives.len(), COLLECTIVES_MAX);
        let function = Arc::from("AllReduce");
        for sequence in 190..200 {
            for rank in 0..4 {
                let arrival = Arrival {
                    rank,
                    at_ns: 0,
                    duration_ns: Some(if rank == 1 { 1_000 } else { 9_000_000 }),
                };
                window.add(&function, sequence, arrival);
                // A second report without a duration does not remove the known one.
                window.add(
                    &function,
                    sequence,
                    Arrival {
                        duration_ns: None,
                        ..arrival
                    },
                );
            }
        }
        assert_eq!(named(&window), [1]);
    }
}
