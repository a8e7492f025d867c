//! The mesh of a script's ranks as a grid, with the state of each rank and the groups along each axis.

mod state;

use std::collections::BTreeMap;

use domain::api::alerts::RankState;
use domain::api::nodes::NodeState;
use domain::ident::Rank;
use domain::run::mesh::{Mesh, MeshPosition, Plane};
use leptos::prelude::*;

use super::address::log_link;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::ui::{Heading, dynamic_view, empty_view, map_of, text};
use state::{RankContext, RankStatus, State, rank_statuses};

/// Maximum number of cells: more cannot be read and keep a browser busy for seconds.
const CELLS_MAX: usize = 2_048;
/// Maximum number of columns; a longer axis is wrapped.
const COLUMNS_MAX: usize = 16;

/// The selection and the chosen axis. Cheap to copy.
#[derive(Clone, Copy)]
struct MeshSelection {
    /// The run's id.
    run: StoredValue<String>,
    mesh: StoredValue<Mesh>,
    statuses: Memo<BTreeMap<Rank, RankStatus>>,
    /// The axis whose groups are shown.
    axis: RwSignal<usize>,
    /// The selected rank.
    at: RwSignal<Option<Rank>>,
}

/// The section; nothing if no rank has reported a mesh.
#[component]
pub(super) fn Topology(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let mesh = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()
                .and_then(|run| run.more.attempts.last()?.mesh.clone())
        })
    });
    let statuses = followed(id.clone(), run);
    let id = StoredValue::new(id);
    // Rebuilt when a rank has reported its position; the states of ranks change in place.
    dynamic_view(move || {
        mesh.get()
            .map_or_else(empty_view, |mesh| shown(id, mesh, statuses))
    })
}

/// Returns the state of each rank of the newest attempt.
fn followed(id: String, run: RunSignal) -> Memo<BTreeMap<Rank, RankStatus>> {
    let live = expect_context::<Live>();
    let context = Memo::new(move |_| rank_context(live, &id));
    Memo::new(move |_| {
        context.with(|context| {
            run.with(|run| {
                let attempt = run.as_ref().and_then(|run| run.more.attempts.last());
                attempt
                    .map(|attempt| map_of(rank_statuses(attempt, context)))
                    .unwrap_or_default()
            })
        })
    })
}

fn rank_context(live: Live, run: &str) -> RankContext {
    let mut context = RankContext::default();
    for node in live.nodes.rows() {
        let node = node.get();
        if node.state == NodeState::Down {
            context.down.insert(node.name);
        }
    }
    for diagnosis in live.diagnoses.rows() {
        let alert = diagnosis.get().alert;
        let rank = alert
            .labels
            .get("rank")
            .and_then(|rank| rank.parse().ok())
            .map(Rank);
        let Some(rank) = rank.filter(|_| alert.labels.get("run") == Some(run)) else {
            continue;
        };
        match alert.rank_state() {
            Some(RankState::Stuck) => context.stuck.insert(rank),
            Some(RankState::Late) => context.late.insert(rank),
            None => continue,
        };
    }
    context
}

fn shown(run: StoredValue<String>, mesh: Mesh, statuses: Memo<BTreeMap<Rank, RankStatus>>) -> AnyView {
    let words = mesh.words();
    let ranks = mesh.ranks.len();
    let planes = mesh.planes();
    let axes = mesh.axes.clone();
    let selection = MeshSelection {
        run,
        axis: RwSignal::new(axes.len() - 1),
        at: RwSignal::new(None),
        mesh: StoredValue::new(mesh),
        statuses,
    };
    let buttons: Vec<AnyView> = axes
        .iter()
        .enumerate()
        .map(|(n, axis)| choice(n, axis, selection))
        .collect();
    let mut left = CELLS_MAX;
    let drawn: Vec<AnyView> = planes
        .iter()
        .take_while(|plane| {
            let fits = plane.cells.len() <= left;
            left = left.saturating_sub(plane.cells.len());
            fits
        })
        .map(|plane| grid(plane, selection))
        .collect();
    let rest = (drawn.len() < planes.len()).then(|| {
        let words = tr_with(
            "Not all {count} ranks are drawn; the table has the first {shown}.",
            &[("count", &ranks), ("shown", &CELLS_MAX)],
        );
        view! { <p class="text-sm opacity-70">{words}</p> }
    });
    view! {
        <section class="min-w-0" data-testid="topology">
            <Heading text=tr("Mesh of ranks") hint=tr("As the script arranges them. Cells with stripes of one colour are a group along the chosen axis: their collectives wait for each other.") />
            <div class="flex flex-wrap gap-x-4 gap-y-2 items-center mb-2 text-sm">
                <b data-testid="mesh-axes">{words}</b>
                <span class="flex flex-wrap gap-2 items-center" role="group" aria-label=tr("Groups along")>{tr("Groups along ")} {buttons}</span>
                <Key />
            </div>
            <div class="grid gap-3">{drawn}</div>
            {rest}
            <p class="text-sm mt-2 min-h-[1.5em] break-words" data-testid="mesh-group">{text(move || pointed(selection))}</p>
            <details>
                <summary class="cursor-pointer text-sm">{tr("As a table")}</summary>
                {table(selection)}
            </details>
        </section>
    }
    .into_any()
}

