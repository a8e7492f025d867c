//! `/api/v1/rules` and `/api/v1/alerts` in Prometheus' shape, for Grafana's alert list.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use domain::api::alerts::{AlertState, AlertView, RuleView};
use domain::time::{DisplayDuration, TimestampMs};
use serde_json::{Value, json};

use super::success;
use crate::Shared;

pub(super) async fn rules(State(app): State<Shared>) -> Response {
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for rule in app.alerts.rules() {
        groups
            .entry(rule.group.clone())
            .or_default()
            .push(rule_json(&rule));
    }
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(name, rules)| group_json(&name, &rules))
        .collect();
    success(json!({ "groups": groups }), Vec::new())
}

pub(super) async fn alerts(State(app): State<Shared>) -> Response {
    let alerts: Vec<Value> = app.alerts.active().iter().map(alert_json).collect();
    success(json!({ "alerts": alerts }), Vec::new())
}

fn group_json(name: &str, rules: &[Value]) -> Value {
    json!({ "name": name, "file": "lockstep", "interval": 0, "limit": 0, "rules": rules })
}

fn rule_json(rule: &RuleView) -> Value {
    let alerts: Vec<Value> = rule
        .alerts
        .iter()
        .filter(|alert| alert.state != AlertState::Resolved)
        .map(alert_json)
        .collect();
    let is = |state| rule.alerts.iter().any(|alert| alert.state == state);
    let state = if is(AlertState::Firing) {
        "firing"
    } else if is(AlertState::Pending) {
        "pending"
    } else {
        "inactive"
    };
    json!({
        "type": "alerting",
        "name": rule.name,
        "query": rule.expr,
        "duration": rule.for_ms as f64 / 1_000.0,
        "keepFiringFor": 0,
        "labels": rule.labels,
        "annotations": rule.annotations,
        "alerts": alerts,
        "state": state,
        "health": if rule.error.is_some() { "err" } else if rule.evaluated_ms == 0 { "unknown" } else { "ok" },
        "lastError": rule.error.clone().unwrap_or_default(),
        "evaluationTime": rule.duration_s,
        "lastEvaluation": rfc3339(rule.evaluated_ms),
        "for": DisplayDuration(rule.for_ms).to_string(),
    })
}

fn alert_json(alert: &AlertView) -> Value {
    json!({
        "labels": alert.labels,
        "annotations": alert.annotations,
        "state": if alert.state == AlertState::Firing { "firing" } else { "pending" },
        "activeAt": rfc3339(alert.active_ms),
        "value": alert.value,
    })
}

fn rfc3339(time_ms: TimestampMs) -> String {
    jiff::Timestamp::from_millisecond(time_ms).map_or_else(|_| String::new(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::event::Severity;
    use domain::series::Labels;

    #[test]
    fn a_rule_has_prometheus_fields() {
        let alert = AlertView {
            fingerprint: "f".into(),
            rule: "Hot".into(),
            state: AlertState::Firing,
            severity: Severity::Warning,
            labels: Labels::new([("alertname", "Hot")]).expect("well formed"),
            annotations: Labels::empty(),
            value: "91".into(),
            active_ms: 1_435_781_451_781,
            fired_ms: Some(1_435_781_451_781),
            resolved_ms: None,
            evidence: vec![],
        };
        let rule = RuleView {
            group: "gpu".into(),
            name: "Hot".into(),
            expr: "gpu_temperature_celsius > 90".into(),
            for_ms: 60_000,
            labels: Labels::empty(),
            annotations: Labels::empty(),
            alerts: vec![alert],
            evaluated_ms: 0,
            duration_s: 0.001,
            error: None,
        };
        let json = rule_json(&rule);
        assert_eq!(
            (&json["state"], &json["duration"], &json["health"]),
            (&"firing".into(), &60.0.into(), &"unknown".into())
        );
        assert_eq!(json["alerts"][0]["activeAt"], "2015-07-01T20:10:51.781Z");
    }
}
