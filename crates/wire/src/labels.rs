//! Label sets in protocol messages: name, value, name, value, …

use domain::series::{Labels, LabelsError};

use crate::proto;

/// Labels that cannot name a series.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// The number of strings is odd.
    #[error("a series came with a label name without a value")]
    Odd,
    /// The labels are invalid.
    #[error(transparent)]
    Labels(#[from] LabelsError),
}

/// Encodes the labels of a series.
#[must_use]
pub fn encode(labels: &Labels) -> proto::Series {
    let labels = labels
        .iter()
        .flat_map(|label| [label.name.to_string(), label.value.to_string()])
        .collect();
    proto::Series { labels }
}

/// Decodes the labels of a series. Sets the label `node` to the agent's node.
///
/// # Errors
/// If the labels cannot name a series.
pub fn decode(series: &proto::Series, node: &str) -> Result<Labels, SeriesError> {
    let pairs = series.labels.as_chunks::<2>();
    if !pairs.1.is_empty() {
        return Err(SeriesError::Odd);
    }
    let own = pairs
        .0
        .iter()
        .filter(|[name, _]| name != "node")
        .map(|[name, value]| (name.as_str(), value.as_str()));
    Ok(Labels::new(own.chain([("node", node)]))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_and_the_node_is_the_senders() {
        let labels =
            Labels::new([("__name__", "up"), ("gpu", "0"), ("node", "forged")]).expect("well formed");
        let decoded = decode(&encode(&labels), "n1").expect("well formed");
        assert_eq!(decoded.to_string(), r#"up{gpu="0", node="n1"}"#);
        assert_eq!(
            decode(
                &proto::Series {
                    labels: vec!["a".into()]
                },
                "n1"
            ),
            Err(SeriesError::Odd)
        );
    }
}
