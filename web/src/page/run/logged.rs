//! What the script logs itself, to TensorBoard, MLflow or W&B.

use leptos::prelude::*;

use crate::chart::{Marks, Multiples, Window};

/// Nothing where it logs nothing.
#[component]
pub(super) fn Logged(
    /// The run's id.
    id: String,
    /// Which time is shown.
    window: Memo<Window>,
    /// Where attempts began.
    marks: Memo<Marks>,
) -> impl IntoView {
    // The ranks that log a value log the same, or parts of it.
    let query = format!("avg by (name) (train_logged_value{{run=\"{id}\"}})");
    view! {
        <Multiples window marks query by="name"
            title="Logged by the script"
            hint="Under the script's own names, mean over the ranks that log them. The training loss is above."
        />
    }
}
