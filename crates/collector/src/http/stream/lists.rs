//! The lists that every page shows: runs, diagnoses and nodes. Each is read once for all tabs.
//!
//! ```text
//! Changes counts ─▶ tick of any tab: has the count grown? ─▶ read the list ─▶ compare ─▶ version n + 1
//! tick of each tab that has version n ◀─ the changes as one text for all tabs, or the whole list
//! ```

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use domain::api::alerts::Diagnosis;
use domain::api::lists::ListItem;
use domain::api::nodes::NodeView;
use domain::api::runs::RunSummary;
use domain::api::stream::{Push, RUNS_MAX};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::sources::Sources;
use super::versioned_list::{ListForm, Seen, VersionedList};
use crate::http::nodes;

/// The lists, shared by all tabs. A tab that reads one holds its lock, and the others wait for the result.
#[derive(Clone)]
pub(super) struct Lists(Arc<Inner>);

struct Inner {
    runs: Mutex<VersionedList<RunSummary>>,
    diagnoses: Mutex<VersionedList<Diagnosis>>,
    nodes: Mutex<VersionedList<NodeView>>,
}

impl Default for Lists {
    fn default() -> Self {
        let runs = VersionedList::new(|runs| Push::Runs { runs }, Push::RunsChanged);
        let diagnoses = VersionedList::new(|diagnoses| Push::Diagnoses { diagnoses }, Push::DiagnosesChanged);
        let nodes = VersionedList::new(|nodes| Push::Nodes { nodes }, Push::NodesChanged);
        Self(Arc::new(Inner {
            runs: Mutex::new(runs),
            diagnoses: Mutex::new(diagnoses),
            nodes: Mutex::new(nodes),
        }))
    }
}

/// The lists of one tab.
pub(super) struct TabLists {
    lists: Lists,
    form: ListForm,
    runs: Seen,
    diagnoses: Seen,
    nodes: Seen,
}

impl TabLists {
    /// Returns the lists of a new tab, which has seen none of them.
    pub(super) fn new(lists: Lists, form: ListForm) -> Self {
        Self {
            lists,
            form,
            runs: None,
            diagnoses: None,
            nodes: None,
        }
    }

    /// Returns the messages about what has changed since the last call. A list that cannot be read is tried again by the next call.
    pub(super) async fn news(&mut self, sources: &Sources) -> Vec<Utf8Bytes> {
        let (lists, form) = (&*self.lists.0, self.form);
        let counts = || sources.changes.list_counts();
        let read_runs = async {
            let runs = sources.runs.list(RUNS_MAX).await;
            runs.inspect_err(|error| tracing::error!(%error, "runs cannot be listed"))
                .ok()
        };
        let read_diagnoses = async { Some(sources.alerts.diagnoses()) };
        let read_nodes = async { Some(nodes::views(&sources.runs, &sources.live)) };

        let runs = news(&lists.runs, &mut self.runs, form, || counts().runs, read_runs).await;
        let diagnoses = news(
            &lists.diagnoses,
            &mut self.diagnoses,
            form,
            || counts().diagnoses,
            read_diagnoses,
        )
        .await;
        let nodes = news(&lists.nodes, &mut self.nodes, form, || counts().nodes, read_nodes).await;
        [runs, diagnoses, nodes].concat()
    }
}

/// Returns the messages about one list. Reads it first if that is necessary; `count` returns how often it has changed.
async fn news<T: ListItem + Clone>(
    list: &Mutex<VersionedList<T>>,
    seen: &mut Seen,
    form: ListForm,
    count: impl Fn() -> u64,
    read: impl Future<Output = Option<Vec<T>>>,
) -> Vec<Utf8Bytes> {
    let mut list = list.lock().await;
    // Counted before the list is read, so that a change during the reading leads to another one.
    let count = count();
    if list.must_be_read(*seen, count, Instant::now())
        && let Some(items) = read.await
    {
        list.update(items, count, Instant::now());
    }
    list.news(seen, form)
}
