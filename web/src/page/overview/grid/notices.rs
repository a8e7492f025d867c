//! Notices about nodes that are down, without GPUs, or with unknown attempts.

use domain::api::nodes::{NodeState, NodeView};
use leptos::prelude::*;

use crate::language::{tr, tr_parts};
use crate::live::{Live, Row, each};
use crate::ui::{Ago, UnknownAttempts, When, text};

/// One line per node that has a notice.
#[component]
pub(super) fn Notices() -> impl IntoView {
    let nodes = expect_context::<Live>().nodes;
    let noticed = move || {
        let mut rows = nodes.rows();
        rows.retain(|row| is_noticed(&row.get()));
        rows
    };
    view! {
        <ul class="grid gap-1 mt-2 empty:hidden" data-testid="node-notices">
            {each(noticed, |row| view! { <Notice row /> }.into_any())}
        </ul>
    }
}

fn is_noticed(node: &NodeView) -> bool {
    node.state == NodeState::Down
        || node.inventory.gpus_missing.is_some()
        || !node.unknown_attempts.is_empty()
}

#[component]
fn Notice(row: Row<NodeView>) -> impl IntoView {
    let node = row.signal();
    let is_down = Memo::new(move |_| node.with(|node| node.state == NodeState::Down));
    let seen_ms = Signal::derive(move || node.with(|node| node.seen_ms));
    let missing = text(move || node.with(|node| node.inventory.gpus_missing.clone().unwrap_or_default()));
    let unknown = Signal::derive(move || node.with(|node| node.unknown_attempts.clone()));
    let [since, ago] = tr_parts("since {time}");
    view! {
        <li class="text-sm">
            <span class="font-mono">{row.key.clone()}</span>
            <When on=move || is_down.get()>" " <span class="state state-critical">{tr("down")}</span> " " {since} <Ago at_ms=seen_ms /> {ago}</When>
            <span class="text-muted">" " {missing}</span>
            <UnknownAttempts of=unknown />
        </li>
    }
}