/// A button for an axis whose groups can be shown.
fn choice(axis: usize, name: &str, selection: MeshSelection) -> AnyView {
    let is_chosen = move || selection.axis.get() == axis;
    let class = text(move || {
        if is_chosen() {
            "btn btn-xs btn-neutral"
        } else {
            "btn btn-xs"
        }
    });
    let pressed = text(move || is_chosen().to_string());
    let choose = move |_| selection.axis.set(axis);
    view! { <button class=class aria-pressed=pressed on:click=choose data-testid="mesh-axis">{name.to_owned()}</button> }
        .into_any()
}

/// The meaning of the colours; the cell also contains the word.
#[component]
fn Key() -> impl IntoView {
    let one = |state: State, word: &'static str| {
        let class = format!("inline-block size-3 rounded-sm border {}", state.class());
        view! { <span class="inline-flex gap-1 items-center"><span class=class aria-hidden="true"></span>{word}</span> }
    };
    view! {
        <span class="flex flex-wrap gap-3 text-xs opacity-80">
            {one(State::Lost, tr("failed or lost"))} {one(State::Stuck, tr("stuck"))} {one(State::Late, tr("late"))} {one(State::Done, tr("done"))}
        </span>
    }
}

fn grid(plane: &Plane, selection: MeshSelection) -> AnyView {
    let (rows, columns) = (plane.rows.len(), plane.columns.len());
    let wraps = rows == 1 && columns > COLUMNS_MAX;
    let style = if wraps {
        "grid-template-columns: repeat(auto-fill, minmax(4.25rem, 6.5rem))".to_owned()
    } else {
        format!("grid-template-columns: auto repeat({columns}, minmax(4.25rem, 6.5rem))")
    };
    let class = if wraps {
        "grid gap-1 grow"
    } else {
        "grid gap-1 w-fit"
    };
    let head = |name: &String| {
        view! { <span class="text-xs opacity-80 self-center text-center px-1">{name.clone()}</span> }
            .into_any()
    };
    let mut all: Vec<AnyView> = Vec::new();
    if !wraps {
        all.push(view! { <span></span> }.into_any());
        all.extend(plane.columns.iter().map(head));
    }
    for (row, name) in plane.cells.chunks(columns.max(1)).zip(&plane.rows) {
        if !wraps {
            all.push(head(name));
        }
        all.extend(
            row.iter()
                .map(|rank| rank.map_or_else(open_cell, |rank| cell(rank, selection))),
        );
    }
    let title = plane.title.clone();
    let label = if title.is_empty() {
        tr("Mesh of ranks, also as a table below").to_owned()
    } else {
        tr_with(
            "Mesh of ranks at {place}, also as a table below",
            &[("place", &title)],
        )
    };
    view! {
        <div class="min-w-0">
            {(!title.is_empty()).then(|| view! { <h3 class="text-sm font-semibold mb-1">{title}</h3> })}
            <div class="overflow-x-auto p-0.5 flex" tabindex="0" role="group" aria-label=label>
                <div class=class style=style>{all}</div>
                <span class="more-right"></span>
            </div>
        </div>
    }
    .into_any()
}

/// A position that no rank has reported.
fn open_cell() -> AnyView {
    view! { <div class="rounded border border-dashed border-base-300 min-h-12 grid place-items-center opacity-60" title=tr("no rank has reported this coordinate")>"?"</div> }
        .into_any()
}

