//! Scores of the analysers as series.

use domain::diagnosis::analysis::Score;
use domain::ident::RunId;
use domain::series::{Labels, METRIC_NAME};

/// Returns the series of a score, and its value.
pub(super) fn series(run: &RunId, score: &Score) -> (Labels, f64) {
    let rank = score.rank.map(|rank| rank.0.to_string());
    let mut pairs = vec![(METRIC_NAME, score.metric), ("run", run.as_str())];
    pairs.extend(rank.as_deref().map(|rank| ("rank", rank)));
    pairs.extend(score.node.as_ref().map(|node| ("node", node.as_str())));
    pairs.extend(score.labels.iter().map(|(name, value)| (*name, value.as_str())));
    let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
    (Labels::from_trusted(pairs), score.value)
}
