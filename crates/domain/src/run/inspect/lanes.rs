//! The lanes of a trace: when a rank computed and when it communicated in each step, and how much of the communication is exposed.
//!
//! ```text
//! all-gather       ████    ████              a step lasts from the end of one optimizer step to the end of the next
//! compute             ████████  ██████████   exposed: communication while the rank does not compute
//! reduce-scatter              ████     ████
//! exposed          ███         █        ██
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spans::{Span, SpanSet};

/// Maximum number of steps that are kept of a trace: the first.
const STEPS_MAX: usize = 8;
/// Maximum number of parts into which a step is divided for drawing. A shorter gap between two intervals is closed.
const PARTS_MAX: i64 = 250;

/// The lanes of the trace of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceLanes {
    /// What the intervals are.
    pub source: LaneSource,
    /// Complete steps, in order, at most 8; or the whole trace, if it contains no complete step.
    pub steps: Vec<StepLanes>,
    /// Number of further complete steps in the trace.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps_left_out: u32,
}

/// What the intervals of lanes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneSource {
    /// Kernels on the GPU: communication is NCCL, and all other kernels are compute.
    GpuKernels,
    /// Ranges on the CPU, in a rank without GPU kernels: communication is Gloo, and compute is PyTorch's operators in the threads that train.
    CpuRanges,
}

/// The lanes of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepLanes {
    /// True if this is the whole trace and not a step, because the trace contains no complete step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_trace: bool,
    /// Length of the step in nanoseconds.
    pub duration_ns: u64,
    /// Time with any communication, in nanoseconds.
    pub communication_ns: u64,
    /// Time with communication and without compute, in nanoseconds.
    pub exposed_ns: u64,
    /// Exposed share of the communication, 0 to 1; absent if there is no communication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed_ratio: Option<f64>,
    /// One lane of each kind.
    pub lanes: Vec<Lane>,
}

/// One lane of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lane {
    /// What the lane contains.
    pub kind: LaneKind,
    /// Time with work of this kind, in nanoseconds.
    pub busy_ns: u64,
    /// The part of it without compute, in nanoseconds; absent for the compute lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed_ns: Option<u64>,
    /// Start and end of each interval, in nanoseconds since the start of the step. Gaps shorter than 1/250 of the step are closed, so these
    /// are for drawing; the other values are exact.
    pub spans: Vec<[u64; 2]>,
}

/// What a lane contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneKind {
    /// All-gathers.
    AllGather,
    /// Forward pass, backward pass and optimizer.
    Compute,
    /// Reduce-scatters.
    ReduceScatter,
    /// Other communication: all-reduces, broadcasts, sends, receives.
    OtherCommunication,
}

impl LaneKind {
    /// All kinds, in the order in which lanes are shown.
    pub const ALL: [Self; 4] = [
        Self::AllGather,
        Self::Compute,
        Self::ReduceScatter,
        Self::OtherCommunication,
    ];

