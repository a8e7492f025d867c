//! The newest value per run of a query.

use std::collections::BTreeMap;

use domain::api::stream::Request;
use leptos::prelude::*;

use crate::live::{Live, News};

/// Values by run.
pub(super) type ByRun = BTreeMap<String, f64>;

/// Follows a query with one series per run until the current owner is cleaned up.
pub(super) fn newest_by_run(query: &str) -> RwSignal<ByRun> {
    let newest = RwSignal::new(ByRun::new());
    let query = query.to_owned();
    expect_context::<Live>().watch(
        |id| Request::WatchInstant { id, query },
        move |news| {
            let mut values = ByRun::new();
            if let News::Frame { series, .. } = news {
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
