//! Alerts as series with the names that existing dashboards use: `ALERTS` and `ALERTS_FOR_STATE`.

use super::alert::Active;
use crate::api::alerts::AlertState;
use crate::series::{Labels, METRIC_NAME};

/// Name of the series that is 1 for each pending or firing alert. Its label `alertstate` contains the state.
pub const ALERTS: &str = "ALERTS";
/// Name of the series with the time since which the alert's condition is true, in seconds since the epoch.
pub const ALERTS_FOR_STATE: &str = "ALERTS_FOR_STATE";

/// Returns the samples that Prometheus writes for alerts after an evaluation.
#[must_use]
pub fn samples<'a>(active: impl IntoIterator<Item = &'a Active>) -> Vec<(Labels, f64)> {
    active.into_iter().flat_map(of).collect()
}

fn of(alert: &Active) -> [(Labels, f64); 2] {
    let state = if alert.state == AlertState::Firing {
        "firing"
    } else {
        "pending"
    };
    let seconds = alert.active_ms.div_euclid(1_000) as f64;
    [
        (
            alert.labels.with(METRIC_NAME, ALERTS).with("alertstate", state),
            1.0,
        ),
        (alert.labels.with(METRIC_NAME, ALERTS_FOR_STATE), seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_leaves_two_series() {
        let active = Active {
            labels: Labels::new([("alertname", "Hot"), ("gpu", "0")]).expect("well formed"),
            state: AlertState::Pending,
            value: 91.0,
            active_ms: 61_500,
            fired_ms: None,
            true_ms: 61_500,
            over_ms: None,
        };
        let shown: Vec<String> = samples([&active])
            .iter()
            .map(|(labels, value)| format!("{labels} {value}"))
            .collect();
        assert_eq!(
            shown,
            [
                r#"ALERTS{alertname="Hot", alertstate="pending", gpu="0"} 1"#,
                r#"ALERTS_FOR_STATE{alertname="Hot", gpu="0"} 61"#
            ]
        );
    }
}
