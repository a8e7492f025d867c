//! Converts the timestamps of all nodes to the collector's clock. They decide which rank failed first, and ranks fail within milliseconds
//! of each other.

use domain::ident::NodeName;
use domain::run::state::NodeReport;

use super::Runs;
use crate::clock;

/// Minimum clock offset in a hello that is used. A smaller one may be the time that the hello took to arrive.
const HELLO_OFF_MS: u64 = 1_000;

impl Runs {
    /// Converts the timestamp of a report to the collector's clock.
    pub(super) async fn by_our_clock(&self, node: &NodeName, mut report: NodeReport) -> NodeReport {
        if let NodeReport::RankExited(exit) = &mut report {
            let ahead_ns = match self.measured_ahead_ns(node).await {
                Some(measured) => measured,
                None => self.reported_ahead_ns(node),
            };
            exit.at_ns = exit.at_ns.saturating_sub(ahead_ns);
        }
        report
    }

    /// Returns how far a node's clock is ahead of the collector's, as its agent measured it in the last minutes. The error is at most half
    /// a round trip. `None` if the agent has not measured it, or if the clock is so far off that its samples have another time.
    async fn measured_ahead_ns(&self, node: &NodeName) -> Option<i64> {
        let query = format!("lockstep_agent_clock_offset_seconds{{node=\"{node}\"}}");
        let seconds = self.number(&query, clock::now_ms()).await?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "no clock is off by three centuries, and the cast stops there"
        )]
        let ahead_ns = (seconds * 1e9) as i64;
        Some(ahead_ns)
    }

    /// Returns the same from the agent's last hello.
    fn reported_ahead_ns(&self, node: &NodeName) -> i64 {
        let records = self.parts.live.records();
        let record = records.iter().find(|record| record.name == *node);
        let ahead_ms = record.map_or(0, |record| record.clock_offset_ms);
        if ahead_ms.unsigned_abs() < HELLO_OFF_MS {
            return 0;
        }
        ahead_ms.saturating_mul(1_000_000)
    }
}
