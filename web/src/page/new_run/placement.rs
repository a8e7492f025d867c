//! Where the run would be placed now, or why it would wait.

use domain::api::runs::{NodePreview, PlacementPreview};
use leptos::prelude::*;

use super::editor::Editor;
use crate::language::{tr, tr_with};
use crate::ui::{clock, dynamic_view, empty_view};

/// Maximum number of nodes that are listed.
const NODES_MAX: usize = 16;

/// The placement of the run as it was typed at the last check.
#[component]
pub(super) fn Placement(editor: Editor) -> impl IntoView {
    let check = editor.check;
    let placement = Memo::new(move |_| {
        // After a failed check, the last answer is about an earlier draft.
        if check.failure.with(Option::is_some) {
            return None;
        }
        check.answer.with(|answer| answer.placement.clone())
    });
    dynamic_view(move || placement.with(|placement| placement.as_ref().map_or_else(empty_view, shown)))
}

fn shown(placement: &PlacementPreview) -> AnyView {
    let at = clock(placement.at_ms);
    let (sentence, why) = match &placement.waits {
        Some(why) => (
            tr_with(
                "Submitted at {time}, the run would wait for nodes:",
                &[("time", &at)],
            ),
            Some(why.clone()),
        ),
        None => (
            tr_with(
                "Submitted at {time}, the run would get these nodes:",
                &[("time", &at)],
            ),
            None,
        ),
    };
    let listed = placement.nodes.iter().take(NODES_MAX);
    let nodes: Vec<AnyView> = listed
        .map(|node| item(line(node, placement.processes_per_node)))
        .collect();
    let rest = placement.nodes.len().saturating_sub(NODES_MAX);
    let rest = (rest > 0).then(|| item(tr_with("and {count} more", &[("count", &rest)])));
    view! {
        <section aria-labelledby="placement" data-testid="placement">
            <h2 id="placement" class="text-lg font-bold">{tr("Placement now")}</h2>
            <p class="text-sm">{sentence} " " <span lang="en">{why}</span></p>
            <ul class="text-sm list-disc ml-5 empty:hidden">{nodes} {rest}</ul>
            <p class="text-sm text-muted">{tr("Nothing is reserved, so this can change until the run is submitted. The GPUs are those of the local ranks, unless the script chooses others.")}</p>
        </section>
    }
    .into_any()
}

fn item(words: String) -> AnyView {
    view! { <li>{words}</li> }.into_any()
}

fn line(node: &NodePreview, processes: Option<u32>) -> String {
    let name = &node.node;
    match (processes, node.gpus) {
        (None, _) => name.clone(),
        (Some(processes), 0) => tr_with(
            "{node}: processes: {count}",
            &[("node", name), ("count", &processes)],
        ),
        (Some(processes), 1) => tr_with(
            "{node}: processes: {count}, GPU 0",
            &[("node", name), ("count", &processes)],
        ),
        (Some(processes), gpus) => tr_with(
            "{node}: processes: {count}, GPUs 0–{last}",
            &[("node", name), ("count", &processes), ("last", &(gpus - 1))],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_processes_and_gpus() {
        for (processes, gpus, expected) in [
            (Some(8), 8, "n1: processes: 8, GPUs 0–7"),
            (Some(1), 1, "n1: processes: 1, GPU 0"),
            (Some(2), 0, "n1: processes: 2"),
            (None, 0, "n1"),
        ] {
            let node = NodePreview {
                node: "n1".to_owned(),
                gpus,
            };
            assert_eq!(line(&node, processes), expected);
        }
    }
}
