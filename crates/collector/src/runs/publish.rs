//! Publishes a change of a run to pages, rules and the event log.

use std::sync::Arc;

use domain::event::{Event as LogLine, Severity};
use domain::run::state::{Machine, RunState};

use super::{Runs, checkpoints, divergence, inspect, knobs};
use crate::changes::Change;
use crate::clock;

impl Runs {
    /// Notifies the pages. A new state also goes to the event log.
    pub(super) async fn publish(self: &Arc<Self>, before: Option<&Machine>, after: &Machine) {
        self.parts.state_series.set_run(after);
        self.parts.attempts.set_run(after);
        self.parts.changes.send(Change::Run(after.id.clone()));
        let now_ms = clock::now_ms();
        let news = |before: &Machine| {
            let mut lines = checkpoints::news(before, after, now_ms);
            lines.extend(knobs::news(before, after, now_ms));
            lines.extend(divergence::news(before, after, now_ms));
            lines
        };
        for line in before.map_or_else(Vec::new, news) {
            self.parts.events.append(line).await;
        }
        if inspect::stands_still(before, after) {
            self.note_stacks(after.id.clone());
        }
        if before.map(|run| run.state) == Some(after.state) {
            return;
        }
        let why = after
            .outcome
            .as_ref()
            .map(|outcome| format!(": {}", outcome.message))
            .unwrap_or_default();
        let severity = match after.state {
            RunState::Failed => Severity::Critical,
            RunState::Lost | RunState::Restarting => Severity::Warning,
            _ => Severity::Info,
        };
        self.parts
            .events
            .append(LogLine {
                at_ms: clock::now_ms(),
                severity,
                kind: "run_state".to_owned(),
                node: None,
                gpu: None,
                run: Some(after.id.to_string()),
                message: format!("run {} is {}{why}", after.id, after.state.as_str()),
            })
            .await;
    }
}
