//! One line: GPUs whose memory processes hold although nothing was computed for ten minutes, by run and owner. No one else can use them.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use crate::json::{Unreadable, field, list, read_field};
use crate::language::tr;
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{dynamic_view, empty_view};

/// When the GPUs are requested first: after the rest of the page, because the query reads ten minutes of each GPU.
const FIRST_MS: u32 = 3_000;
/// Interval between requests.
const AGAIN_MS: u32 = 300_000;
/// Maximum number of runs and nodes that are named.
const NAMED_MAX: usize = 6;

/// The GPUs. Not those that were not measured ten minutes ago, and not those of a node that was down since: what its GPUs did then may not be
/// known yet.
const HELD: &str = "(gpu_processes > 0 and on (node, gpu) gpu_memory_used_bytes / gpu_memory_total_bytes > 0.05 \
    and on (node, gpu) max_over_time(gpu_utilization_ratio[10m]) < 0.01 \
    and on (node, gpu) gpu_utilization_ratio offset 10m and on (node) min_over_time(node_up[10m]) == 1)";

/// The number of these GPUs of a run, or on a node without a run.
#[derive(Debug, Clone, PartialEq)]
struct Held {
    gpus: String,
    run: Option<String>,
    node: String,
}

/// The line; hidden if there are no such GPUs or the collector does not answer.
#[component]
pub(super) fn HeldIdle() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let runs = expect_context::<Live>().runs;
    let held = RwSignal::new(Vec::<Held>::new());
    let path = format!("/api/v1/query?query={}", js_sys::encode_uri_component(&query()));
    spawn_local(async move {
        let mut wait_ms = FIRST_MS;
        loop {
            TimeoutFuture::new(wait_ms).await;
            // The user may have left the page, also during the request.
            if held.is_disposed() {
                return;
            }
            let answer = session.fetch(&path).await.ok();
            let found = answer.and_then(|answer| read_held(&answer).ok());
            let _gone = held.try_set(found.unwrap_or_default());
            wait_ms = AGAIN_MS;
        }
    });
    let owner_of = move |run: &str| {
        let rows = runs.rows();
        let row = rows.iter().find(|row| row.key == run)?;
        row.peek(|run| run.owner.clone())
    };
    let named = dynamic_view(move || {
        let held = held.get();
        let link = |one: &Held| {
            let owner = one.run.as_deref().and_then(owner_of);
            view! { <a class="link inline-flex items-center min-h-(--row) break-all" href=href(one)>{words(one, owner)}</a> }.into_any()
        };
        let mut named: Vec<AnyView> = held.iter().take(NAMED_MAX).map(link).collect();
        named.push(if held.len() > NAMED_MAX {
            view! { <span>"…"</span> }.into_any()
        } else {
            empty_view()
        });
        named.into_any()
    });
    view! {
        <p class="text-muted flex flex-wrap gap-x-3 items-center" hidden=move || held.read().is_empty() title=tr("Processes hold more than 5 % of the memory of these GPUs, but nothing was computed on them in the last ten minutes.") data-testid="held-idle">
            <span>{tr("GPUs held but idle for 10 minutes:")}</span> {named}
        </p>
    }
}

/// Returns the query, with the largest number first. A GPU of several runs counts for each of them.
fn query() -> String {
    let of_runs = format!(
        "count by (run) (group by (run, node, gpu) (gpu_assignment_info{{run!=\"\"}} and on (node, gpu) {HELD}))"
    );
    let without_run =
        format!("count by (node) ({HELD} unless on (node, gpu) gpu_assignment_info{{run!=\"\"}})");
    format!("sort_desc({of_runs} or {without_run})")
}

/// Reads the response of Prometheus' query API.
fn read_held(answer: &JsValue) -> Result<Vec<Held>, Unreadable> {
    let series = list(field(&field(answer, "data")?, "result")?)?;
    let one = |series: JsValue| -> Result<Held, Unreadable> {
        let labels = field(&series, "metric")?;
        Ok(Held {
            gpus: list(field(&series, "value")?)?
                .get(1)
                .as_string()
                .unwrap_or_default(),
            run: read_field(&labels, "run")?,
            node: read_field::<Option<String>>(&labels, "node")?.unwrap_or_default(),
        })
    };
    series.iter().map(one).collect()
}

/// Returns `llama-1 (alice): 3` or `node-07 (no run): 2`.
fn words(held: &Held, owner: Option<String>) -> String {
    let gpus = &held.gpus;
    match (&held.run, owner) {
        (Some(run), Some(owner)) => format!("{run} ({owner}): {gpus}"),
        (Some(run), None) => format!("{run}: {gpus}"),
        (None, _) => format!("{} ({}): {gpus}", held.node, tr("no run")),
    }
}

/// Returns the address of the run, or of the node in the grid.
fn href(held: &Held) -> String {
    match &held.run {
        Some(run) => format!("/runs/{run}"),
        None => format!("/?sel={}", held.node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_with_its_owner_and_a_node_without_a_run() {
        let held = |run: Option<&str>| Held {
            gpus: "3".to_owned(),
            run: run.map(str::to_owned),
            node: if run.is_some() { "" } else { "node-07" }.to_owned(),
        };
        for (run, owner, text, link) in [
            (
                Some("llama-1"),
                Some("alice"),
                "llama-1 (alice): 3",
                "/runs/llama-1",
            ),
            (Some("llama-1"), None, "llama-1: 3", "/runs/llama-1"),
            (None, None, "node-07 (no run): 3", "/?sel=node-07"),
        ] {
            let one = held(run);
            assert_eq!(words(&one, owner.map(str::to_owned)), text);
            assert_eq!(href(&one), link);
        }
    }

    #[test]
    fn gpus_of_a_node_that_was_down_meanwhile_are_not_listed() {
        assert!(
            HELD.ends_with(" and on (node) min_over_time(node_up[10m]) == 1)"),
            "{HELD}"
        );
    }

    #[test]
    fn the_query_counts_by_run_and_for_other_gpus_by_node() {
        let query = query();
        assert!(
            query.starts_with("sort_desc(count by (run) (group by (run, node, gpu) ("),
            "{query}"
        );
        assert!(
            query.contains(" or count by (node) ((gpu_processes > 0 and "),
            "{query}"
        );
        assert_eq!(query.matches(HELD).count(), 2);
        assert_eq!(query.matches('(').count(), query.matches(')').count(), "{query}");
    }
}
