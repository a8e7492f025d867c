//! Series that a recording rule makes from a query result, with the rule's name and labels.

use std::collections::HashSet;

use super::definition::Rule;
use crate::series::labels::LabelsError;
use crate::series::{Labels, METRIC_NAME};

/// Why an evaluation records nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The result of the expression is a string or a matrix.
    #[error("rule result is not a vector or scalar")]
    Kind,
    /// Two series have the same labels.
    #[error("vector contains metrics with the same labelset after applying rule labels")]
    Same,
    /// There are more series than the group's limit.
    #[error("exceeded limit of {limit} with {count} series")]
    Limit {
        /// The limit.
        limit: usize,
        /// Number of series.
        count: usize,
    },
    /// The labels are not valid.
    #[error(transparent)]
    Labels(#[from] LabelsError),
}

/// Returns the samples of the rule's expression with the labels of the recorded series.
///
/// # Errors
/// See [`RecordError`]. Nothing is recorded then.
pub fn recorded(
    rule: &Rule,
    samples: Vec<(Labels, f64)>,
    limit: usize,
) -> Result<Vec<(Labels, f64)>, RecordError> {
    let count = samples.len();
    if limit > 0 && count > limit {
        return Err(RecordError::Limit { limit, count });
    }
    let mut seen = HashSet::with_capacity(count);
    let mut named = Vec::with_capacity(count);
    for (labels, value) in samples {
        let labels = name(rule, &labels)?;
        if !seen.insert(labels.clone()) {
            return Err(RecordError::Same);
        }
        named.push((labels, value));
    }
    Ok(named)
}

fn name(rule: &Rule, labels: &Labels) -> Result<Labels, LabelsError> {
    let is_ours = |name: &str| name == METRIC_NAME || rule.labels.contains_key(name);
    let kept = labels
        .iter()
        .filter(|label| !is_ours(&label.name))
        .map(|label| (label.name.clone(), label.value.clone()));
    let own = rule
        .labels
        .iter()
        .map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    let named = std::iter::once((METRIC_NAME.into(), rule.name.as_str().into()));
    Labels::new(kept.chain(own).chain(named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Kind, RuleFile};

    fn rule() -> Rule {
        let text =
            "groups: [{ name: g, rules: [{ record: 'a:b', expr: x, labels: { team: infra, node: '' } }] }]";
        let mut file = RuleFile::parse(text).expect("well formed");
        let rule = file.groups.remove(0).rules.remove(0);
        assert_eq!(rule.kind, Kind::Record);
        rule
    }

    fn sample(text: &[(&str, &str)]) -> (Labels, f64) {
        (Labels::new(text.iter().copied()).expect("well formed"), 1.0)
    }

    #[test]
    fn a_series_gets_the_rules_name_and_labels() {
        let samples = vec![sample(&[
            ("__name__", "x"),
            ("gpu", "0"),
            ("node", "n1"),
            ("team", "old"),
        ])];
        let recorded = recorded(&rule(), samples, 0).expect("one series");
        assert_eq!(recorded[0].0.to_string(), r#"a:b{gpu="0", team="infra"}"#);
    }

    #[test]
    fn series_that_fall_together_and_too_many_are_refused() {
        let samples = vec![sample(&[("node", "n1")]), sample(&[("node", "n2")])];
        assert_eq!(recorded(&rule(), samples.clone(), 0), Err(RecordError::Same));
        assert_eq!(
            recorded(&rule(), samples, 1),
            Err(RecordError::Limit { limit: 1, count: 2 })
        );
    }
}
