//! The cost of an action, in words.

use crate::run::state::Machine;

/// Cost of another attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RestartCost {
    pub(super) steps_lost: Option<u64>,
    pub(super) ranks: u32,
    pub(super) words: String,
}

/// Returns the cost of ending the current attempt and resuming from the last complete checkpoint.
pub(super) fn of_restart(run: &Machine, last_step: Option<u64>, step_s: Option<f64>) -> RestartCost {
    let current = run.current();
    let ranks = u32::try_from(current.ranks().count()).unwrap_or(u32::MAX);
    let steps_lost = run.steps_since_checkpoint(last_step);
    let from = match run.resume_point() {
        Some(from) => match from.step {
            Some(step) => format!("from the checkpoint of step {step}"),
            None => format!("from the checkpoint {}", from.path),
        },
        None => "from the start, because no complete checkpoint is known".to_owned(),
    };
    let lost = match (steps_lost, step_s) {
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
    RestartCost {
        steps_lost,
        ranks,
        words: format!("{ends} {} {from}{lost}.", ranks_words(ranks)),
    }
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
