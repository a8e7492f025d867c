//! What the collector says about itself on `/metrics`: `lockstep_*`.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Its own numbers, one registry a collector so that several live in one process (tests).
pub struct SelfMetrics {
    registry: Registry,
    /// Batches from agents that became durable.
    pub batches: IntCounter,
    /// Samples that became durable, by the door they came through.
    pub samples: IntCounterVec,
    /// What was not taken, by why.
    pub refused: IntCounterVec,
    /// Messages for which the analysers had no room.
    pub analysis_dropped: IntCounter,
    /// Streams of agents that are open.
    pub agent_streams: IntGauge,
    /// Browser tabs on the event stream.
    pub tabs: IntGauge,
    /// Tabs that were cut off because they did not read.
    pub tabs_dropped: IntCounter,
    /// Requests with a token or session that is not good.
    pub auth_failures: IntCounter,
    /// HTTP requests by the class of their answer.
    pub requests: IntCounterVec,
    /// Time of evaluating a query, waiting included.
    pub query_seconds: Histogram,
    /// Queries that failed, by why.
    pub query_failures: IntCounterVec,
}

impl Default for SelfMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let by = |name, help, label| register(&registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        let count = |name, help| register(&registry, IntCounter::new(name, help));
        let level = |name, help| register(&registry, IntGauge::new(name, help));
        let buckets = vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0];
        let seconds = HistogramOpts::new(
            "lockstep_query_seconds",
            "Time of evaluating a query, waiting included.",
        );
        Self {
            batches: count(
                "lockstep_ingest_batches_total",
                "Batches of agents that became durable.",
            ),
            samples: by(
                "lockstep_ingest_samples_total",
                "Samples that became durable, by the door they came through.",
                "door",
            ),
            refused: by(
                "lockstep_ingest_refused_total",
                "Batches, series and samples that were not taken, by why.",
                "reason",
            ),
            analysis_dropped: count(
                "lockstep_analysis_dropped_total",
                "Messages of agents that were stored and not analysed, because the analysers were behind.",
            ),
            agent_streams: level("lockstep_agent_streams", "Open streams of agents."),
            tabs: level("lockstep_stream_tabs", "Browser tabs on the event stream."),
            tabs_dropped: count(
                "lockstep_stream_tabs_dropped_total",
                "Tabs cut off because they did not read.",
            ),
            auth_failures: count(
                "lockstep_auth_failures_total",
                "Requests whose token or session was not good.",
            ),
            requests: by(
                "lockstep_http_requests_total",
                "HTTP requests by the class of their answer.",
                "class",
            ),
            query_seconds: register(&registry, Histogram::with_opts(seconds.buckets(buckets))),
            query_failures: by(
                "lockstep_query_failures_total",
                "Queries that failed, by why.",
                "reason",
            ),
            registry,
        }
    }
}

impl SelfMetrics {
    /// All of them, for the text format.
    #[must_use]
    pub fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
    }

    /// The registry, for parts that count things of their own.
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
