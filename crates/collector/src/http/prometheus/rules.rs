//! `/api/v1/rules` and `/api/v1/alerts` in Prometheus' format, for Grafana's alert list; and `/-/reload` as in Prometheus.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::api::alerts::{AlertState, AlertView, RuleKind, RuleView};
use domain::series::matcher::CompiledMatcher;
use serde_json::{Value, json};

use super::answer::{rfc3339, success};
use crate::diagnose::Alerts;
use crate::diagnose::Engine;
use crate::diagnose::GroupView;
use crate::event_log::EventLog;
use crate::http::{ApiError, ApiResult, Caller};

pub(super) async fn rules(
    State(alerts): State<Alerts>,
    Query(params): Query<Vec<(String, String)>>,
) -> ApiResult<Response> {
    let filter = RuleFilter::read(&params)?;
    let groups: Vec<Value> = alerts
        .group_views()
        .iter()
        .filter_map(|group| filter.group_json(group))
        .collect();
    Ok(success(json!({ "groups": groups })))
}

pub(super) async fn alerts(State(alerts): State<Alerts>) -> Response {
    let alerts: Vec<Value> = alerts.active().iter().map(alert_json).collect();
    success(json!({ "alerts": alerts }))
}

/// Reads the rule files again.
pub(super) async fn reload(
    State(alerts): State<Alerts>,
    State(engine): State<Arc<Engine>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
) -> ApiResult<String> {
    events.audit(&caller.id, "rules_reload", "").await?;
    let reloaded = alerts.reload(&engine).await;
    let reloaded = reloaded.map_err(|error| {
        ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("{error}\nThe current rules stay active."),
        )
    })?;
    Ok(format!(
        "{} groups with {} rules, {} groups changed\n",
        reloaded.groups, reloaded.rules, reloaded.changed
    ))
}

/// The filter of a request. An empty list matches everything.
#[derive(Default)]
struct RuleFilter<'a> {
    kind: Option<RuleKind>,
    names: Vec<&'a str>,
    groups: Vec<&'a str>,
    files: Vec<&'a str>,
    /// At least one of these selectors must match, with all its matchers.
    selectors: Vec<Vec<CompiledMatcher>>,
    without_alerts: bool,
}

impl<'a> RuleFilter<'a> {
    fn read(params: &'a [(String, String)]) -> ApiResult<Self> {
        let mut filter = Self::default();
        for (name, value) in params {
            let refused = || ApiError::bad_request(format!("not supported value {value:?} of {name:?}"));
            match name.as_str() {
                "type" => {
                    filter.kind = match value.to_lowercase().as_str() {
                        "" => None,
                        "alert" => Some(RuleKind::Alerting),
                        "record" => Some(RuleKind::Recording),
                        _ => return Err(refused()),
                    }
                }
                "rule_name[]" => filter.names.push(value),
                "rule_group[]" => filter.groups.push(value),
                "file[]" => filter.files.push(value),
                "match[]" => filter.selectors.push(selector(value).ok_or_else(refused)?),
                "exclude_alerts" => {
                    filter.without_alerts = match value.to_lowercase().as_str() {
                        "1" | "t" | "true" => true,
                        "" | "0" | "f" | "false" => false,
                        _ => return Err(refused()),
                    }
                }
                _ => {}
            }
        }
        Ok(filter)
    }

    /// Returns the group as JSON, or `None` if the filter excludes the group or all its rules.
    fn group_json(&self, group: &GroupView) -> Option<Value> {
        let has = |list: &[&str], name: &str| list.is_empty() || list.contains(&name);
        if !has(&self.groups, &group.name) || !has(&self.files, &group.file) {
            return None;
        }
        let rules: Vec<Value> = group
            .rules
            .iter()
            .filter(|rule| self.kind.is_none_or(|kind| kind == rule.kind) && has(&self.names, &rule.name))
            .filter(|rule| self.is_matched(rule))
            .map(|rule| self.rule_json(rule))
            .collect();
        let has_all = self.names.is_empty() && self.kind.is_none() && self.selectors.is_empty();
        if rules.is_empty() && !has_all {
            return None;
        }
        Some(json!({
            "name": group.name,
            "file": group.file,
            "rules": rules,
            "interval": group.interval_ms as f64 / 1_000.0,
            "limit": group.limit,
            "evaluationTime": group.duration_s,
            "lastEvaluation": rfc3339(group.evaluated_ms),
        }))
    }

    /// Compares the matchers with the labels that the rule sets. Templates are compared as text.
    fn is_matched(&self, rule: &RuleView) -> bool {
        let holds =
            |matcher: &CompiledMatcher| matcher.matches(rule.labels.get(matcher.name()).unwrap_or(""));
        self.selectors.is_empty() || self.selectors.iter().any(|all| all.iter().all(holds))
    }

