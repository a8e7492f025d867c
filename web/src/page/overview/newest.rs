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
            let values = match news {
                News::Frame { series, .. } => series
                    .iter()
                    .filter_map(|column| {
                        let run = column.labels.get("run")?.to_owned();
                        Some((run, column.values.last().copied().flatten()?))
                    })
                    .collect(),
                _ => ByRun::new(),
            };
            newest.set(values);
        },
    );
    newest
}
