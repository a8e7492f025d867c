//! What goes wrong with a GPU, and when.

use std::time::Duration;

/// A stretch of simulated time, in seconds since the start; `end` is infinite where nothing ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    pub start: f64,
    pub end: f64,
}

impl Window {
    /// A window that never comes.
    pub(crate) const NEVER: Window = Window {
        start: f64::INFINITY,
        end: f64::INFINITY,
    };

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

/// The kinds of trouble a scenario can bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    /// Too hot: the GPU slows itself down.
    Throttle,
    /// Almost no free memory.
    MemoryPressure,
    /// Corrected memory errors in a storm, then one that cannot be corrected.
    Ecc,
    /// The driver reports this Xid; after 79 the GPU is gone.
    Xid(u64),
    /// One NVLink stops.
    LinkDown(u32),
    /// The GPU answers nothing but "GPU is lost".
    Lost,
    /// Every call takes this long.
    SlowCall(Duration),
    /// Calls do not return.
    Hang,
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
            Trouble::Throttle => THROTTLED_PACE,
            Trouble::LinkDown(_) => 0.9,
            other if other.loses_gpu() => 0.0,
            _ => 1.0,
        }
    }

    /// Whether it concerns every GPU when the spec names none.
    pub(crate) fn is_for_all(self) -> bool {
        matches!(self, Trouble::MemoryPressure | Trouble::SlowCall(_))
    }
}

/// Clocks, and with them the job, while a GPU is thermally slowed.
pub(crate) const THROTTLED_PACE: f64 = 0.55;

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
    /// The GPU is gone.
    Lost,
    /// The call takes this long.
    Slow(Duration),
    /// The call returns when simulated time reaches this (infinity: never).
    Until(f64),
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
        assert_eq!(Window::NEVER.passed(1e9), 0.0);
        assert_eq!(Window::NEVER.followed(1e9, 4.0), 0.0);
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
        assert_eq!(gate(Trouble::Throttle, 11.0), Gate::Open);
    }

    #[test]
    fn uncorrectable_error_comes_within_the_window() {
        let at = |end| {
            Fault {
                trouble: Trouble::Ecc,
                window: Window { start: 10.0, end },
            }
            .uncorrectable_at()
        };
        assert_eq!(at(f64::INFINITY), 30.0);
        assert_eq!(at(14.0), 12.0);
    }
}
