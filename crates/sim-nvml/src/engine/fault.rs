//! The faults of a GPU, and when they happen.

use std::mem;
use std::time::Duration;

/// A period of simulated time, in seconds since the start. `end` is infinite if the period does not end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    pub start: f64,
    pub end: f64,
}

impl Window {
    /// Returns true if the two periods overlap.
    pub(crate) fn overlaps(self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns true if `t` is inside. The end is not inside.
    pub(crate) fn holds(self, t: f64) -> bool {
        (self.start..self.end).contains(&t)
    }

    /// Returns true if the window has begun, even if it has ended.
    pub(crate) fn has_begun(self, t: f64) -> bool {
        t >= self.start
    }

    /// Returns how many seconds of the window have passed at `t`.
    pub(crate) fn passed(self, t: f64) -> f64 {
        if t <= self.start {
            0.0
        } else {
            t.min(self.end) - self.start
        }
    }

    /// Returns the level of a value that follows the window with time constant `tau`: 0 before, rising towards 1 inside, falling towards 0
    /// after.
    pub(crate) fn followed(self, t: f64, tau: f64) -> f64 {
        let risen = 1.0 - (-self.passed(t) / tau).exp();
        if t > self.end {
            risen * (-(t - self.end) / tau).exp()
        } else {
            risen
        }
    }
}

/// The kinds of faults that a scenario can cause in a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FaultKind {
    /// The GPU reduces its clocks.
    Throttle(Slowdown),
    /// There is almost no free memory.
    MemoryPressure,
    /// Many corrected errors, then some that cannot be corrected.
    Ecc(MemoryKind),
    /// The driver reports this Xid. After 79 the GPU is gone.
    Xid(u64),
    /// One NVLink is down.
    LinkDown(u32),
    /// One NVLink makes this number of errors per second, but works.
    LinkErrors { link: u32, per_second: u32 },
    /// The PCIe link has fewer lanes or an older generation, and packets are replayed.
    PcieDegraded { width: u32, generation: u32 },
    /// The GPU answers every call with "GPU is lost".
    Lost,
    /// Every call takes this long.
    SlowCall(Duration),
    /// Calls do not return.
    Hang,
}

/// Why a GPU reduces its clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slowdown {
    /// It is too hot.
    Thermal,
    /// It is at its power limit.
    Power,
    /// The power supply requested it.
    PowerBrake,
}

impl Slowdown {
    /// Returns the clocks, and the speed of the job, as a share of their maximum.
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
pub(crate) enum MemoryKind {
    /// Device memory. Its rows can be remapped.
    Dram,
    /// Caches and registers.
    Sram,
}

impl FaultKind {
    /// "GPU has fallen off the bus": no call works afterwards.
    pub(crate) const XID_OFF_THE_BUS: u64 = 79;

    /// Returns true if the GPU is gone during this fault.
    pub(crate) fn loses_gpu(self) -> bool {
        matches!(self, FaultKind::Lost | FaultKind::Xid(Self::XID_OFF_THE_BUS))
    }

    /// Returns the speed of the whole job during this fault of one of its GPUs. Training is synchronous: all ranks are as slow as the
    /// slowest, and stop if one is gone.
    pub(crate) fn job_pace(self) -> f64 {
        match self {
            FaultKind::Throttle(brake) => brake.pace(),
            FaultKind::LinkDown(_) | FaultKind::PcieDegraded { .. } => 0.9,
            other if other.loses_gpu() => 0.0,
            _ => 1.0,
        }
    }

    /// Returns true if the fault affects every GPU when the specification names none.
    pub(crate) fn is_for_all(self) -> bool {
        matches!(self, FaultKind::MemoryPressure | FaultKind::SlowCall(_))
    }

    /// Returns true if a GPU cannot have both faults at once, because they affect the same part.
    pub(crate) fn excludes(self, other: FaultKind) -> bool {
        match (self, other) {
            (FaultKind::LinkDown(one), FaultKind::LinkDown(other)) => one == other,
            (FaultKind::LinkErrors { link: one, .. }, FaultKind::LinkErrors { link: other, .. }) => {
                one == other
            }
            (FaultKind::Ecc(one), FaultKind::Ecc(other)) => one == other,
            // An Xid is a single event, unless the GPU is gone afterwards.
            (FaultKind::Xid(_), FaultKind::Xid(_)) => self.loses_gpu() && other.loses_gpu(),
            _ => mem::discriminant(&self) == mem::discriminant(&other),
        }
    }
}

/// A fault of one GPU and its window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fault {
    pub kind: FaultKind,
    pub window: Window,
}

impl Fault {
    /// Returns when an ECC storm has its uncorrectable error: after half of the window, but at most 20 s after its start.
    pub(crate) fn uncorrectable_at(self) -> f64 {
        self.window.start + ((self.window.end - self.window.start) / 2.0).min(20.0)
    }
}

