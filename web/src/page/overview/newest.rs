//! The newest value per run of a query.

use std::collections::BTreeMap;

use domain::api::stream::Request;
use leptos::prelude::*;

use crate::live::{Live, StreamMessage};

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