    fn rule_json(&self, rule: &RuleView) -> Value {
        let mut json = json!({
            "name": rule.name,
            "query": rule.expr,
            "labels": rule.labels,
            "health": health(rule),
            "evaluationTime": rule.duration_s,
            "lastEvaluation": rfc3339(rule.evaluated_ms),
            "type": rule.kind,
        });
        if let Some(error) = &rule.error {
            json["lastError"] = error.as_str().into();
        }
        if rule.kind == RuleKind::Alerting {
            json["state"] = state(rule).into();
            json["duration"] = seconds(rule.for_ms);
            json["keepFiringFor"] = seconds(rule.keep_firing_ms);
            json["annotations"] = json!(rule.annotations);
            let alerts = rule.alerts.iter().filter(|_| !self.without_alerts);
            json["alerts"] = alerts.map(alert_json).collect();
        }
        json
    }
}

fn selector(text: &str) -> Option<Vec<CompiledMatcher>> {
    let matchers = query::parse_selector(text).ok()?;
    matchers
        .iter()
        .map(|matcher| CompiledMatcher::new(matcher).ok())
        .collect()
}

fn seconds(ms: i64) -> Value {
    (ms as f64 / 1_000.0).into()
}

fn health(rule: &RuleView) -> &'static str {
    match (&rule.error, rule.evaluated_ms) {
        (Some(_), _) => "err",
        (None, 0) => "unknown",
        (None, _) => "ok",
    }
}

fn state(rule: &RuleView) -> &'static str {
    let is = |state| rule.alerts.iter().any(|alert| alert.state == state);
    if is(AlertState::Firing) {
        "firing"
    } else if is(AlertState::Pending) {
        "pending"
    } else {
        "inactive"
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use domain::event::Severity;
    use domain::series::Labels;

    fn group() -> GroupView {
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
        let alerting = RuleView {
            file: "a.yaml".into(),
            group: "gpu".into(),
            kind: RuleKind::Alerting,
            name: "Hot".into(),
            expr: "gpu_temperature_celsius > 90".into(),
            for_ms: 60_000,
            keep_firing_ms: 5_000,
            labels: Labels::new([("team", "infra")]).expect("well formed"),
            annotations: Labels::empty(),
            alerts: vec![alert],
            last_fired_ms: None,
            evaluated_ms: 0,
            duration_s: 0.001,
            error: None,
        };
        let recording = RuleView {
            kind: RuleKind::Recording,
            name: "a:b".into(),
            labels: Labels::empty(),
            alerts: vec![],
            error: Some("no".into()),
            ..alerting.clone()
        };
        GroupView {
            name: "gpu".into(),
            file: "a.yaml".into(),
            interval_ms: 1_500,
            limit: 7,
            evaluated_ms: 1_435_781_451_781,
            duration_s: 0.25,
            rules: vec![alerting, recording],
        }
    }

    fn asked(params: &[(&str, &str)]) -> Option<Value> {
        let params: Vec<_> = params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        RuleFilter::read(&params).ok()?.group_json(&group())
    }

    #[test]
    fn groups_and_rules_have_prometheus_fields() {
        let group = asked(&[]).expect("the group");
        assert_eq!(
            (&group["interval"], &group["limit"], &group["lastEvaluation"]),
            (&1.5.into(), &7.into(), &"2015-07-01T20:10:51.781Z".into())
        );
        let (alerting, recording) = (&group["rules"][0], &group["rules"][1]);
        assert_eq!(
            (
                &alerting["state"],
                &alerting["duration"],
                &alerting["health"],
                &alerting["keepFiringFor"]
            ),
            (&"firing".into(), &60.0.into(), &"unknown".into(), &5.0.into())
        );
        assert_eq!(alerting["alerts"][0]["activeAt"], "2015-07-01T20:10:51.781Z");
        assert_eq!(
            (
                &recording["type"],
                &recording["health"],
                &recording["lastError"],
                &recording["alerts"]
            ),
            (&"recording".into(), &"err".into(), &"no".into(), &Value::Null)
        );
    }

    #[test]
    fn rules_are_chosen_by_kind_name_group_and_file() {
        let names = |params: &[(&str, &str)]| {
            let rules = asked(params).map(|group| group["rules"].as_array().cloned().unwrap_or_default());
            rules.map(|rules| {
                rules
                    .iter()
                    .map(|rule| rule["name"].as_str().unwrap_or("").to_owned())
                    .collect::<Vec<_>>()
            })
        };
        for (params, expected) in [
            (&[("type", "alert")][..], Some(vec!["Hot"])),
            (&[("type", "record")], Some(vec!["a:b"])),
            (&[("type", "other")], None),
            (&[("rule_name[]", "a:b"), ("rule_name[]", "c")], Some(vec!["a:b"])),
            (&[("rule_name[]", "c")], None),
            (
                &[("rule_group[]", "gpu"), ("file[]", "a.yaml")],
                Some(vec!["Hot", "a:b"]),
            ),
            (&[("rule_group[]", "cpu")], None),
            (&[("match[]", "{team=~'inf.*'}")], Some(vec!["Hot"])),
            (&[("match[]", "{team='x'}")], None),
            (&[("match[]", "sum(")], None),
            (&[("file[]", "b.yaml")], None),
        ] {
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
            assert_eq!(names(params), expected, "{params:?}");
        }
        let without = asked(&[("exclude_alerts", "true")]).expect("the group");
        assert_eq!(without["rules"][0]["alerts"], json!([]));
    }
}
