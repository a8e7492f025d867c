//! What goes wrong with a GPU, and when.

use std::mem;
use std::time::Duration;

/// A stretch of simulated time, in seconds since the start; `end` is infinite where nothing ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    pub start: f64,
    pub end: f64,
}

impl Window {
    /// Whether the two have a moment in common.
    pub(crate) fn overlaps(self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether `t` is inside; the end is not.
    pub(crate) fn holds(self, t: f64) -> bool {
        (self.start..self.end).contains(&t)
    }

    /// Whether the window has begun, ended or not.
    pub(crate) fn has_begun(self, t: f64) -> bool {
        t >= self.start
    }

    /// How many seconds of the window have passed at `t`.
    pub(crate) fn passed(self, t: f64) -> f64 {
        if t <= self.start {
            0.0
        } else {
            t.min(self.end) - self.start
        }
    }

    /// How far something that follows the window with time constant `tau` has come: 0 before,
    /// towards 1 inside, back towards 0 after.
    pub(crate) fn followed(self, t: f64, tau: f64) -> f64 {
        let risen = 1.0 - (-self.passed(t) / tau).exp();
        if t > self.end {
            risen * (-(t - self.end) / tau).exp()
        } else {
            risen
        }
    }
}

/// The kinds of trouble a scenario can bring to a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    /// The GPU slows itself down.
    Throttle(Slowdown),
    /// Almost no free memory.
    MemoryPressure,
    /// Corrected errors in a storm, then some that cannot be corrected.
    Ecc(Place),
    /// The driver reports this Xid; after 79 the GPU is gone.
    Xid(u64),
    /// One NVLink stops.
    LinkDown(u32),
    /// One NVLink makes this many errors a second, and goes on.
    LinkErrors { link: u32, per_second: u32 },
    /// The PCIe link trained to fewer lanes or an older generation, and packets are replayed.
    PcieDegraded { width: u32, generation: u32 },
    /// The GPU answers nothing but "GPU is lost".
    Lost,
    /// Every call takes this long.
    SlowCall(Duration),
    /// Calls do not return.
    Hang,
}

/// What makes a GPU slow down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slowdown {
    /// Too hot.
    Thermal,
    /// At its power limit.
    Power,
    /// The power supply asked for it.
    PowerBrake,
}

impl Slowdown {
    /// Clocks, and with them the job, over their best.
    pub(crate) fn pace(self) -> f64 {
        match self {
            Slowdown::Thermal => 0.55,
            Slowdown::Power => 0.8,
            Slowdown::PowerBrake => 0.5,
        }
    }
}

/// Where memory errors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Device memory, whose rows can be remapped.
    Dram,
    /// Caches and registers.
    Sram,
}

impl Trouble {
    /// "GPU has fallen off the bus": no call works afterwards.
    pub(crate) const XID_OFF_THE_BUS: u64 = 79;

    /// Whether the GPU is gone while this lasts.
    pub(crate) fn loses_gpu(self) -> bool {
        matches!(self, Trouble::Lost | Trouble::Xid(Self::XID_OFF_THE_BUS))
    }

    /// How fast the whole job goes while one of its GPUs has this trouble: training is synchronous,
    /// so all ranks go at the pace of the slowest, and stand still when one is gone.
    pub(crate) fn job_pace(self) -> f64 {
        match self {
            Trouble::Throttle(brake) => brake.pace(),
            Trouble::LinkDown(_) | Trouble::PcieDegraded { .. } => 0.9,
            other if other.loses_gpu() => 0.0,
            _ => 1.0,
        }
    }

    /// Whether it concerns every GPU when the spec names none.
    pub(crate) fn is_for_all(self) -> bool {
        matches!(self, Trouble::MemoryPressure | Trouble::SlowCall(_))
    }

    /// Whether a GPU cannot have both at once: the same part would have to be broken in two ways.
    pub(crate) fn excludes(self, other: Trouble) -> bool {
        match (self, other) {
            (Trouble::LinkDown(one), Trouble::LinkDown(other)) => one == other,
            (Trouble::LinkErrors { link: one, .. }, Trouble::LinkErrors { link: other, .. }) => one == other,
            (Trouble::Ecc(one), Trouble::Ecc(other)) => one == other,
            // An Xid is a moment, unless the GPU is gone from then on.
            (Trouble::Xid(_), Trouble::Xid(_)) => self.loses_gpu() && other.loses_gpu(),
            _ => mem::discriminant(&self) == mem::discriminant(&other),
        }
    }
}

/// Trouble of one GPU in its window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fault {
    pub trouble: Trouble,
    pub window: Window,
}

impl Fault {
    /// When an ECC storm meets its uncorrectable error: half-way, and 20 s after the start at the latest.
    pub(crate) fn uncorrectable_at(self) -> f64 {
        self.window.start + ((self.window.end - self.window.start) / 2.0).min(20.0)
    }
}

/// What a fault does to a call before it is answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gate {
    Open,
    /// The call takes this long.
    Slow(Duration),
    /// The call returns when simulated time reaches this (infinity: never).
    Until(f64),
    /// The GPU is gone.
    Lost,
}

