//! The collector's own metrics on `/metrics`: `lockstep_*`.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The collector's own metrics. Each collector has its own registry, so that tests can run several in one process.
pub struct SelfMetrics {
    registry: Registry,
    /// Batches from agents that were stored durably.
    pub batches: IntCounter,
    /// Samples that were stored durably, by their source.
    pub samples: IntCounterVec,
    /// What was refused, by reason.
    pub refused: IntCounterVec,
    /// Messages that were not analysed because the analysers' queue was full.
    pub analysis_dropped: IntCounter,
    /// Time of a message in the analysers' queue.
    pub analysis_wait_seconds: Histogram,
    /// Open streams of agents.
    pub agent_streams: IntGauge,
    /// Browser tabs on the event stream.
    pub tabs: IntGauge,
    /// Tabs that were disconnected because they did not read.
    pub tabs_dropped: IntCounter,
    /// Requests with an invalid token or session.
    pub auth_failures: IntCounter,
    /// HTTP requests, by status class.
    pub requests: IntCounterVec,
    /// Time to evaluate a query, including the time in the queue.
    pub query_seconds: Histogram,
    /// Failed queries, by reason.
    pub query_failures: IntCounterVec,
}

impl Default for SelfMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let by = |name, help, label| register(&registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        let count = |name, help| register(&registry, IntCounter::new(name, help));
        let level = |name, help| register(&registry, IntGauge::new(name, help));
        let buckets = vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0];
        let seconds = |name, help| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            register(&registry, Histogram::with_opts(options))
        };
        Self {
            batches: count(
                "lockstep_ingest_batches_total",
                "Batches from agents that were stored durably.",
            ),
            samples: by(
                "lockstep_ingest_samples_total",
                "Samples that were stored durably, by their source.",
                "door",
            ),
            refused: by(
                "lockstep_ingest_refused_total",
                "Refused batches, series, samples and messages, by reason.",
                "reason",
            ),
            analysis_dropped: count(
                "lockstep_analysis_dropped_total",
                "Messages from agents that were stored but not analysed, because the analysers were behind.",
            ),
            analysis_wait_seconds: seconds(
                "lockstep_analysis_wait_seconds",
                "Time of messages from agents in the analysers' queue.",
            ),
            agent_streams: level("lockstep_agent_streams", "Open streams of agents."),
            tabs: level("lockstep_stream_tabs", "Browser tabs on the event stream."),
            tabs_dropped: count(
                "lockstep_stream_tabs_dropped_total",
                "Tabs disconnected because they did not read.",
            ),
            auth_failures: count(
                "lockstep_auth_failures_total",
                "Requests with an invalid token or session.",
            ),
            requests: by(
                "lockstep_http_requests_total",
                "HTTP requests by status class.",
                "class",
            ),
            query_seconds: seconds(
                "lockstep_query_seconds",
                "Time to evaluate a query, including the time in the queue.",
            ),
            query_failures: by(
                "lockstep_query_failures_total",
                "Failed queries, by reason.",
                "reason",
            ),
            registry,
        }
    }
}

impl SelfMetrics {
    /// Returns all metrics, for the text format.
    #[must_use]
    pub fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
    }

    /// The registry, for parts that register their own metrics.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// Registers a metric whose name and labels are literals.
pub(crate) fn register<M: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> M {
    let metric = metric.expect("names and labels are literals of its file");
    registry
        .register(Box::new(metric.clone()))
        .expect("each name is registered once");
    metric
}
