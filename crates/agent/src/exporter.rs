//! The node's own `/metrics`: the latest value of every series, as text that Prometheus and OpenMetrics readers take.
//!
//! ```text
//! Samples ──latest──▶ wanted (which metrics) ──▶ text (HELP and TYPE from the catalogue, `node` added) ──▶ server (TLS, token)
//!                                           └──▶ dcgm (the same values under dcgm-exporter's names, when asked at the start)
//! ```
//! Series without a new value for a while are left out, so that a reader that hangs is not scraped as if it read.

mod dcgm;
mod server;
mod text;
mod wanted;

use domain::ident::NodeName;
use domain::metric::{Metric, find};
use domain::series::{METRIC_NAME, is_stale};
use domain::time::TimestampMs;

pub use dcgm::HostLabel;
pub(crate) use server::Server;
pub use server::ServerError;
pub(crate) use wanted::Wanted;

use self::dcgm::Dcgm;
use self::text::{Format, Writer};
use crate::sample::Samples;
use crate::sample::sink::Sample;
use crate::uplink::link::now_ms;

/// A value older than this is no longer the latest of anything: Prometheus' own look-back.
const STALE_AFTER_MS: TimestampMs = 300_000;

/// Writes the latest values.
#[derive(Debug)]
pub(crate) struct Exporter {
    samples: Samples,
    node: String,
    dcgm: Option<Dcgm>,
}

impl Exporter {
    /// An exporter of everything in `samples`; with `dcgm` also under dcgm-exporter's names, the host under that label.
    pub(crate) fn new(samples: Samples, node: &NodeName, dcgm: Option<HostLabel>) -> Self {
        Self {
            samples,
            node: node.to_string(),
            dcgm: dcgm.map(|label| Dcgm::new(label, node)),
        }
    }

    /// Everything there is, in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        self.page(&Wanted::all(), Format::Text)
    }

    /// A page of what is wanted.
    fn page(&self, wanted: &Wanted, format: Format) -> String {
        let latest = self.latest();
        let mut out = Writer::new(format);
        for family in latest.chunk_by(|a, b| a.series.metric_name() == b.series.metric_name()) {
            let metric = family[0].series.metric_name().and_then(find);
            if let Some(metric) = metric.filter(|metric| wanted.has(metric)) {
                self.write(&mut out, metric, family);
            }
        }
        if let Some(dcgm) = self.dcgm.as_ref().filter(|_| wanted.has_dcgm()) {
            dcgm.write(&mut out, &latest);
        }
        out.finish()
    }

    /// The format of an answer. A page with dcgm-exporter's names is in its format: OpenMetrics would have its counters renamed.
    fn format(&self, wanted: &Wanted, accept: Option<&str>) -> Format {
        if self.dcgm.is_some() && wanted.has_dcgm() {
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
            // In its place among the others: labels are sorted.
            let (before, after): (Vec<_>, Vec<_>) = own.partition(|(name, _)| *name < "node");
            let node = std::iter::once(("node", self.node.as_str()));
            out.sample(before.into_iter().chain(node).chain(after), sample.value);
        }
    }

    /// The newest values, by metric and then by labels: the metric's name is the first of the labels.
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
        let page = exporter(None).page(&Wanted::default(), Format::Text);
        assert_eq!(page, expected);
    }

    #[test]
    fn openmetrics_names_units_and_ends() {
        let expected = "# HELP gpu_energy_joules Energy used since the driver was loaded.\n\
            # TYPE gpu_energy_joules counter\n\
            # UNIT gpu_energy_joules joules\n\
            gpu_energy_joules_total{gpu=\"1\",node=\"n1\"} 1.5\n\
            # EOF\n";
        let wanted = Wanted::parse("collect[]=gpu_energy").unwrap();
        assert_eq!(exporter(None).page(&wanted, Format::OpenMetrics), expected);
    }

    #[test]
    fn what_grows_with_processes_is_only_given_when_asked_for() {
        let has = |query: &str| {
            let page = exporter(None).page(&Wanted::parse(query).unwrap(), Format::Text);
            page.contains("gpu_process_memory_bytes{")
        };
        assert!(!has("") && has("all=1") && has("collect[]=gpu_process_memory_bytes"));
        assert!(!has("collect[]=train"));
        assert!(exporter(None).text().contains("gpu_process_memory_bytes{"));
    }

    #[test]
    fn a_page_with_dcgm_names_is_never_openmetrics() {
        let accept = Some("application/openmetrics-text");
        let format = |dcgm, query| exporter(dcgm).format(&Wanted::parse(query).unwrap(), accept);
        assert_eq!(format(None, ""), Format::OpenMetrics);
        assert_eq!(format(Some(HostLabel::Lower), ""), Format::Text);
        assert_eq!(
            format(Some(HostLabel::Lower), "collect[]=gpu"),
            Format::OpenMetrics
        );
    }
}
