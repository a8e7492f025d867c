//! Matches the series of two vectors: groups them by the labels that `on` or `ignoring` keeps.

use std::collections::HashMap;
use std::fmt::Write;

use domain::series::{Labels, METRIC_NAME};

use super::column::Column;
use crate::expr::MatchLabels;

/// Series of both sides with equal matching labels, as indexes of columns.
pub(super) struct MatchGroup {
    pub(super) signature: Labels,
    pub(super) left: Vec<usize>,
    pub(super) right: Vec<usize>,
}

/// Returns the groups in the order of their first series, left before right.
pub(super) fn match_groups(labels: &MatchLabels, left: &[Column], right: &[Column]) -> Vec<MatchGroup> {
    let mut places: HashMap<Labels, usize> = HashMap::new();
    let mut groups: Vec<MatchGroup> = Vec::new();
    let sides = left
        .iter()
        .enumerate()
        .map(|side| (true, side))
        .chain(right.iter().enumerate().map(|side| (false, side)));
    for (is_left, (at, column)) in sides {
        let signature = signature(labels, &column.labels);
        let place = *places.entry(signature.clone()).or_insert_with(|| {
            groups.push(MatchGroup {
                signature,
                left: Vec::new(),
                right: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[place];
        if is_left {
            group.left.push(at)
        } else {
            group.right.push(at)
        }
    }
    groups
}

/// Returns the labels by which a series is matched.
fn signature(labels: &MatchLabels, series: &Labels) -> Labels {
    match labels {
        MatchLabels::On(names) => series.filtered(|name| names.iter().any(|on| on == name)),
        MatchLabels::Ignoring(names) => {
            series.filtered(|name| name != METRIC_NAME && !names.iter().any(|ignored| ignored == name))
        }
    }
}

/// Prints labels as in Prometheus' error messages, with the metric's name among the others.
pub(super) fn braced(labels: &Labels) -> String {
    let mut text = String::from("{");
    for (n, label) in labels.iter().enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}={:?}", label.name, &*label.value);
    }
    text.push('}');
    text
}
