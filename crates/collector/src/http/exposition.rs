//! Converts series to the types of the crate `prometheus` for the text format: grouped by name, with type and help from the catalogue.

use std::collections::BTreeMap;

use domain::metric::{Kind, Metric};
use domain::series::{Labels, METRIC_NAME};
use prometheus::proto;
use query::VectorSample;

/// Returns the families of the catalogue's metrics. Samples with other names are left out.
pub(super) fn families(samples: &[VectorSample]) -> Vec<proto::MetricFamily> {
    let mut by_name: BTreeMap<&'static str, (&'static Metric, Vec<proto::Metric>)> = BTreeMap::new();
    for (labels, _, value) in samples {
        let Some(metric) = labels.metric_name().and_then(domain::metric::find) else {
            continue;
        };
        by_name
            .entry(metric.name)
            .or_insert_with(|| (metric, Vec::new()))
            .1
            .push(sample(metric.kind, labels, *value));
    }
    by_name
        .into_values()
        .map(|(metric, samples)| family(metric.name, metric.help, metric.kind, samples))
        .collect()
}

/// Returns a family with one gauge without labels.
pub(super) fn gauge(name: &str, help: &str, value: f64) -> proto::MetricFamily {
    gauges(name, help, &[(Labels::empty(), value)])
}

/// Returns a family of gauges that differ in their labels.
pub(super) fn gauges(name: &str, help: &str, values: &[(Labels, f64)]) -> proto::MetricFamily {
    labelled(name, help, Kind::Gauge, values)
}

/// Returns a family of counters that differ in their labels.
pub(super) fn counters(name: &str, help: &str, values: &[(Labels, f64)]) -> proto::MetricFamily {
    labelled(name, help, Kind::Counter, values)
}

fn labelled(name: &str, help: &str, kind: Kind, values: &[(Labels, f64)]) -> proto::MetricFamily {
    let samples = values.iter().map(|(labels, value)| sample(kind, labels, *value));
    family(name, help, kind, samples.collect())
}

fn family(name: &str, help: &str, kind: Kind, samples: Vec<proto::Metric>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(match kind {
        Kind::Gauge => proto::MetricType::GAUGE,
        Kind::Counter => proto::MetricType::COUNTER,
    });
    family.set_metric(samples);
    family
}

fn sample(kind: Kind, labels: &Labels, value: f64) -> proto::Metric {
    let mut metric = proto::Metric::default();
    let pair = |name: &str, value: &str| {
        let mut pair = proto::LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    let pairs = labels.iter().filter(|label| &*label.name != METRIC_NAME);
    metric.set_label(pairs.map(|label| pair(&label.name, &label.value)).collect());
    match kind {
        Kind::Gauge => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Kind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    #[test]
    fn series_are_grouped_typed_and_escaped() {
        let labels = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied()).expect("well formed");
        let samples = vec![
            (
                labels(&[
                    ("__name__", "gpu_xid_errors_total"),
                    ("node", "n1"),
                    ("gpu", "0"),
                    ("xid", "79"),
                ]),
                5,
                2.0,
            ),
            (
                labels(&[("__name__", "train_loss"), ("node", "n1"), ("run", "a\"b\\c\n")]),
                5,
                f64::NAN,
            ),
            (
                labels(&[("__name__", "train_loss"), ("node", "n2"), ("run", "r")]),
                5,
                f64::INFINITY,
            ),
            (labels(&[("__name__", "somebody_elses"), ("node", "n1")]), 5, 1.0),
        ];
        let text = TextEncoder::new()
            .encode_to_string(&families(&samples))
            .expect("encodes");
        assert!(text.contains("# TYPE gpu_xid_errors_total counter\n"), "{text}");
        assert!(
            text.contains("gpu_xid_errors_total{gpu=\"0\",node=\"n1\",xid=\"79\"} 2\n"),
            "{text}"
        );
        assert!(
            text.contains(r#"train_loss{node="n1",run="a\"b\\c\n"} NaN"#),
            "{text}"
        );
        assert_eq!(text.matches("# TYPE train_loss gauge").count(), 1);
        assert!(!text.contains("somebody_elses"), "{text}");
    }
}
