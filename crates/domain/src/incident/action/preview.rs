//! What a change of a run would do, before it is made.

use super::{Measurements, cost};
use crate::api::runs::ChangePreview;
use crate::run::knob::{Change, Pending};
use crate::run::state::{KnobRequest, Machine};

/// How to undo the exclusion of a node.
pub(super) const UNDO_EXCLUSION: &str = "Stop and resume the run: a resumed run may use every node.";

/// Returns what a request would do. `pending` is the change that it leads to, see [`Machine::change_for`].
#[must_use]
pub fn preview(
    run: &Machine,
    request: &KnobRequest,
    pending: &Pending,
    measurements: &Measurements,
) -> ChangePreview {
    let change = &pending.change;
    let in_place = run.can_change_in_place(request, change);
    let cost = if in_place {
        cost::in_place(run)
    } else {
        cost::of_restart(run, measurements, pending.from_start)
    };
    let mut words = cost.words;
    for node in &change.without {
        words = format!(
            "{words} {}",
            cost::after_exclusion(run, node, measurements.spare_nodes)
        );
    }
    ChangePreview {
        change: Some(change.clone()),
        in_place,
        cost: words,
        undo: undo(run, change),
        steps_lost: cost.steps_lost,
        ranks: cost.ranks,
    }
}

fn undo(run: &Machine, change: &Change) -> String {
    if !change.without.is_empty() {
        return UNDO_EXCLUSION.to_owned();
    }
    if change.reverts.is_some() {
        return format!("Apply {} again.", change.former_values());
    }
    let by_itself = if change.auto_revert {
        " It is reverted automatically if the verdict is worse."
    } else {
        ""
    };
    format!(
        "Revert it on the page of the run, or with `lockstep run revert {}`.{by_itself}",
        run.id
    )
}