    /// Returns the position of the kind in [`ALL`](Self::ALL).
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// The lanes of a trace, or why there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LanesAnswer {
    /// The lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<TraceLanes>,
    /// Why there are none, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The time of each kind of work in a trace, by [`LaneKind::index`].
pub(super) type Work = [SpanSet; 4];

/// Divides the work of a trace into steps. `step_ends` are the ranges of the optimizer's steps. Returns `None` if there is no work.
pub(super) fn divide(source: LaneSource, work: &Work, step_ends: Vec<Span>) -> Option<TraceLanes> {
    // An optimizer that calls another one has a range around its range.
    let ends = SpanSet::of(step_ends);
    let between = |pair: &[Span]| match pair {
        [before, last] => Some(Span {
            start: before.end,
            end: last.end,
        }),
        _ => None,
    };
    let windows: Vec<Span> = ends.spans().windows(2).filter_map(between).collect();
    let mut steps: Vec<StepLanes> = windows
        .iter()
        .take(STEPS_MAX)
        .map(|window| step(work, *window, false))
        .collect();
    if steps.is_empty() {
        let hulls: Vec<Span> = work.iter().filter_map(SpanSet::hull).collect();
        let whole = Span {
            start: hulls.iter().map(|hull| hull.start).min()?,
            end: hulls.iter().map(|hull| hull.end).max()?,
        };
        steps.push(step(work, whole, true));
    }
    let left_out = windows.len().saturating_sub(STEPS_MAX);
    Some(TraceLanes {
        source,
        steps,
        steps_left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
    })
}

fn step(work: &Work, window: Span, whole_trace: bool) -> StepLanes {
    let inside = work.each_ref().map(|spans| spans.within(window));
    let compute = &inside[LaneKind::Compute.index()];
    let is_communication = |kind: &LaneKind| *kind != LaneKind::Compute;
    let communication = LaneKind::ALL.into_iter().filter(is_communication);
    let communication: Vec<Span> = communication
        .flat_map(|kind| inside[kind.index()].spans().iter().copied())
        .collect();
    let communication = SpanSet::of(communication);
    let (total, exposed) = (communication.total(), communication.minus(compute).total());
    let lane = |kind: LaneKind| {
        let spans = &inside[kind.index()];
        Lane {
            kind,
            busy_ns: spans.total(),
            exposed_ns: is_communication(&kind).then(|| spans.minus(compute).total()),
            spans: drawn(spans, window),
        }
    };
    StepLanes {
        whole_trace,
        duration_ns: window.length(),
        communication_ns: total,
        exposed_ns: exposed,
        exposed_ratio: (total > 0).then(|| exposed as f64 / total as f64),
        lanes: LaneKind::ALL.map(lane).into(),
    }
}

/// Returns the intervals of a lane relative to the start of the step. They are at most one more than [`PARTS_MAX`], because the gaps between
/// them fill the step.
fn drawn(spans: &SpanSet, window: Span) -> Vec<[u64; 2]> {
    let gap = (window.end - window.start) / PARTS_MAX;
    let since = |time: i64| u64::try_from(time - window.start).unwrap_or(0);
    let spans = spans.without_gaps(gap);
    let pair = |span: &Span| [since(span.start), since(span.end)];
    spans.spans().iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn spans(pairs: &[(i64, i64)]) -> Vec<Span> {
        pairs.iter().map(|&(start, end)| Span { start, end }).collect()
    }

    fn work(of: [&[(i64, i64)]; 4]) -> Work {
        of.map(|pairs| SpanSet::of(spans(pairs)))
    }

    #[test]
    fn communication_is_exposed_where_the_rank_does_not_compute() {
        // Two collectives overlap from 40 to 50. Compute covers 20 to 45.
        let work = work([&[(10, 30), (40, 50)], &[(20, 45)], &[(40, 60)], &[]]);
        let lanes = divide(LaneSource::GpuKernels, &work, spans(&[(-5, 0), (90, 100)])).unwrap();
        let [step] = &lanes.steps[..] else {
            panic!("{lanes:?}");
        };
        assert_eq!((step.duration_ns, step.whole_trace), (100, false));
        assert_eq!((step.communication_ns, step.exposed_ns), (40, 25));
        assert_eq!(step.exposed_ratio, Some(0.625));
        let values: Vec<_> = step
            .lanes
            .iter()
            .map(|lane| (lane.kind, lane.busy_ns, lane.exposed_ns))
            .collect();
        assert_eq!(
            values,
            [
                (LaneKind::AllGather, 30, Some(15)),
                (LaneKind::Compute, 25, None),
                (LaneKind::ReduceScatter, 20, Some(15)),
                (LaneKind::OtherCommunication, 0, Some(0)),
            ]
        );
        assert_eq!(step.lanes[0].spans, [[10, 30], [40, 50]]);
    }

    #[test]
    fn work_across_the_end_of_a_step_belongs_to_both_steps() {
        let work = work([&[], &[(0, 10)], &[], &[(95, 110)]]);
        let lanes = divide(
            LaneSource::GpuKernels,
            &work,
            spans(&[(40, 50), (90, 100), (140, 150)]),
        )
        .unwrap();
        let busy: Vec<u64> = lanes.steps.iter().map(|step| step.communication_ns).collect();
        assert_eq!(busy, [5, 10]);
        assert!(lanes.steps.iter().all(|step| step.exposed_ratio == Some(1.0)));
        assert_eq!(lanes.steps[1].lanes[3].spans, [[0, 10]]);
    }

    #[test]
    fn a_trace_without_a_complete_step_is_shown_whole_and_says_so() {
        let work = work([&[(5, 10)], &[(8, 25)], &[], &[]]);
        for ends in [&[][..], &[(9, 12)]] {
            let lanes = divide(LaneSource::CpuRanges, &work, spans(ends)).unwrap();
            let [whole] = &lanes.steps[..] else {
                panic!("{lanes:?}");
            };
            assert_eq!(
                (whole.whole_trace, whole.duration_ns, whole.exposed_ns),
                (true, 20, 3)
            );
        }
        assert_eq!(divide(LaneSource::CpuRanges, &Work::default(), Vec::new()), None);
    }

    #[test]
    fn of_many_steps_and_intervals_a_bounded_number_is_kept_with_exact_times() {
        let kernels: Vec<Span> = (0..100_000)
            .map(|n| Span {
                start: 10 * n,
                end: 10 * n + 9,
            })
            .collect();
        let mut work = Work::default();
        work[LaneKind::Compute.index()] = SpanSet::of(kernels);
        let ends = (0..=10).map(|n| Span {
            start: 100_000 * n - 1,
            end: 100_000 * n,
        });
        let lanes = divide(LaneSource::GpuKernels, &work, ends.collect()).unwrap();
        assert_eq!((lanes.steps.len(), lanes.steps_left_out), (STEPS_MAX, 2));
        let compute = &lanes.steps[0].lanes[LaneKind::Compute.index()];
        assert_eq!((compute.busy_ns, compute.spans.len()), (90_000, 1));
        let sparse: Vec<Span> = (0..1_000)
            .map(|n| Span {
                start: 100 * n,
                end: 100 * n + 1,
            })
            .collect();
        let window = Span {
            start: 0,
            end: 100_000,
        };
        assert!(drawn(&SpanSet::of(sparse), window).len() <= 251);
    }
}
