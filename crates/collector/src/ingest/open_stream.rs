//! The open stream of a node, counted while it exists.

use domain::ident::NodeName;
use prometheus::IntGauge;

use super::handles::Ingest;

/// An open stream of a node. Dropping it decrements the count.
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
