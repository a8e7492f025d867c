//! The history that all servers get, as arguments for `loadgen history` and `loadgen query`.

use std::time::{SystemTime, UNIX_EPOCH};

/// The end is a multiple of a dashboard's step.
const END_STEP_S: u64 = 15;

/// The size of the history, and its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct History {
    end_s: u64,
    pub(super) spacing_s: u64,
    pub(super) recent_nodes: u64,
    pub(super) month_gpus: u64,
}

impl History {
    /// A history that ends now, for all servers of a run. The full one has about 40 M samples, the quick one 9 M.
    pub(super) fn until_now(quick: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (spacing_s, recent_nodes, month_gpus) = if quick { (5, 4, 1) } else { (1, 16, 2) };
        Self {
            end_s: now.as_secs() / END_STEP_S * END_STEP_S,
            spacing_s,
            recent_nodes,
            month_gpus,
        }
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        vec![
            format!("--end-s={}", self.end_s),
            format!("--spacing-s={}", self.spacing_s),
            format!("--recent-nodes={}", self.recent_nodes),
            format!("--month-gpus={}", self.month_gpus),
        ]
    }
}
