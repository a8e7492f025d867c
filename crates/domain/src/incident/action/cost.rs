//! The cost of an action, in words.

use super::Measurements;
use crate::run::state::Machine;

/// Maximum number of nodes that a cost names.
const NAMED_NODES_MAX: usize = 4;

/// Cost of a change of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChangeCost {
    pub(super) steps_lost: Option<u64>,
    pub(super) ranks: u32,
    pub(super) words: String,
}

/// Returns the cost of ending the current attempt and resuming from the last complete checkpoint, or from the start if a user requests it.
pub(super) fn of_restart(run: &Machine, measurements: &Measurements, from_start: bool) -> ChangeCost {
    let current = run.current();
    let ranks = rank_count(run);
    let last_step = measurements.last_step;
    let (from, steps_lost) = match run.resume_point() {
        _ if from_start => (
            "from the start, without a checkpoint".to_owned(),
            last_step.or(current.last_step()),
        ),
        Some(from) => {
            let words = match from.step {
                Some(step) => format!("from the checkpoint of step {step}"),
                None => format!("from the checkpoint {}", from.path),
            };
            (words, run.steps_since_checkpoint(last_step))
        }
        None => (
            "from the start, because no complete checkpoint is known".to_owned(),
            run.steps_since_checkpoint(last_step),
        ),
    };
    let lost = match (steps_lost, measurements.step_s) {
        (Some(0), _) => "; no step is trained again".to_owned(),
        (Some(steps), Some(step_s)) => format!(
            "; at most {steps} steps are trained again, about {}",
            seconds(step_s * steps as f64)
        ),
        (Some(steps), None) => format!("; at most {steps} steps are trained again"),
        (None, _) => "; the number of steps to train again is unknown".to_owned(),
    };
    let ends = if run.state.is_final() {
        format!("Starts attempt {} with", current.no.0 + 1)
    } else {
        format!("Ends attempt {} and restarts with", current.no)
    };
    ChangeCost {
        steps_lost,
        ranks,
        words: format!("{ends} {} {from}{lost}.", ranks_words(ranks)),
    }
}

/// Returns the cost of a change that the ranks apply while they train.
pub(super) fn in_place(run: &Machine) -> ChangeCost {
    let (no, ranks) = (run.current().no, rank_count(run));
    let whom = match ranks {
        1 => "its rank applies".to_owned(),
        ranks => format!("each of its {ranks} ranks applies"),
    };
    ChangeCost {
        steps_lost: Some(0),
        ranks,
        words: format!(
            "Attempt {no} continues: {whom} the change at the end of its next step; no step is trained again."
        ),
    }
}

/// Returns what an exclusion leaves: the other nodes of the attempt, and the nodes that are free.
pub(super) fn after_exclusion(run: &Machine, node: &str, spare_nodes: u32) -> String {
    let nodes = run.current().nodes.iter();
    let others: Vec<&str> = nodes
        .map(|task| task.node.as_str())
        .filter(|other| *other != node)
        .collect();
    let others = match others.len() {
        0 => String::new(),
        1..=NAMED_NODES_MAX => format!("; {} can be used again", others.join(", ")),
        count => format!("; its {count} other nodes can be used again"),
    };
    let spare = match spare_nodes {
        0 => "no other node is free".to_owned(),
        1 => "1 other node is free".to_owned(),
        spare => format!("{spare} other nodes are free"),
    };
    format!("{node} is excluded from this run{others}; {spare}.")
}

fn rank_count(run: &Machine) -> u32 {
    u32::try_from(run.current().ranks().count()).unwrap_or(u32::MAX)
}

pub(super) fn ranks_words(ranks: u32) -> String {
    match ranks {
        1 => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    }
}

/// Prints a duration: `41 s`, `12 min`, `3.5 h`.
fn seconds(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7_200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3_600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_readable_unit() {
        for (value, expected) in [(41.2, "41 s"), (720.0, "12 min"), (12_600.0, "3.5 h")] {
            assert_eq!(seconds(value), expected);
        }
    }
}
