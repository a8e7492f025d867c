//! Label sets on the wire: name, value, name, value, …

use domain::series::{Labels, LabelsError};

use crate::proto;

/// Names of a series that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// An odd number of texts.
    #[error("a series came with a label name without a value")]
    Odd,
    /// Labels that cannot name a series.
    #[error(transparent)]
    Labels(#[from] LabelsError),
}

/// Puts labels on the wire.
#[must_use]
pub fn encode(labels: &Labels) -> proto::Series {
    let labels = labels
        .iter()
        .flat_map(|label| [label.name.to_string(), label.value.to_string()])
        .collect();
    proto::Series { labels }
}

/// Reads labels, with `node` set to the node the agent speaks for.
///
/// # Errors
/// When the labels cannot name a series.
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