/// The effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CallEffect {
    /// The call is not affected.
    Normal,
    /// The call takes this long.
    Slow(Duration),
    /// The call returns when simulated time reaches this value (infinity: never).
    HangsUntil(f64),
    /// The GPU is gone.
    Lost,
}

impl CallEffect {
    /// Returns the effect on a call if there are two.
    pub(crate) fn or_worse(self, other: CallEffect) -> CallEffect {
        match (self, other) {
            (CallEffect::Lost, _) | (_, CallEffect::Lost) => CallEffect::Lost,
            (CallEffect::HangsUntil(one), CallEffect::HangsUntil(other)) => {
                CallEffect::HangsUntil(one.max(other))
            }
            (CallEffect::HangsUntil(_), _) | (_, CallEffect::Normal) => self,
            (_, CallEffect::HangsUntil(_)) | (CallEffect::Normal, _) => other,
            (CallEffect::Slow(one), CallEffect::Slow(other)) => CallEffect::Slow(one.max(other)),
        }
    }
}

impl Fault {
    /// Returns the effect on a call at `t`.
    pub(crate) fn call_effect(self, t: f64) -> CallEffect {
        if !self.window.holds(t) {
            return CallEffect::Normal;
        }
        match self.kind {
            FaultKind::SlowCall(delay) => CallEffect::Slow(delay),
            FaultKind::Hang => CallEffect::HangsUntil(self.window.end),
            kind if kind.loses_gpu() => CallEffect::Lost,
            _ => CallEffect::Normal,
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
    fn call_effects_follow_the_fault() {
        let call_effect = |kind, t| Fault { kind, window: WINDOW }.call_effect(t);
        assert_eq!(call_effect(FaultKind::Lost, 9.9), CallEffect::Normal);
        assert_eq!(call_effect(FaultKind::Lost, 10.0), CallEffect::Lost);
        assert_eq!(call_effect(FaultKind::Xid(79), 11.0), CallEffect::Lost);
        assert_eq!(call_effect(FaultKind::Xid(31), 11.0), CallEffect::Normal);
        assert_eq!(call_effect(FaultKind::Hang, 11.0), CallEffect::HangsUntil(30.0));
        let delay = Duration::from_millis(5);
        assert_eq!(
            call_effect(FaultKind::SlowCall(delay), 11.0),
            CallEffect::Slow(delay)
        );
        assert_eq!(
            call_effect(FaultKind::Throttle(Slowdown::Thermal), 11.0),
            CallEffect::Normal
        );
    }

    #[test]
    fn uncorrectable_error_comes_within_the_window() {
        let at = |end| {
            Fault {
                kind: FaultKind::Ecc(MemoryKind::Dram),
                window: Window { start: 10.0, end },
            }
            .uncorrectable_at()
        };
        assert_eq!(at(f64::INFINITY), 30.0);
        assert_eq!(at(14.0), 12.0);
    }
    #[test]
    fn the_worse_of_two_effects_applies() {
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(9));
        let cases = [
            (CallEffect::Normal, CallEffect::Normal, CallEffect::Normal),
            (
                CallEffect::Normal,
                CallEffect::Slow(short),
                CallEffect::Slow(short),
            ),
            (
                CallEffect::Slow(long),
                CallEffect::Slow(short),
                CallEffect::Slow(long),
            ),
            (
                CallEffect::Slow(long),
                CallEffect::HangsUntil(3.0),
                CallEffect::HangsUntil(3.0),
            ),
            (
                CallEffect::HangsUntil(9.0),
                CallEffect::HangsUntil(3.0),
                CallEffect::HangsUntil(9.0),
            ),
            (CallEffect::HangsUntil(9.0), CallEffect::Lost, CallEffect::Lost),
        ];
        for (one, other, expected) in cases {
            assert_eq!(
                (one.or_worse(other), other.or_worse(one)),
                (expected, expected),
                "{one:?} {other:?}"
            );
        }
    }

    #[test]
    fn only_equal_faults_exclude_each_other() {
        let errors = |link| FaultKind::LinkErrors { link, per_second: 1 };
        let cases = [
            (FaultKind::Hang, FaultKind::Hang, true),
            (FaultKind::Hang, FaultKind::Lost, false),
            (FaultKind::LinkDown(1), FaultKind::LinkDown(1), true),
            (FaultKind::LinkDown(1), FaultKind::LinkDown(2), false),
            (errors(4), errors(4), true),
            (errors(4), FaultKind::LinkDown(4), false),
            (
                FaultKind::Throttle(Slowdown::Power),
                FaultKind::Throttle(Slowdown::Thermal),
                true,
            ),
            (
                FaultKind::Ecc(MemoryKind::Dram),
                FaultKind::Ecc(MemoryKind::Sram),
                false,
            ),
            (FaultKind::Xid(31), FaultKind::Xid(31), false),
            (FaultKind::Xid(79), FaultKind::Xid(79), true),
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
