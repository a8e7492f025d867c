//! The body of a message: Alertmanager's webhook format, version 4, so that every receiver written for Alertmanager works.

use domain::api::alerts::AlertView;
use domain::series::Labels;
use domain::time::TimestampMs;
use rand::RngExt;
use serde_json::{Value, json};
use store::state::outbox::NewMessage;
use store::state::webhooks::Webhook;

/// What Alertmanager sends as the end of an alert that has none yet.
const NO_END: &str = "0001-01-01T00:00:00Z";

/// A message about alerts of one rule that began to fire or were resolved.
#[must_use]
pub fn new(webhook: &Webhook, alerts: &[AlertView], external_url: &str) -> NewMessage {
    let id: [u8; 16] = rand::rng().random();
    NewMessage {
        webhook: webhook.id.clone(),
        message_id: format!("msg_{}", hex::encode(id)),
        body: body(&webhook.id, alerts, external_url).to_string(),
        resolved: alerts.iter().all(|alert| alert.resolved_ms.is_some()),
    }
}

fn body(receiver: &str, alerts: &[AlertView], external_url: &str) -> Value {
    let firing = alerts.iter().any(|alert| alert.resolved_ms.is_none());
    let name = alerts.first().map_or("", |alert| alert.rule.as_str());
    json!({
        "version": "4",
        "groupKey": format!("{{}}:{{alertname={name:?}}}"),
        "truncatedAlerts": 0,
        "status": if firing { "firing" } else { "resolved" },
        "receiver": receiver,
        "groupLabels": { "alertname": name },
        "commonLabels": common(alerts.iter().map(|alert| &alert.labels)),
        "commonAnnotations": common(alerts.iter().map(|alert| &alert.annotations)),
        "externalURL": external_url,
        "alerts": alerts.iter().map(|alert| one(alert, external_url)).collect::<Vec<_>>(),
    })
}

fn one(alert: &AlertView, external_url: &str) -> Value {
    json!({
        "status": if alert.resolved_ms.is_some() { "resolved" } else { "firing" },
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": time(alert.fired_ms.unwrap_or(alert.active_ms)),
        "endsAt": alert.resolved_ms.map_or_else(|| NO_END.to_owned(), time),
        "generatorURL": format!("{external_url}/rules"),
        "fingerprint": alert.fingerprint,
        // Beyond Alertmanager's format: what was measured. Receivers ignore fields they do not know.
        "value": alert.value,
        "evidence": alert.evidence,
    })
}

/// Labels that all have with the same value.
fn common<'a>(mut sets: impl Iterator<Item = &'a Labels>) -> Labels {
    let Some(first) = sets.next().cloned() else {
        return Labels::empty();
    };
    sets.fold(first, |common, set| {
        common.filtered(|name| common.get(name) == set.get(name))
    })
}

fn time(ms: TimestampMs) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| NO_END.to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::api::alerts::AlertState;
    use domain::event::Severity;

    fn alert(gpu: &str, resolved_ms: Option<i64>) -> AlertView {
        let labels = Labels::new([("alertname", "Hot"), ("gpu", gpu), ("node", "n1")]).expect("well formed");
        let annotations = Labels::new([("summary", "hot")]).expect("well formed");
        AlertView {
            fingerprint: format!("f{gpu}"),
            rule: "Hot".into(),
            state: AlertState::Firing,
            severity: Severity::Warning,
            labels,
            annotations,
            value: "NaN".into(),
            active_ms: 0,
            fired_ms: Some(1_000),
            resolved_ms,
            evidence: vec![],
        }
    }

    #[test]
    fn the_body_is_alertmanagers_version_4() {
        let body = body("w1", &[alert("0", None), alert("1", Some(61_000))], "http://x");
        assert_eq!(body["status"], "firing");
        assert_eq!(body["groupKey"], r#"{}:{alertname="Hot"}"#);
        assert_eq!(body["commonLabels"], json!({ "alertname": "Hot", "node": "n1" }));
        assert_eq!(body["alerts"][0]["startsAt"], "1970-01-01T00:00:01Z");
        assert_eq!(body["alerts"][0]["endsAt"], NO_END);
        assert_eq!(body["alerts"][1]["status"], "resolved");
        assert_eq!(body["alerts"][1]["endsAt"], "1970-01-01T00:01:01Z");
    }
}
