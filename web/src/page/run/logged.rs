//! Values that the script logs to TensorBoard, MLflow or W&B.

use leptos::prelude::*;

use crate::chart::{Marks, Multiples, Window};
use crate::language::tr;

/// The charts; nothing if the script logs nothing.
#[component]
pub(super) fn Logged(
    /// The run's id.
    id: String,
    /// The period shown.
    window: Memo<Window>,
    /// The starts of attempts.
    marks: Memo<Marks>,
) -> impl IntoView {
    // Ranks that log a value log the same value, or parts of it.
    let query = format!("avg by (name) (train_logged_value{{run=\"{id}\"}})");
    view! {
        <Multiples window marks query by="name"
            title=tr("Logged by the script")
            hint=tr("Under the script's own names, mean over the ranks that log them. The training loss is above.")
        />
    }
}
