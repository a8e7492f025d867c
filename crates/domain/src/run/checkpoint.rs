//! What a run has saved, and where it may go on.

use serde::{Deserialize, Serialize};

use crate::api::runs::ResumedFrom;
use crate::time::TimestampMs;

/// One checkpoint as a node sees it on its disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Where it lies; names it.
    pub path: String,
    /// The step it holds, when that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Without optimizer and data position: training cannot go on from it exactly.
    pub model_only: bool,
    /// Whether everything is there; otherwise `problem` says what is not.
    pub complete: bool,
    /// What is missing or wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it was finished, by its node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<TimestampMs>,
}

/// Where the next attempt goes on: the furthest full checkpoint that is complete.
#[must_use]
pub fn resume_point(checkpoints: &[Checkpoint]) -> Option<ResumedFrom> {
    let usable = checkpoints
        .iter()
        .filter(|checkpoint| checkpoint.complete && !checkpoint.model_only);
    let furthest = usable.max_by_key(|checkpoint| (checkpoint.step, checkpoint.finished_ms))?;
    Some(ResumedFrom {
        path: furthest.path.clone(),
        step: furthest.step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(step: u64, complete: bool, model_only: bool) -> Checkpoint {
        Checkpoint {
            path: format!("/ckpt/step-{step}"),
            step: Some(step),
            complete,
            model_only,
            ..Checkpoint::default()
        }
    }

    #[test]
    fn training_goes_on_from_the_furthest_that_is_whole() {
        let all = [
            saved(10, true, false),
            saved(20, true, false),
            saved(30, true, true),
            saved(40, false, false),
        ];
        assert_eq!(resume_point(&all).map(|at| at.step), Some(Some(20)));
        assert_eq!(resume_point(&all[2..]), None);
    }
}