impl Gate {
    /// The one that a call meets where there are two.
    pub(crate) fn or_worse(self, other: Gate) -> Gate {
        match (self, other) {
            (Gate::Lost, _) | (_, Gate::Lost) => Gate::Lost,
            (Gate::Until(one), Gate::Until(other)) => Gate::Until(one.max(other)),
            (Gate::Until(_), _) | (_, Gate::Open) => self,
            (_, Gate::Until(_)) | (Gate::Open, _) => other,
            (Gate::Slow(one), Gate::Slow(other)) => Gate::Slow(one.max(other)),
        }
    }
}

impl Fault {
    /// What a call made at `t` meets.
    pub(crate) fn gate(self, t: f64) -> Gate {
        if !self.window.holds(t) {
            return Gate::Open;
        }
        match self.trouble {
            Trouble::SlowCall(delay) => Gate::Slow(delay),
            Trouble::Hang => Gate::Until(self.window.end),
            trouble if trouble.loses_gpu() => Gate::Lost,
            _ => Gate::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        start: 10.0,
        end: 30.0,
    };

    #[test]
    fn windows_count_their_own_seconds() {
        for (t, holds, passed) in [
            (0.0, false, 0.0),
            (10.0, true, 0.0),
            (15.0, true, 5.0),
            (30.0, false, 20.0),
            (99.0, false, 20.0),
        ] {
            assert_eq!((WINDOW.holds(t), WINDOW.passed(t)), (holds, passed), "at {t}");
        }
        let next = Window {
            start: 30.0,
            end: 40.0,
        };
        assert!(!WINDOW.overlaps(next) && next.overlaps(next));
    }

    #[test]
    fn following_rises_and_falls() {
        assert_eq!(WINDOW.followed(9.0, 4.0), 0.0);
        assert!(WINDOW.followed(29.0, 4.0) > 0.98);
        assert!(WINDOW.followed(60.0, 4.0) < 0.01);
    }

    #[test]
    fn gates_follow_the_trouble() {
        let gate = |trouble, t| {
            Fault {
                trouble,
                window: WINDOW,
            }
            .gate(t)
        };
        assert_eq!(gate(Trouble::Lost, 9.9), Gate::Open);
        assert_eq!(gate(Trouble::Lost, 10.0), Gate::Lost);
        assert_eq!(gate(Trouble::Xid(79), 11.0), Gate::Lost);
        assert_eq!(gate(Trouble::Xid(31), 11.0), Gate::Open);
        assert_eq!(gate(Trouble::Hang, 11.0), Gate::Until(30.0));
        let delay = Duration::from_millis(5);
        assert_eq!(gate(Trouble::SlowCall(delay), 11.0), Gate::Slow(delay));
        assert_eq!(gate(Trouble::Throttle(Slowdown::Thermal), 11.0), Gate::Open);
    }

    #[test]
    fn uncorrectable_error_comes_within_the_window() {
        let at = |end| {
            Fault {
                trouble: Trouble::Ecc(Place::Dram),
                window: Window { start: 10.0, end },
            }
            .uncorrectable_at()
        };
        assert_eq!(at(f64::INFINITY), 30.0);
        assert_eq!(at(14.0), 12.0);
    }
    #[test]
    fn the_worst_of_two_gates_is_met() {
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(9));
        let cases = [
            (Gate::Open, Gate::Open, Gate::Open),
            (Gate::Open, Gate::Slow(short), Gate::Slow(short)),
            (Gate::Slow(long), Gate::Slow(short), Gate::Slow(long)),
            (Gate::Slow(long), Gate::Until(3.0), Gate::Until(3.0)),
            (Gate::Until(9.0), Gate::Until(3.0), Gate::Until(9.0)),
            (Gate::Until(9.0), Gate::Lost, Gate::Lost),
        ];
        for (one, other, met) in cases {
            assert_eq!(
                (one.or_worse(other), other.or_worse(one)),
                (met, met),
                "{one:?} {other:?}"
            );
        }
    }

    #[test]
    fn only_the_same_part_cannot_break_twice() {
        let errors = |link| Trouble::LinkErrors { link, per_second: 1 };
        let cases = [
            (Trouble::Hang, Trouble::Hang, true),
            (Trouble::Hang, Trouble::Lost, false),
            (Trouble::LinkDown(1), Trouble::LinkDown(1), true),
            (Trouble::LinkDown(1), Trouble::LinkDown(2), false),
            (errors(4), errors(4), true),
            (errors(4), Trouble::LinkDown(4), false),
            (
                Trouble::Throttle(Slowdown::Power),
                Trouble::Throttle(Slowdown::Thermal),
                true,
            ),
            (Trouble::Ecc(Place::Dram), Trouble::Ecc(Place::Sram), false),
            (Trouble::Xid(31), Trouble::Xid(31), false),
            (Trouble::Xid(79), Trouble::Xid(79), true),
        ];
        for (one, other, excludes) in cases {
            assert_eq!(
                (one.excludes(other), other.excludes(one)),
                (excludes, excludes),
                "{one:?} {other:?}"
            );
        }
    }
}