fn cell(rank: Rank, selection: MeshSelection) -> AnyView {
    let position = selection
        .mesh
        .with_value(|mesh| mesh.position(rank).cloned())
        .unwrap_or_default();
    let coordinates = selection.mesh.with_value(|mesh| mesh.position_words(&position));
    let status = Memo::new(move |_| selection.statuses.with(|all| all.get(&rank).cloned()));
    let state =
        move || status.with(|status| status.as_ref().map_or(State::NotStarted, |status| status.state));
    let node = text(move || {
        status.with(|status| {
            status
                .as_ref()
                .map_or("–".to_owned(), |status| status.node.clone())
        })
    });
    let own = StoredValue::new(position);
    // Whether this rank is in the group of the selected rank. `None` if no rank is selected.
    let together = Memo::new(move |_| {
        let at = selection.at.get()?;
        let axis = selection.axis.get();
        selection.mesh.with_value(|mesh| {
            let group = |position: &MeshPosition| group_number(mesh, position, axis);
            Some(mesh.position(at).map(group) == Some(own.with_value(group)))
        })
    });
    let class = text(move || {
        let pointed = match together.get() {
            Some(true) => "outline-2 outline-base-content",
            Some(false) => "opacity-60",
            None => "",
        };
        format!(
            "rounded border px-1 pt-2 pb-1 text-center text-xs min-h-12 {} {pointed}",
            state().class()
        )
    });
    let style = text(move || {
        let axis = selection.axis.get();
        let group = selection
            .mesh
            .with_value(|mesh| own.with_value(|position| group_number(mesh, position, axis)));
        // Multiples of the golden angle give neighbouring groups the most different colours.
        format!("box-shadow: inset 0 4px 0 oklch(0.65 0.15 {})", group * 137 % 360)
    });
    let title = text(move || {
        let node = node.get();
        tr_with(
            "rank {rank} on {node}: {place}; {state}",
            &[
                ("rank", &rank),
                ("node", &node),
                ("place", &coordinates),
                ("state", &state().word()),
            ],
        )
    });
    let word = text(move || if state().stands_out() { state().word() } else { "" });
    let point = move |_| selection.at.set(Some(rank));
    let leave = move |_| selection.at.set(None);
    // The table has the same link: a key for each of two thousand cells would be no help.
    let link = selection.run.with_value(|run| log_link(run, None, rank, "-1"));
    view! {
        <div class=class style=style title=title data-testid="mesh-cell" data-rank=rank.to_string() on:pointerenter=point on:pointerleave=leave>
            <div class="font-semibold text-sm leading-tight">{link}</div>
            <div class="opacity-80 truncate">{node}</div>
            <div class="font-semibold empty:hidden">{word}</div>
        </div>
    }
    .into_any()
}

/// Returns a number that is the same for ranks that differ only along this axis.
fn group_number(mesh: &Mesh, position: &MeshPosition, axis: usize) -> u32 {
    let axes = position.coordinates.iter().zip(&mesh.sizes).enumerate();
    axes.filter(|(n, _)| *n != axis)
        .fold(0, |number, (_, (at, size))| number * size + at)
}

/// Returns the group of the selected rank as text.
fn pointed(selection: MeshSelection) -> String {
    let axis = selection.axis.get();
    let Some(rank) = selection.at.get() else {
        return tr("Point at a rank to see its group.").to_owned();
    };
    selection.mesh.with_value(|mesh| {
        let ranks: Vec<String> = mesh.group(rank, axis).iter().map(ToString::to_string).collect();
        let position = mesh.position(rank).map(|position| mesh.position_words(position));
        let name = mesh.axes.get(axis).cloned().unwrap_or_default();
        tr_with(
            "Rank {rank} at {place}. Its group along {axis}: ranks {ranks}.",
            &[
                ("rank", &rank),
                ("place", &position.unwrap_or_default()),
                ("axis", &name),
                ("ranks", &ranks.join(", ")),
            ],
        )
    })
}

/// The same as a table, for users who cannot see the grid.
fn table(selection: MeshSelection) -> AnyView {
    let axes = selection.mesh.with_value(|mesh| mesh.axes.clone());
    let heads: Vec<AnyView> = axes
        .iter()
        .map(|axis| view! { <th scope="col">{axis.clone()}</th> }.into_any())
        .collect();
    let positions = selection
        .mesh
        .with_value(|mesh| mesh.ranks.iter().take(CELLS_MAX).cloned().collect::<Vec<_>>());
    let rows: Vec<AnyView> = positions
        .iter()
        .map(|position| row(position, selection))
        .collect();
    view! {
        <table class="rows narrow" data-testid="mesh-table">
            <thead><tr><th scope="col">{tr("Rank")}</th>{heads}<th scope="col">{tr("Node")}</th><th scope="col">{tr("State")}</th></tr></thead>
            <tbody>{rows}</tbody>
        </table>
    }
    .into_any()
}

fn row(position: &MeshPosition, selection: MeshSelection) -> AnyView {
    let rank = position.rank;
    let of = move |part: fn(&RankStatus) -> String| {
        text(move || {
            selection
                .statuses
                .with(|all| all.get(&rank).map_or("–".to_owned(), part))
        })
    };
    let at: Vec<AnyView> = position
        .coordinates
        .iter()
        .map(|at| view! { <td>{at.to_string()}</td> }.into_any())
        .collect();
    let node = of(|status| status.node.clone());
    let state = of(|status| status.state.word().to_owned());
    let link = selection.run.with_value(|run| log_link(run, None, rank, "0"));
    view! { <tr><th scope="row">{link}</th>{at}<td class="font-mono">{node}</td><td>{state}</td></tr> }
        .into_any()
}
