//! The speed of the job: full speed, except for the periods in which something slows or stops it.
//!
//! ```text
//!  pace    1 ─────────┐         ┌───────┐       ┌──────
//!        .55          └──────┐  │       │       │
//!          0                 └──┘       └───────┘
//!                throttled  lost          paused
//!  spin    0 ─────────┐      ┌──┐               the other ranks wait in a collective; no rank does in a pause
//! ```
//!
//! The values that depend on the pace are its integrals. Each is a sum of periods, none of which can decrease, so rounding cannot make a
//! counter decrease.

use super::fault::Window;

/// Something that slows or stops the job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Drag {
    pub window: Window,
    pub kind: DragKind,
}

/// The effect of a drag.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum DragKind {
    /// All ranks have this pace, because this GPU (`here`) or another one is not faster.
    Slow { pace: f64, here: bool },
    /// The job is not running.
    Pause,
}

/// Seconds of the job, counted in four ways.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Flow {
    /// In the job's own time.
    pub progress: f64,
    /// In which this GPU worked: a slow GPU works all the time.
    pub active: f64,
    /// In which this GPU waited for others.
    pub waiting: f64,
    /// In which the job was slowed or stopped.
    pub held: f64,
}

impl Flow {
    fn after(self, rate: Flow, seconds: f64) -> Flow {
        Flow {
            progress: self.progress + rate.progress * seconds,
            active: self.active + rate.active * seconds,
            waiting: self.waiting + rate.waiting * seconds,
            held: self.held + rate.held * seconds,
        }
    }
}

/// The pace at all times.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// In the order of time, without gaps. Before the first one the job has full speed.
    stretches: Vec<Stretch>,
}

#[derive(Debug, Clone, Copy)]
struct Stretch {
    start: f64,
    until_start: Flow,
    rate: Flow,
    paused: bool,
}

impl Pace {
    pub(crate) fn new(drags: &[Drag]) -> Pace {
        let ends = drags.iter().flat_map(|drag| [drag.window.start, drag.window.end]);
        let mut starts: Vec<f64> = ends.filter(|t| t.is_finite()).collect();
        starts.sort_by(f64::total_cmp);
        starts.dedup();
        let mut pace = Pace {
            stretches: Vec::with_capacity(starts.len()),
        };
        for start in starts {
            let until_start = pace.flow(start);
            let (rate, paused) = rate(drags.iter().filter(|drag| drag.window.holds(start)));
            pace.stretches.push(Stretch {
                start,
                until_start,
                rate,
                paused,
            });
        }
        pace
    }

    /// Returns the flow until `t`. Job time equals simulated time until something slows the job.
    pub(crate) fn flow(&self, t: f64) -> Flow {
        self.stretch(t).map_or(
            Flow {
                progress: t,
                active: t,
                ..Flow::default()
            },
            |stretch| stretch.until_start.after(stretch.rate, t - stretch.start),
        )
    }

    /// Returns true if the job is paused at `t`.
    pub(crate) fn is_paused(&self, t: f64) -> bool {
        self.stretch(t).is_some_and(|stretch| stretch.paused)
    }

    fn stretch(&self, t: f64) -> Option<&Stretch> {
        let after = self.stretches.partition_point(|stretch| stretch.start <= t);
        after.checked_sub(1).map(|index| &self.stretches[index])
    }
}

/// Returns the flow per second with these drags. The worst of them counts.
fn rate<'a>(drags: impl Iterator<Item = &'a Drag>) -> (Flow, bool) {
    let (mut slowest, mut is_here) = (1.0, false);
    for drag in drags {
        match drag.kind {
            DragKind::Pause => return (Flow::default(), true),
            DragKind::Slow { pace, here } if pace < slowest => (slowest, is_here) = (pace, here),
            DragKind::Slow { pace, here } => is_here |= here && pace <= slowest && pace < 1.0,
        }
    }
    let held = 1.0 - slowest;
    let flow = Flow {
        progress: slowest,
        active: if is_here { 1.0 } else { slowest },
        waiting: if is_here { 0.0 } else { held },
        held,
    };
    (flow, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(start: f64, end: f64, pace: f64, here: bool) -> Drag {
        Drag {
            window: Window { start, end },
            kind: DragKind::Slow { pace, here },
        }
    }

    fn pause(start: f64, end: f64) -> Drag {
        Drag {
            window: Window { start, end },
            kind: DragKind::Pause,
        }
    }

    #[test]
    fn the_worst_drag_of_a_moment_counts() {
        let pace = Pace::new(&[
            slow(10.0, 40.0, 0.5, true),
            slow(20.0, 30.0, 0.0, false),
            pause(60.0, 70.0),
        ]);
        // (time, progress, active, waiting)
        for (t, progress, active, waiting) in [
            (5.0, 5.0, 5.0, 0.0),
            (20.0, 15.0, 20.0, 0.0),
            (30.0, 15.0, 20.0, 10.0),
            (40.0, 20.0, 30.0, 10.0),
            (60.0, 40.0, 50.0, 10.0),
            (70.0, 40.0, 50.0, 10.0),
            (75.0, 45.0, 55.0, 10.0),
        ] {
            let flow = pace.flow(t);
            assert_eq!(
                (flow.progress, flow.active, flow.waiting),
                (progress, active, waiting),
                "at {t}"
            );
        }
        assert!(pace.is_paused(65.0) && !pace.is_paused(59.0) && !pace.is_paused(70.0));
    }

    #[test]
    fn a_drag_without_end_lasts() {
        let pace = Pace::new(&[slow(10.0, f64::INFINITY, 0.0, false)]);
        assert_eq!(pace.flow(1e6).progress, 10.0);
        assert_eq!(Pace::new(&[]).flow(-3_600.0).progress, -3_600.0);
    }
}
