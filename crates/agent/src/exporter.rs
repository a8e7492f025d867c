//! The node's own `/metrics`: the latest value of every series, in Prometheus text.
//!
//! HELP and TYPE come from the catalogue, the label `node` is added here. Series without a new value for a while are left
//! out, so that a reader that hangs is not scraped as if it read.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use domain::ident::NodeName;
use domain::metric::catalogue::{CATALOGUE, Kind, Metric};
use domain::series::METRIC_NAME;
use domain::time::TimestampMs;
use prometheus::core::{Collector, Desc};
use prometheus::proto;
use prometheus::{Encoder, Registry, TEXT_FORMAT, TextEncoder};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::sample::Samples;
use crate::sample::sink::Sample;
use crate::uplink::link::now_ms;

/// A value older than this is no longer the latest of anything: Prometheus' own look-back.
const STALE_AFTER_MS: TimestampMs = 300_000;

/// Serves `/metrics` until `shutdown`.
pub(crate) async fn serve(listener: TcpListener, exporter: Exporter, shutdown: CancellationToken) {
    let address = listener
        .local_addr()
        .map(|address: SocketAddr| address.to_string())
        .unwrap_or_default();
    tracing::info!("metrics at http://{address}/metrics");
    let app = Router::new()
        .route("/metrics", get(metrics))
        .with_state(Arc::new(exporter));
    let served = axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned());
    if let Err(error) = served.await {
        tracing::warn!(%error, "the metrics listener ended");
    }
}

async fn metrics(State(exporter): State<Arc<Exporter>>) -> Response {
    match exporter.text() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "cannot write the metrics as text");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Writes the latest values as Prometheus text.
#[derive(Debug)]
pub(crate) struct Exporter(Registry);

impl Exporter {
    /// An exporter of everything in `samples`.
    ///
    /// # Errors
    /// When the catalogue holds what Prometheus would not take.
    pub(crate) fn new(samples: Samples, node: &NodeName) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(Latest::new(samples, node)?))?;
        Ok(Self(registry))
    }

    /// The exposition text.
    pub(crate) fn text(&self) -> Result<String, prometheus::Error> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.0.gather(), &mut bytes)?;
        String::from_utf8(bytes).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// The latest values as a collector of the registry.
struct Latest {
    samples: Samples,
    node: String,
    descriptions: Vec<Desc>,
}

impl Latest {
    fn new(samples: Samples, node: &NodeName) -> Result<Self, prometheus::Error> {
        let describe = |metric: &Metric| {
            let labels = metric
                .labels
                .iter()
                .chain(&["node"])
                .map(ToString::to_string)
                .collect();
            Desc::new(
                metric.name.to_owned(),
                metric.help.to_owned(),
                labels,
                HashMap::new(),
            )
        };
        let descriptions = CATALOGUE.iter().map(describe).collect::<Result<_, _>>()?;
        Ok(Self {
            samples,
            node: node.to_string(),
            descriptions,
        })
    }

    fn metric(&self, kind: Kind, sample: &Sample) -> proto::Metric {
        let own = sample
            .series
            .iter()
            .filter(|label| &*label.name != METRIC_NAME && &*label.name != "node");
        let mut labels: Vec<_> = own.map(|label| pair(&label.name, &label.value)).collect();
        labels.push(pair("node", &self.node));
        labels.sort();
        let mut metric = proto::Metric::from_label(labels);
        match kind {
            Kind::Gauge => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(sample.value);
                metric.set_gauge(gauge);
            }
            Kind::Counter => {
                let mut counter = proto::Counter::default();
                counter.set_value(sample.value);
                metric.set_counter(counter);
            }
        }
        metric
    }
}

impl Collector for Latest {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let oldest = now_ms() - STALE_AFTER_MS;
        let mut by_name: HashMap<String, Vec<Sample>> = HashMap::new();
        for sample in self
            .samples
            .latest()
            .into_iter()
            .filter(|sample| sample.at_ms >= oldest)
        {
            if let Some(name) = sample.series.metric_name().map(str::to_owned) {
                by_name.entry(name).or_default().push(sample);
            }
        }
        let family = |metric: &Metric| {
            let samples = by_name.get(metric.name)?;
            let mut family = proto::MetricFamily::default();
            family.set_name(metric.name.to_owned());
            family.set_help(metric.help.to_owned());
            family.set_field_type(match metric.kind {
                Kind::Gauge => proto::MetricType::GAUGE,
                Kind::Counter => proto::MetricType::COUNTER,
            });
            family.set_metric(
                samples
                    .iter()
                    .map(|sample| self.metric(metric.kind, sample))
                    .collect::<Vec<_>>(),
            );
            Some(family)
        };
        CATALOGUE.iter().filter_map(family).collect()
    }
}

fn pair(name: &str, value: &str) -> proto::LabelPair {
    let mut pair = proto::LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::sample::series::series;

    #[test]
    fn text_holds_help_type_node_and_odd_values() {
        let samples = Samples::new();
        let now = now_ms();
        samples.push(
            &series("train_loss", &[("run", "a\"b"), ("rank", "0")]),
            now,
            f64::NAN,
        );
        samples.push(&series("gpu_energy_joules_total", &[("gpu", "1")]), now, 1.5);
        samples.push(
            &series("gpu_up", &[("gpu", "1")]),
            now - STALE_AFTER_MS - 1_000,
            1.0,
        );
        let text = Exporter::new(samples, &NodeName::new("n1").unwrap())
            .unwrap()
            .text()
            .unwrap();
        let expected = "# HELP gpu_energy_joules_total Energy used since the driver was loaded.\n\
            # TYPE gpu_energy_joules_total counter\n\
            gpu_energy_joules_total{gpu=\"1\",node=\"n1\"} 1.5\n\
            # HELP train_loss Loss of this rank, unscaled, as given to backward; NaN and infinities are kept.\n\
            # TYPE train_loss gauge\n\
            train_loss{node=\"n1\",rank=\"0\",run=\"a\\\"b\"} NaN\n";
        assert_eq!(text, expected);
    }
}
