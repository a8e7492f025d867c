//! A node's open stream, counted while it lives.

use domain::ident::NodeName;
use prometheus::IntGauge;

use super::handles::Ingest;

/// A node's open stream.
pub(super) struct OpenStream {
    streams: IntGauge,
    node: NodeName,
}

impl OpenStream {
    pub(super) fn count(ingest: &Ingest, node: NodeName) -> Self {
        let streams = ingest.metrics.agent_streams.clone();
        streams.inc();
        Self { streams, node }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.dec();
        tracing::info!(node = %self.node, "an agent's stream ended");
    }
}
