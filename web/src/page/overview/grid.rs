//! All GPUs at a glance: one cell each, coloured by an indicator of the viewer's choice.

mod choice;

use std::collections::BTreeMap;

use domain::api::nodes::{NodeState, NodeView};
use domain::api::stream::{Column, Request};
use domain::topology::Gpu;
use leptos::prelude::*;

use crate::live::{Live, News, Row, each};
use crate::ui::{Ago, Heading, UnknownAttempts, When, changing, fixed, show, text, whenever};
use choice::{CHOICES, Choice};

/// Up to this share of the light theme's primary colour black has the better contrast, 4.5 to 1 at the least; above it white.
const BLACK_UP_TO: f64 = 0.74;

/// Values by node and GPU.
type Values = BTreeMap<(String, String), f64>;

/// What the cells show. Cheap to copy.
#[derive(Clone, Copy)]
struct Shown {
    choice: RwSignal<&'static Choice>,
    values: RwSignal<Values>,
}

/// The grid, a row of cells a node.
#[component]
pub(super) fn GpuGrid() -> impl IntoView {
    let nodes = expect_context::<Live>().nodes;
    let shown = Shown::watched();
    let options = CHOICES.iter().enumerate();
    let options = options
        .map(|(n, choice)| view! { <option value=n.to_string()>{choice.title}</option> })
        .collect_view();
    let choose = move |event| shown.choose(&event_target_value(&event));
    view! {
        <section class="min-w-0">
            <Heading text="GPUs" hint="A cell each, the stronger the colour the higher the value. A cell that differs from its siblings is worth a look.">
                <label class="text-sm flex gap-2 items-center">"Coloured by"
                    <select class="select select-sm w-auto" on:change=choose data-testid="colour-by">{options}</select>
                </label>
            </Heading>
            <Key shown />
            <When on=move || !nodes.is_known()><p class="opacity-70">"Loading…"</p></When>
            <When on=move || nodes.is_empty()>
                <p class="opacity-70">"No node has connected yet. " <code>"lockstep agent --collector URL --join TOKEN"</code> " on a node brings it here."</p>
            </When>
            <div class="grid gap-3" data-testid="gpu-grid">
                {each(move || nodes.rows(), move |row| view! { <NodeRow row shown /> }.into_any())}
            </div>
        </section>
    }
}

impl Shown {
    /// Follows the chosen query for as long as the current owner lives.
    fn watched() -> Self {
        let live = expect_context::<Live>();
        let shown = Self {
            choice: RwSignal::new(&CHOICES[0]),
            values: RwSignal::new(Values::new()),
        };
        // One owner a choice: another one ends the watch of the one before.
        whenever(move || {
            let query = shown.choice.get().query.to_owned();
            live.watch(
                |id| Request::WatchInstant { id, query },
                move |news| match news {
                    News::Frame { series, .. } => shown.values.set(values(&series)),
                    _ => shown.values.set(Values::new()),
                },
            );
        });
        shown
    }

    fn choose(self, number: &str) {
        if let Some(choice) = number.parse::<usize>().ok().and_then(|n| CHOICES.get(n)) {
            // Values of the choice before would be shown on a scale that is not theirs.
            self.values.set(Values::new());
            self.choice.set(choice);
        }
    }
}

fn values(series: &[Column]) -> Values {
    let mut values = Values::new();
    for (place, one) in series.iter().filter_map(value) {
        values.insert(place, one);
    }
    values
}

fn value(column: &Column) -> Option<((String, String), f64)> {
    let label = |name| column.labels.get(name).unwrap_or_default().to_owned();
    Some((
        (label("node"), label("gpu")),
        column.values.last().copied().flatten()?,
    ))
}

/// What the colours mean.
#[component]
fn Key(shown: Shown) -> impl IntoView {
    let end = move |high: bool| {
        let choice = shown.choice.get();
        show(if high { choice.scale.1 } else { choice.scale.0 }, choice.unit)
    };
    view! {
        <p class="flex gap-2 items-center text-xs opacity-80 mb-2">
            {text(move || end(false))} <span class="inline-block h-2 w-32 rounded bg-gradient-to-r from-transparent to-primary border border-base-300" aria-hidden="true"></span> {text(move || end(true))}
        </p>
    }
}

#[component]
fn NodeRow(row: Row<NodeView>, shown: Shown) -> impl IntoView {
    let node = row.signal();
    let is_down = Memo::new(move |_| node.with(|node| node.state == NodeState::Down));
    let seen_ms = Signal::derive(move || node.with(|node| node.seen_ms));
    let missing = Memo::new(move |_| node.with(|node| node.inventory.gpus_missing.clone()));
    let product = text(move || {
        node.with(|node| {
            node.inventory
                .gpus
                .first()
                .map(|gpu| gpu.name.clone())
                .unwrap_or_default()
        })
    });
    // Rebuilt only when a GPU came or went.
    let gpus = Memo::new(move |_| node.with(|node| node.inventory.gpus.clone()));
    let unknown = Signal::derive(move || node.with(|node| node.unknown_attempts.clone()));
    let name = row.key.clone();
    let cells = changing(move || {
        let cells: Vec<AnyView> = gpus.get().iter().map(|gpu| cell(&name, gpu, shown)).collect();
        cells.into_any()
    });
    view! {
        <div>
            <p class="text-sm mb-1 flex flex-wrap gap-2 items-center">
                <span class="font-mono">{row.key.clone()}</span>
                <span class="opacity-70">{product}</span>
                <When on=move || is_down.get()><span class="badge badge-error badge-sm">"last heard " <Ago at_ms=seen_ms /></span></When>
                <span class="opacity-70">{text(move || missing.get().unwrap_or_default())}</span>
            </p>
            <UnknownAttempts of=unknown />
            <div class="grid gap-1 grid-cols-[repeat(auto-fill,minmax(4.5rem,1fr))]">{cells}</div>
        </div>
    }
}

fn cell(node: &str, gpu: &Gpu, shown: Shown) -> AnyView {
    let key = (node.to_owned(), gpu.index.to_string());
    let title = format!("{node} GPU {} ({})", gpu.index, gpu.name);
    let index = gpu.index;
    let value = Memo::new(move |_| shown.values.with(|values| values.get(&key).copied()));
    let share = move || value.get().map(|value| shown.choice.get().share(value));
    let number = text(move || {
        value
            .get()
            .map_or("–".to_owned(), |value| show(value, shown.choice.get().unit))
    });
    let style = text(move || {
        let percent = fixed(share().unwrap_or(0.0) * 100.0, 0);
        format!("background-color: color-mix(in oklab, var(--color-primary) {percent}%, transparent)")
    });
    // Black or white, whichever can be read on the theme's primary colour laid that thick over the theme's page.
    let class = text(move || match share() {
        Some(share) if share > BLACK_UP_TO => {
            "rounded p-1 text-center text-xs border border-base-300 text-white"
        }
        _ => "rounded p-1 text-center text-xs border border-base-300 text-black dark:text-white",
    });
    view! {
        <div class=class style=style title=title data-testid="gpu-cell">
            <div>"GPU " {index}</div>
            <div class="font-semibold">{number}</div>
        </div>
    }
    .into_any()
}
