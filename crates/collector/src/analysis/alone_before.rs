//! How long ranks worked alone before the start of the collector. Without it, the first usual evaluation or save after a restart would look
//! as if it took longer than any before.

use std::collections::HashMap;

use domain::ident::RunId;
use query::VectorSample;

use crate::clock;
use crate::evaluator::Evaluator;

/// The longest time for which a rank of each run worked alone. If a rank works alone at the start, the longest time before that counts.
const LONGEST: &str = "max by (run) (diagnosis_alone_longest_seconds) or max by (run) (max_over_time(diagnosis_alone_seconds[6h]))";

/// Returns the longest time of each run in seconds. Call it before series of this process are written.
pub(super) async fn longest_alone(evaluator: &Evaluator) -> HashMap<RunId, f64> {
    let samples = evaluator.samples(LONGEST, clock::now_ms()).await;
    let samples = samples.unwrap_or_else(|error| {
        tracing::warn!(%error, "how long ranks worked alone before the start cannot be read");
        Vec::new()
    });
    let of_run = |(labels, _, seconds): VectorSample| {
        let run = RunId::new(labels.get("run")?).ok()?;
        seconds.is_finite().then_some((run, seconds))
    };
    samples.into_iter().filter_map(of_run).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{Labels, METRIC_NAME};
    use store::{Store, StoreConfig};

    use super::*;
    use crate::append::Publisher;
    use crate::self_metrics::SelfMetrics;

    fn samples(run: &str, alone_s: f64, longest_s: f64) -> Vec<(Labels, f64)> {
        let sample = |name: &str, value: f64| {
            let labels = [(METRIC_NAME, name), ("run", run), ("node", "n1"), ("rank", "0")];
            (Labels::new(labels).unwrap(), value)
        };
        vec![
            sample("diagnosis_alone_seconds", alone_s),
            sample("diagnosis_alone_longest_seconds", longest_s),
        ]
    }

    #[tokio::test]
    async fn the_longest_time_alone_before_the_start_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let evaluator = Evaluator::new(store.series.clone(), &SelfMetrics::default());
        let now_ms = clock::now_ms();
        let mut before = Publisher::new("scores");
        for (second, samples) in [
            (-4, samples("over", 200.0, 0.0)),
            (-3, Vec::new()),
            (-2, samples("now", 300.0, 20.0)),
        ] {
            before
                .publish(&store.series, samples, now_ms + second * 1_000)
                .await;
        }
        let longest = longest_alone(&evaluator).await;
        let expected = [("over", 200.0), ("now", 20.0)];
        let expected = expected.map(|(run, seconds)| (RunId::new(run).unwrap(), seconds));
        assert_eq!(longest, HashMap::from(expected));
        store.close().await;
    }
}
