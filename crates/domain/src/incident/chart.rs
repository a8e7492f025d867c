//! Charts of a diagnosis: its evidence queries over time.

use super::NamedCulprit;
use crate::api::alerts::{AlertView, Evidence};
use crate::api::diagnoses::EvidenceChart;
use crate::series::Labels;
use crate::time::TimestampMs;

/// Prefix of annotations that contain the threshold for the evidence query of the same name.
pub const THRESHOLD_PREFIX: &str = "threshold_";
/// Minimum duration used for the range of a chart. The range is a multiple of it, so a short diagnosis still shows several minutes.
const DURATION_MS_MIN: i64 = 60_000;
/// Maximum duration used for the range of a chart: only the start and the end matter, and queries have limits.
const DURATION_MS_MAX: i64 = 24 * 3_600_000;
/// Time shown before and after the diagnosis, as a multiple of its duration.
const AROUND: i64 = 3;
/// Values per series: about one per pixel of a small chart.
const STEPS: i64 = 300;

/// Returns the charts of an alert, one per evidence query.
#[must_use]
pub fn charts(alert: &AlertView, culprit: &NamedCulprit, now_ms: TimestampMs) -> Vec<EvidenceChart> {
    let (start_ms, end_ms) = range(alert, now_ms);
    let step_ms = ((end_ms - start_ms) / STEPS / 1_000 * 1_000).max(1_000);
    let of_query = alert
        .evidence
        .iter()
        .filter(|evidence| !evidence.query.is_empty());
    of_query
        .map(|evidence| EvidenceChart {
            title: evidence.title.clone(),
            query: evidence.query.clone(),
            start_ms,
            end_ms,
            step_ms,
            culprit: own_series(evidence, culprit),
            threshold: threshold(alert, evidence),
        })
        .collect()
}

/// Returns the duration of the alert, and [`AROUND`] times that duration before and after it; the end is not later than now.
fn range(alert: &AlertView, now_ms: TimestampMs) -> (TimestampMs, TimestampMs) {
    let ended_ms = alert.resolved_ms.unwrap_or(now_ms);
    let duration_ms = (ended_ms - alert.active_ms).clamp(DURATION_MS_MIN, DURATION_MS_MAX);
    let start_ms = alert.active_ms - AROUND * duration_ms;
    let end_ms = (ended_ms + AROUND * duration_ms).min(now_ms);
    (start_ms, end_ms.max(start_ms + 1_000))
}

fn own_series(evidence: &Evidence, culprit: &NamedCulprit) -> Vec<Labels> {
    let labels = evidence.values.iter().map(|value| &value.labels);
    labels.filter(|labels| culprit.owns(labels)).cloned().collect()
}

fn threshold(alert: &AlertView, evidence: &Evidence) -> Option<f64> {
    // A title is the name of the annotation, with capital letters.
    let name = format!("{THRESHOLD_PREFIX}{}", evidence.title.replace(' ', "_"));
    let mut annotations = alert.annotations.iter();
    let annotation = annotations.find(|annotation| annotation.name.eq_ignore_ascii_case(&name))?;
    let value: f64 = annotation.value.trim().parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn alert(active_ms: i64, resolved_ms: Option<i64>) -> AlertView {
        let view = json!({
            "fingerprint": "f", "rule": "Slow", "state": "firing", "severity": "warning", "value": "1",
            "labels": {"run": "r", "rank": "1"}, "annotations": {"threshold_step_time": "0.5"}, "active_ms": active_ms,
            "resolved_ms": resolved_ms,
            "evidence": [
                {"title": "Step time", "query": "x", "values": [
                    {"labels": {"rank": "0"}, "value": "1"}, {"labels": {"rank": "1"}, "value": "9"}]},
                {"title": "last lines of the log", "query": "", "values": [], "lines": ["oops"]},
            ],
        });
        serde_json::from_value(view).expect("an alert")
    }

    #[test]
    fn a_chart_shows_the_culprit_among_its_peers() {
        let alert = alert(1_000_000, None);
        let culprit = NamedCulprit::of(&alert.labels, None);
        let charts = charts(&alert, &culprit, 1_100_000);
        let [chart] = charts.as_slice() else {
            panic!("lines of a log have no chart: {charts:?}");
        };
        assert_eq!(
            (chart.start_ms, chart.end_ms, chart.step_ms),
            (700_000, 1_100_000, 1_000)
        );
        assert_eq!(chart.threshold, Some(0.5));
        assert_eq!(chart.culprit, [alert.evidence[0].values[1].labels.clone()]);
    }

    #[test]
    fn a_chart_spans_three_durations_on_each_side_within_bounds() {
        for (active_ms, resolved_ms, now_ms, expected) in [
            (1_000_000, Some(1_100_000), 9_000_000, (700_000, 1_400_000)),
            (1_000_000, Some(1_000_001), 9_000_000, (820_000, 1_180_001)),
            (1_000_000, Some(1_100_000), 1_150_000, (700_000, 1_150_000)),
        ] {
            assert_eq!(range(&alert(active_ms, resolved_ms), now_ms), expected);
        }
        let month = range(&alert(0, Some(30 * DURATION_MS_MAX)), 90 * DURATION_MS_MAX);
        assert_eq!(month, (-3 * DURATION_MS_MAX, 33 * DURATION_MS_MAX));
    }
}
