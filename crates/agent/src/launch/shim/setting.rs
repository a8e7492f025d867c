//! What can be set about a shim, by the environment of the agent that starts it.

use std::time::Duration;

use crate::launch::shim::cgroup::Kinds;
use crate::launch::shim::progress::Limits;
use crate::launch::shim::stop::Patience;

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
