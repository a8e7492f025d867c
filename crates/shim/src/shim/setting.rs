//! What can be set about a shim, by the environment of the agent that starts it.

use std::time::Duration;

use crate::cgroup::Kinds;
use crate::shim::progress::Limits;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Setting {
    /// `LOCKSTEP_CGROUPS`: `off`, `v1` or what there is.
    pub(crate) kinds: Kinds,
    /// `LOCKSTEP_STALL_AFTER_S` is the least time without a step that counts.
    pub(crate) limits: Limits,
    pub(crate) patience: Patience,
}

impl Setting {
    pub(crate) fn of_environment() -> Self {
        let kinds = std::env::var("LOCKSTEP_CGROUPS").map_or(Kinds::Any, |word| Kinds::parse(&word));
        let mut limits = Limits::default();
        if let Some(seconds) = std::env::var("LOCKSTEP_STALL_AFTER_S")
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
        {
            limits.no_step = Duration::from_secs(seconds.max(1).into());
        }
        let patience = Patience::default();
        Self {
            kinds,
            limits,
            patience,
        }
    }
}

/// How long each phase may take once it has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For SIGKILL to end the ranks.
    pub(crate) killed: Duration,
    /// For torchrun to notice that its ranks have ended, and again for SIGKILL to end it.
    pub(crate) launcher: Duration,
    /// For what the ranks left behind to end by SIGTERM.
    pub(crate) sweep_nicely: Duration,
    /// Processes that SIGKILL does not end by then hang in the kernel; the run is told about them and ends.
    pub(crate) sweep: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            killed: Duration::from_secs(5),
            launcher: Duration::from_secs(10),
            sweep_nicely: Duration::from_secs(2),
            sweep: Duration::from_secs(30),
        }
    }
}
