//! The node's own `/metrics`: the latest value of every series, as text in the format of Prometheus or OpenMetrics.
//!
//! ```text
//! Samples ──latest──▶ selection (which metrics) ──▶ text (HELP and TYPE from the catalogue, `node` added) ──▶ server (TLS, token)
//!                                              └──▶ dcgm (the same values under dcgm-exporter's names, if configured)
//! ```
//! Series without a new value for some time are left out, so that the values of a reader that hangs do not look current.

mod dcgm;
mod selection;
mod server;
mod text;

use domain::ident::NodeName;
use domain::metric::{Metric, find};
use domain::series::{METRIC_NAME, is_stale};
use domain::time::TimestampMs;

pub use dcgm::HostLabel;
pub(crate) use selection::MetricSelection;
pub(crate) use server::Server;
pub use server::ServerError;

use self::dcgm::Dcgm;
use self::text::{Format, Writer};
use crate::sample::Samples;
use crate::sample::sink::Sample;
use crate::uplink::link::now_ms;

/// Values older than this are not served. Prometheus' own look-back time has the same length.
const STALE_AFTER_MS: TimestampMs = 300_000;

/// Writes the latest values as text.
#[derive(Debug)]
pub(crate) struct Exporter {
    samples: Samples,
    node: String,
    dcgm: Option<Dcgm>,
}

impl Exporter {
    /// Creates an exporter of all series in `samples`. If `dcgm` is set, it also writes dcgm-exporter's names, with the host name in that
    /// label.
    pub(crate) fn new(samples: Samples, node: &NodeName, dcgm: Option<HostLabel>) -> Self {
        Self {
            samples,
            node: node.to_string(),
            dcgm: dcgm.map(|label| Dcgm::new(label, node)),
        }
    }

    /// Returns all values in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        self.page(&MetricSelection::all(), Format::Text)
    }

    /// Returns a page with the metrics that `selection` selects.
    fn page(&self, selection: &MetricSelection, format: Format) -> String {
        let latest = self.latest();
        let mut out = Writer::new(format);
        for family in latest.chunk_by(|a, b| a.series.metric_name() == b.series.metric_name()) {
            let metric = family[0].series.metric_name().and_then(find);
            if let Some(metric) = metric.filter(|metric| selection.has(metric)) {
                self.write(&mut out, metric, family);
            }
        }
        if let Some(dcgm) = self.dcgm.as_ref().filter(|_| selection.has_dcgm()) {
            dcgm.write(&mut out, &latest);
        }
        out.finish()
    }

    /// Returns the format of a response. A page with dcgm-exporter's names always uses the Prometheus format, because OpenMetrics would
    /// rename its counters.
    fn format(&self, selection: &MetricSelection, accept: Option<&str>) -> Format {
        if self.dcgm.is_some() && selection.has_dcgm() {
            Format::Text
        } else {
            Format::accepted(accept)
        }
    }

    fn write(&self, out: &mut Writer, metric: &Metric, family: &[Sample]) {
        out.family(metric.name, metric.kind, Some(metric.unit), metric.help);
        for sample in family {
            let own = sample.series.iter();
            let own = own.map(|label| (&*label.name, &*label.value));
            let own = own.filter(|(name, _)| *name != METRIC_NAME && *name != "node");
            // Labels are sorted, so `node` goes to its place among them.
            let (before, after): (Vec<_>, Vec<_>) = own.partition(|(name, _)| *name < "node");
            let node = std::iter::once(("node", self.node.as_str()));
            out.sample(before.into_iter().chain(node).chain(after), sample.value);
        }
    }

    /// Returns the newest values, sorted by metric and then by labels: the first label of a series is the name of its metric.
    fn latest(&self) -> Vec<Sample> {
        let oldest = now_ms() - STALE_AFTER_MS;
        let mut latest = self.samples.latest();
        latest.retain(|sample| sample.at_ms >= oldest && !is_stale(sample.value));
        latest.sort_unstable_by(|a, b| a.series.cmp(&b.series));
        latest
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::sample::series::series;

    fn exporter(dcgm: Option<HostLabel>) -> Exporter {
        let (samples, now) = (Samples::new(), now_ms());
        let loss = series("train_loss", &[("run", "a\"b"), ("rank", "0")]);
        samples.push(&loss, now, f64::NAN);
        samples.push(&series("gpu_energy_joules_total", &[("gpu", "1")]), now, 1.5);
        let memory = series("gpu_process_memory_bytes", &[("gpu", "1"), ("pid", "7")]);
        samples.push(&memory, now, 4096.0);
        let old = now - STALE_AFTER_MS - 1_000;
        samples.push(&series("gpu_up", &[("gpu", "1")]), old, 1.0);
        Exporter::new(samples, &NodeName::new("n1").unwrap(), dcgm)
    }

    #[test]
    fn text_holds_help_type_node_and_odd_values() {
        let expected = "# HELP gpu_energy_joules_total Energy used since the driver was loaded.\n\
            # TYPE gpu_energy_joules_total counter\n\
            gpu_energy_joules_total{gpu=\"1\",node=\"n1\"} 1.5\n\
            # HELP train_loss Loss of this rank: as the script logs it, else as given to backward, unscaled; NaN and infinities are kept.\n\
            # TYPE train_loss gauge\n\
            train_loss{node=\"n1\",rank=\"0\",run=\"a\\\"b\"} NaN\n";
        let page = exporter(None).page(&MetricSelection::default(), Format::Text);
        assert_eq!(page, expected);
    }

    #[test]
    fn openmetrics_names_units_and_ends() {
        let expected = "# HELP gpu_energy_joules Energy used since the driver was loaded.\n\
            # TYPE gpu_energy_joules counter\n\
            # UNIT gpu_energy_joules joules\n\
            gpu_energy_joules_total{gpu=\"1\",node=\"n1\"} 1.5\n\
            # EOF\n";
        let selection = MetricSelection::parse("collect[]=gpu_energy").unwrap();
        assert_eq!(exporter(None).page(&selection, Format::OpenMetrics), expected);
    }

    #[test]
    fn metrics_per_process_are_shown_only_on_request() {
        let has = |query: &str| {
            let page = exporter(None).page(&MetricSelection::parse(query).unwrap(), Format::Text);
            page.contains("gpu_process_memory_bytes{")
        };
        assert!(!has("") && has("all=1") && has("collect[]=gpu_process_memory_bytes"));
        assert!(!has("collect[]=train"));
        assert!(exporter(None).text().contains("gpu_process_memory_bytes{"));
    }

    #[test]
    fn a_page_with_dcgm_names_is_never_openmetrics() {
        let accept = Some("application/openmetrics-text");
        let format = |dcgm, query| exporter(dcgm).format(&MetricSelection::parse(query).unwrap(), accept);
        assert_eq!(format(None, ""), Format::OpenMetrics);
        assert_eq!(format(Some(HostLabel::Lower), ""), Format::Text);
        assert_eq!(
            format(Some(HostLabel::Lower), "collect[]=gpu"),
            Format::OpenMetrics
        );
    }
}
