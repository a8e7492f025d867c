//! The alerts of one run while it goes on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::trial::Alert;
use crate::fault_run::now_ms;

/// Collects alerts that were sent.
pub(super) struct Watch {
    run: String,
    /// Alerts by fingerprint and rank, with the time at which each fired.
    seen: BTreeMap<String, (i64, Alert)>,
}

impl Watch {
    pub(super) fn new(run: &str) -> Self {
        Self {
            run: run.to_owned(),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Takes the alerts that concern the trial from the answer of `/api/diagnoses`.
    pub(super) fn take(&mut self, all: &Value, concerns: impl Fn(&Value) -> bool) {
        let all = all.as_array().into_iter().flatten();
        for alert in all.filter(|alert| is_sent(alert) && concerns(alert)) {
            let labels = &alert["labels"];
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let seen = Alert {
                rule: text(&alert["rule"]).unwrap_or_default(),
                rank: labels["rank"].as_str().and_then(|rank| rank.parse().ok()),
                node: text(&labels["node"]),
                of_run: labels["run"] == self.run.as_str(),
                rank_state: text(&alert["annotations"]["rank_state"]),
                after_s: 0.0,
            };
            let fired_ms = alert["fired_ms"].as_i64().unwrap_or_else(now_ms);
            self.seen
                .entry(alert["fingerprint"].to_string())
                .or_insert((fired_ms, seen));
        }
    }

    /// Returns the alerts in order of time, relative to the fault.
    pub(super) fn alerts(&self, fault_ms: i64) -> Vec<Alert> {
        let mut alerts: Vec<Alert> = self
            .seen
            .values()
            .map(|(fired_ms, alert)| Alert {
                after_s: (fired_ms - fault_ms) as f64 / 1_000.0,
                ..alert.clone()
            })
            .collect();
        alerts.sort_by(|a, b| a.after_s.total_cmp(&b.after_s));
        alerts
    }
}

/// Returns true if a notification is sent for the alert: its severity is not info, and no other alert inhibits it.
fn is_sent(alert: &Value) -> bool {
    let inhibited = |field: &str| match &alert[field] {
        Value::Null | Value::Bool(false) => false,
        Value::Array(by) => !by.is_empty(),
        _ => true,
    };
    alert["severity"] != "info"
        && alert["state"] == "firing"
        && !inhibited("inhibited")
        && !inhibited("inhibited_by")
}
