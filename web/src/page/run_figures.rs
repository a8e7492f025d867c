//! The newest values of runs, for tables of runs.

use std::collections::BTreeMap;

use domain::api::stream::Request;
use leptos::prelude::*;

use crate::live::{Live, StreamMessage};
use crate::ui::text;

/// The step of each run. Here and below, ranks of a node that is down have no value.
pub(super) const STEP: &str = "max by (run) (train_step unless on (node) node_up == 0)";
/// The step time of each run.
pub(super) const STEP_TIME: &str =
    "quantile by (run) (0.5, train_step_seconds unless on (node) node_up == 0)";

/// Values by run.
pub(super) type ByRun = BTreeMap<String, f64>;

/// Watches a query with one series per run until the current owner is cleaned up.
pub(super) fn newest_by_run(query: &str) -> RwSignal<ByRun> {
    let newest = RwSignal::new(ByRun::new());
    let query = query.to_owned();
    expect_context::<Live>().watch(
        |id| Request::WatchInstant { id, query },
        move |message| {
            let mut values = ByRun::new();
            if let StreamMessage::Frame { series, .. } = message {
                for column in series {
                    let value = column.values.last().copied().flatten();
                    if let (Some(run), Some(value)) = (column.labels.get("run"), value) {
                        values.insert(run.to_owned(), value);
                    }
                }
            }
            newest.set(values);
        },
    );
    newest
}

/// Returns the value of one run as text; a dash if it has none.
pub(super) fn figure(
    id: StoredValue<String>,
    of: RwSignal<ByRun>,
    written: fn(f64) -> String,
) -> Signal<String> {
    text(move || {
        let value = of.with(|values| id.with_value(|id| values.get(id).copied()));
        value.map_or_else(|| "–".to_owned(), written)
    })
}
