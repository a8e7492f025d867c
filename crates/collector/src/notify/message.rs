//! The body of a message: Alertmanager's webhook format, version 4, so that every receiver written for Alertmanager works.

use domain::api::alerts::AlertView;
use domain::series::Labels;
use domain::time::TimestampMs;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::state::deliveries::GroupDelivery;

/// The value that Alertmanager sends as the end of an alert that has not ended.
const NO_END: &str = "0001-01-01T00:00:00Z";
/// Number of bytes of the hash in a message's id: as many as in a UUID.
const ID_BYTES: usize = 16;

/// A message to one webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The `webhook-id` header. A receiver may ignore a message whose id it has received before, so each id stands for one content.
    pub id: String,
    /// The JSON body, as it is signed and sent.
    pub body: String,
}

impl Message {
    /// Creates the message about the newest state of a group. The same content has the same id in every delivery attempt, also after a
    /// restart; a state that has changed since the last delivery attempt has another id.
    #[must_use]
    pub fn of(delivery: &GroupDelivery, external_url: &str) -> Self {
        // The content includes the times of the alerts, so a later message is never the same by chance. It does not include the collector's
        // URL.
        let content = json!([delivery.webhook, delivery.rule, delivery.alerts]);
        let hash = Sha256::digest(content.to_string().as_bytes());
        Self {
            id: format!("msg_{}", hex::encode(&hash[..ID_BYTES])),
            body: body(delivery, external_url).to_string(),
        }
    }
}

fn body(delivery: &GroupDelivery, external_url: &str) -> Value {
    let alerts = &delivery.alerts;
    let firing = alerts.iter().any(|alert| alert.resolved_ms.is_none());
    let name = &delivery.rule;
    json!({
        "version": "4",
        "groupKey": format!("{{}}:{{alertname={name:?}}}"),
        "truncatedAlerts": 0,
        "status": if firing { "firing" } else { "resolved" },
        "receiver": delivery.webhook,
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
        // Fields beyond Alertmanager's format: what was measured. Receivers ignore fields that they do not support.
        "value": alert.value,
        "evidence": alert.evidence,
    })
}

/// Returns the labels that all sets have with the same value.
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

    fn delivery(alerts: Vec<AlertView>) -> GroupDelivery {
        GroupDelivery::new("w1", "Hot", alerts)
    }

    #[test]
    fn the_body_is_alertmanagers_version_4() {
        let delivery = delivery(vec![alert("0", None), alert("1", Some(61_000))]);
        let body = body(&delivery, "http://x");
        assert_eq!(body["status"], "firing");
        assert_eq!(body["groupKey"], r#"{}:{alertname="Hot"}"#);
        assert_eq!(body["commonLabels"], json!({ "alertname": "Hot", "node": "n1" }));
        assert_eq!(body["alerts"][0]["startsAt"], "1970-01-01T00:00:01Z");
        assert_eq!(body["alerts"][0]["endsAt"], NO_END);
        assert_eq!(body["alerts"][1]["status"], "resolved");
        assert_eq!(body["alerts"][1]["endsAt"], "1970-01-01T00:01:01Z");
    }

    #[test]
    fn an_id_belongs_to_one_content() {
        let id = |resolved_ms| Message::of(&delivery(vec![alert("0", resolved_ms)]), "http://x").id;
        let elsewhere = Message::of(&delivery(vec![alert("0", None)]), "http://y").id;
        assert_eq!(
            id(None),
            elsewhere,
            "a repeat is recognised, also behind another address"
        );
        assert_ne!(
            id(None),
            id(Some(2_000)),
            "another state is not taken for a repeat"
        );
        assert_ne!(id(Some(2_000)), id(Some(3_000)));
    }
}
