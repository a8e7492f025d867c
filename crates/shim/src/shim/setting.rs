//! The settings of a shim, read from the environment of the agent that starts it.

use std::time::Duration;

use crate::cgroup::CgroupKinds;
use crate::shim::progress::Limits;

/// The settings of a shim.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Setting {
    /// `LOCKSTEP_CGROUPS`: `off`, `v1`, or anything else for the best kind available.
    pub(crate) kinds: CgroupKinds,
    /// `LOCKSTEP_STALL_AFTER_S` sets the minimum time without a step for a stall, in seconds.
    pub(crate) limits: Limits,
    pub(crate) timeouts: StopTimeouts,
}

impl Setting {
    pub(crate) fn of_environment() -> Self {
        let mut setting = Self::default();
        let variable = |name: &str| std::env::var(name).ok();
        if let Some(word) = variable("LOCKSTEP_CGROUPS") {
            setting.kinds = CgroupKinds::parse(&word);
        }
        if let Some(seconds) = variable("LOCKSTEP_STALL_AFTER_S").and_then(|text| text.parse::<u32>().ok()) {
            setting.limits.no_step = Duration::from_secs(seconds.max(1).into());
        }
        setting
    }
}

/// The maximum duration of each phase of a stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StopTimeouts {
    /// For the ranks to end after SIGKILL.
    pub(crate) killed: Duration,
    /// For torchrun to exit after its ranks have ended, and again for torchrun to end after SIGKILL.
    pub(crate) launcher: Duration,
    /// For the remaining processes to end after SIGTERM.
    pub(crate) sweep_before_kill: Duration,
    /// For the whole sweep. Processes that SIGKILL has not ended by then hang in the kernel; the shim reports them and the run ends.
    pub(crate) sweep: Duration,
}

impl Default for StopTimeouts {
    fn default() -> Self {
        Self {
            killed: Duration::from_secs(5),
            launcher: Duration::from_secs(10),
            sweep_before_kill: Duration::from_secs(2),
            sweep: Duration::from_secs(30),
        }
    }
}
