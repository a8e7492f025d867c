//! All GPUs at a glance: one cell each, coloured by an indicator of the viewer's choice.

use std::collections::BTreeMap;

use domain::api::nodes::{NodeState, NodeView};
use domain::api::stream::{Push, Request};
use leptos::prelude::*;

use crate::live::Live;
use crate::ui::{Unit, show};

struct Choice {
    title: &'static str,
    query: &'static str,
    unit: Unit,
    /// The value of the palest and of the strongest colour.
    scale: (f64, f64),
}

const CHOICES: [Choice; 6] = [
    Choice {
        title: "memory use",
        query: "gpu_memory_used_bytes / gpu_memory_total_bytes",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "compute (SM active, else utilization)",
        query: "gpu_sm_active_ratio or gpu_utilization_ratio",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "NVLink use",
        query: "link_utilization_ratio{link=\"nvlink\"}",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "temperature",
        query: "gpu_temperature_celsius",
        unit: Unit::Celsius,
        scale: (25.0, 95.0),
    },
    Choice {
        title: "power",
        query: "gpu_power_watts / gpu_power_limit_watts",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "SM clock against its highest",
        query: "gpu_sm_clock_hertz / gpu_sm_clock_max_hertz",
        unit: Unit::Ratio,
        scale: (0.3, 1.0),
    },
];

type Values = BTreeMap<(String, String), f64>;

/// The grid, a row of cells a node.
#[component]
pub(super) fn GpuGrid() -> impl IntoView {
    let live = expect_context::<Live>();
    let chosen = RwSignal::new(0_usize);
    let values = RwSignal::new(Values::new());
    // One owner a choice: changing it ends the old watch.
    Effect::new(move || {
        let choice = &CHOICES[chosen.get()];
        live.watch(
            |id| Request::WatchInstant {
                id,
                query: choice.query.to_owned(),
            },
            move |push| {
                if let Push::Frame { series, .. } = push {
                    let label = |column: &domain::api::stream::Column, name| {
                        column.labels.get(name).unwrap_or("").to_owned()
                    };
                    let all = series.iter().filter_map(|c| {
                        Some((
                            (label(c, "node"), label(c, "gpu")),
                            c.values.last().copied().flatten()?,
                        ))
                    });
                    values.set(all.collect());
                }
            },
        );
    });
    let options = CHOICES
        .iter()
        .enumerate()
        .map(|(n, choice)| view! { <option value=n.to_string()>{choice.title}</option> });
    let choose = move |event| chosen.set(event_target_value(&event).parse().unwrap_or(0));
    let rows = move || {
        let nodes = live.nodes.get().unwrap_or_default();
        if nodes.is_empty() {
            return view! { <p class="opacity-70">"No node has connected yet."</p> }.into_any();
        }
        nodes
            .into_iter()
            .map(|node| view! { <NodeRow node chosen values /> })
            .collect_view()
            .into_any()
    };
    view! {
        <section>
            <div class="flex flex-wrap gap-3 items-center mb-2">
                <h2 class="text-lg font-bold">"GPUs"</h2>
                <label class="text-sm">"coloured by "
                    <select class="select select-sm w-auto" on:change=choose aria-label="indicator">{options.collect_view()}</select>
                </label>
            </div>
            <div class="grid gap-2" data-testid="gpu-grid">{rows}</div>
        </section>
    }
}

#[component]
fn NodeRow(node: NodeView, chosen: RwSignal<usize>, values: RwSignal<Values>) -> impl IntoView {
    let down = node.state == NodeState::Down;
    let cells = node.inventory.gpus.iter().map(|gpu| {
        let key = (node.name.clone(), gpu.index.to_string());
        let title = format!("{} GPU {} {}", node.name, gpu.index, gpu.name);
        let index = gpu.index;
        let value = Memo::new(move |_| values.with(|values| values.get(&key).copied()));
        let text = move || value.get().map_or("–".to_owned(), |value| show(value, CHOICES[chosen.get()].unit));
        let style = move || value.get().map_or(String::new(), |value| colour(value, CHOICES[chosen.get()].scale));
        view! {
            <div class="rounded p-1 text-center text-xs border border-base-300 min-w-14" style=style title=title data-testid="gpu-cell">
                <div class="opacity-70">"GPU " {index}</div>
                <div class="font-semibold">{text}</div>
            </div>
        }
    });
    let cells = cells.collect_view();
    let missing = node.inventory.gpus_missing.clone();
    view! {
        <div class="flex flex-wrap gap-2 items-center">
            <div class="w-40 truncate font-mono text-sm" title=node.name.clone()>
                {node.name.clone()} {down.then(|| view! { " " <span class="badge badge-error badge-sm">"down"</span> })}
            </div>
            <div class="flex flex-wrap gap-1">{cells}</div>
            {missing.map(|why| view! { <span class="text-sm opacity-70">{why}</span> })}
        </div>
    }
}

/// From pale to strong: more saturation and less lightness as the value grows. The text's colour is the theme's own.
fn colour(value: f64, (low, high): (f64, f64)) -> String {
    let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
    format!(
        "background-color: color-mix(in oklab, var(--color-primary) {:.0}%, transparent)",
        share * 70.0
    )
}
