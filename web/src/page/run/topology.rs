//! How a script has arranged its ranks: the mesh as a grid, with how each rank stands, and the groups along each axis.

mod state;

use std::collections::BTreeMap;

use domain::api::alerts::RankState;
use domain::api::nodes::NodeState;
use domain::ident::Rank;
use domain::run::mesh::{Mesh, MeshPlace, Plane};
use leptos::prelude::*;

use super::known::Known;
use crate::live::Live;
use crate::ui::{Heading, changing, nothing, text};
use state::{Around, Standing, State, standings};

/// Beyond that many ranks a picture shows nothing, and a browser works for seconds.
const CELLS_MAX: usize = 2_048;
/// A row of one axis that is longer is broken into several.
const COLUMNS_MAX: usize = 16;

/// What is pointed at and chosen. Cheap to copy.
#[derive(Clone, Copy)]
struct Look {
    mesh: StoredValue<Mesh>,
    standings: Memo<BTreeMap<Rank, Standing>>,
    /// The axis whose groups are shown.
    axis: RwSignal<usize>,
    /// The rank that is pointed at.
    at: RwSignal<Option<Rank>>,
}

/// Nothing where no rank has told of a mesh.
#[component]
pub(super) fn Topology(
    /// The run's id.
    id: String,
    /// The run.
    run: Known,
) -> impl IntoView {
    let mesh = Memo::new(move |_| {
        run.with(|run| {
            run.as_ref()
                .and_then(|run| run.more.attempts.last()?.mesh.clone())
        })
    });
    let standings = followed(id, run);
    // Built anew when a rank has told of its place; how ranks stand changes within.
    changing(move || mesh.get().map_or_else(nothing, |mesh| shown(mesh, standings)))
}

/// How the ranks of the newest attempt stand.
fn followed(id: String, run: Known) -> Memo<BTreeMap<Rank, Standing>> {
    let live = expect_context::<Live>();
    let around = Memo::new(move |_| around(live, &id));
    Memo::new(move |_| {
        around.with(|around| {
            run.with(|run| {
                let attempt = run.as_ref().and_then(|run| run.more.attempts.last());
                attempt
                    .map(|attempt| standings(attempt, around).into_iter().collect())
                    .unwrap_or_default()
            })
        })
    })
}

fn around(live: Live, run: &str) -> Around {
    let mut around = Around::default();
    for node in live.nodes.rows() {
        let node = node.get();
        if node.state == NodeState::Down {
            around.down.insert(node.name);
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
            Some(RankState::Stuck) => around.stuck.insert(rank),
            Some(RankState::Late) => around.late.insert(rank),
            None => continue,
        };
    }
    around
}

fn shown(mesh: Mesh, standings: Memo<BTreeMap<Rank, Standing>>) -> AnyView {
    let words = mesh.words();
    let ranks = mesh.ranks.len();
    let planes = mesh.planes();
    let axes = mesh.axes.clone();
    let look = Look {
        axis: RwSignal::new(axes.len() - 1),
        at: RwSignal::new(None),
        mesh: StoredValue::new(mesh),
        standings,
    };
    let buttons: Vec<AnyView> = axes
        .iter()
        .enumerate()
        .map(|(n, axis)| choice(n, axis, look))
        .collect();
    let mut left = CELLS_MAX;
    let drawn: Vec<AnyView> = planes
        .iter()
        .take_while(|plane| {
            let fits = plane.cells.len() <= left;
            left = left.saturating_sub(plane.cells.len());
            fits
        })
        .map(|plane| grid(plane, look))
        .collect();
    let rest = (drawn.len() < planes.len()).then(|| {
        view! { <p class="text-sm opacity-70">{format!("Of {ranks} ranks only so many are drawn; the table has the first {CELLS_MAX}.")}</p> }
    });
    view! {
        <section class="min-w-0" data-testid="topology">
            <Heading text="Mesh of ranks" hint="As the script has arranged them. Cells with a stripe of one colour are a group along the chosen axis: their collectives wait for each other." />
            <div class="flex flex-wrap gap-x-4 gap-y-2 items-center mb-2 text-sm">
                <b data-testid="mesh-axes">{words}</b>
                <span class="flex flex-wrap gap-2 items-center" role="group" aria-label="Groups along">"Groups along " {buttons}</span>
                <Key />
            </div>
            <div class="grid gap-3">{drawn}</div>
            {rest}
            <p class="text-sm mt-2 min-h-[1.5em] break-words" data-testid="mesh-group">{text(move || pointed(look))}</p>
            <details>
                <summary class="cursor-pointer text-sm">"As a table"</summary>
                {table(look)}
            </details>
        </section>
    }
    .into_any()
}

/// An axis whose groups can be shown.
fn choice(axis: usize, name: &str, look: Look) -> AnyView {
    let is_chosen = move || look.axis.get() == axis;
    let class = text(move || {
        if is_chosen() {
            "btn btn-xs btn-neutral"
        } else {
            "btn btn-xs"
        }
    });
    let pressed = text(move || is_chosen().to_string());
    let choose = move |_| look.axis.set(axis);
    view! { <button class=class aria-pressed=pressed on:click=choose data-testid="mesh-axis">{name.to_owned()}</button> }
        .into_any()
}

/// What the colours mean; the word stands in the cell as well.
#[component]
fn Key() -> impl IntoView {
    let one = |state: State, word: &'static str| {
        let class = format!("inline-block size-3 rounded-sm border {}", state.class());
        view! { <span class="inline-flex gap-1 items-center"><span class=class aria-hidden="true"></span>{word}</span> }
    };
    view! {
        <span class="flex flex-wrap gap-3 text-xs opacity-80">
            {one(State::Lost, "failed or lost")} {one(State::Stuck, "stuck")} {one(State::Late, "late")} {one(State::Done, "done")}
        </span>
    }
}

fn grid(plane: &Plane, look: Look) -> AnyView {
    let (rows, columns) = (plane.rows.len(), plane.columns.len());
    let wraps = rows == 1 && columns > COLUMNS_MAX;
    let style = if wraps {
        "grid-template-columns: repeat(auto-fill, minmax(4.25rem, 6.5rem))".to_owned()
    } else {
        format!("grid-template-columns: auto repeat({columns}, minmax(4.25rem, 6.5rem))")
    };
    let class = if wraps { "grid gap-1" } else { "grid gap-1 w-fit" };
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
                .map(|rank| rank.map_or_else(open_cell, |rank| cell(rank, look))),
        );
    }
    let title = plane.title.clone();
    let label = if title.is_empty() {
        "Mesh of ranks, also as a table below".to_owned()
    } else {
        format!("Mesh of ranks at {title}, also as a table below")
    };
    view! {
        <div class="min-w-0">
            {(!title.is_empty()).then(|| view! { <h3 class="text-sm font-semibold mb-1">{title}</h3> })}
            <div class="overflow-x-auto p-0.5" tabindex="0" role="group" aria-label=label>
                <div class=class style=style>{all}</div>
            </div>
        </div>
    }
    .into_any()
}

/// A place of which no rank has told yet.
fn open_cell() -> AnyView {
    view! { <div class="rounded border border-dashed border-base-300 min-h-12 grid place-items-center opacity-60" title="no rank has told of this place">"?"</div> }
        .into_any()
}

fn cell(rank: Rank, look: Look) -> AnyView {
    let place = look
        .mesh
        .with_value(|mesh| mesh.place(rank).cloned())
        .unwrap_or_default();
    let coordinates = look.mesh.with_value(|mesh| mesh.place_words(&place));
    let standing = Memo::new(move |_| look.standings.with(|all| all.get(&rank).cloned()));
    let state = move || {
        standing.with(|standing| {
            standing
                .as_ref()
                .map_or(State::Awaited, |standing| standing.state)
        })
    };
    let node = text(move || {
        standing.with(|standing| {
            standing
                .as_ref()
                .map_or("–".to_owned(), |standing| standing.node.clone())
        })
    });
    let own = StoredValue::new(place);
    // Of the rank that is pointed at: whether this one is in its group. None while nobody points.
    let together = Memo::new(move |_| {
        let at = look.at.get()?;
        let axis = look.axis.get();
        look.mesh.with_value(|mesh| {
            let group = |place: &MeshPlace| group_number(mesh, place, axis);
            Some(mesh.place(at).map(group) == Some(own.with_value(group)))
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
        let axis = look.axis.get();
        let group = look
            .mesh
            .with_value(|mesh| own.with_value(|place| group_number(mesh, place, axis)));
        // Turned by the golden angle, neighbours differ the most.
        format!("box-shadow: inset 0 4px 0 oklch(0.65 0.15 {})", group * 137 % 360)
    });
    let title = text(move || {
        let node = node.get();
        format!("rank {rank} on {node}: {coordinates}; {}", state().word())
    });
    let word = text(move || if state().stands_out() { state().word() } else { "" });
    let point = move |_| look.at.set(Some(rank));
    let leave = move |_| look.at.set(None);
    view! {
        <div class=class style=style title=title data-testid="mesh-cell" data-rank=rank.to_string() on:pointerenter=point on:pointerleave=leave>
            <div class="font-semibold text-sm leading-tight">{rank.to_string()}</div>
            <div class="opacity-80 truncate">{node}</div>
            <div class="font-semibold empty:hidden">{word}</div>
        </div>
    }
    .into_any()
}

/// Ranks that differ along the axis only have the same number.
fn group_number(mesh: &Mesh, place: &MeshPlace, axis: usize) -> u32 {
    let axes = place.coordinates.iter().zip(&mesh.sizes).enumerate();
    axes.filter(|(n, _)| *n != axis)
        .fold(0, |number, (_, (at, size))| number * size + at)
}

/// The group of the rank that is pointed at, in words.
fn pointed(look: Look) -> String {
    let axis = look.axis.get();
    let Some(rank) = look.at.get() else {
        return "Point at a rank to see its group.".to_owned();
    };
    look.mesh.with_value(|mesh| {
        let ranks: Vec<String> = mesh.group(rank, axis).iter().map(ToString::to_string).collect();
        let place = mesh.place(rank).map(|place| mesh.place_words(place));
        let name = mesh.axes.get(axis).cloned().unwrap_or_default();
        format!(
            "Rank {rank} at {}. Its group along {name}: ranks {}.",
            place.unwrap_or_default(),
            ranks.join(", ")
        )
    })
}

/// The same for who does not see the grid.
fn table(look: Look) -> AnyView {
    let axes = look.mesh.with_value(|mesh| mesh.axes.clone());
    let heads: Vec<AnyView> = axes
        .iter()
        .map(|axis| view! { <th scope="col">{axis.clone()}</th> }.into_any())
        .collect();
    let places = look
        .mesh
        .with_value(|mesh| mesh.ranks.iter().take(CELLS_MAX).cloned().collect::<Vec<_>>());
    let rows: Vec<AnyView> = places.iter().map(|place| row(place, look)).collect();
    view! {
        <table class="table table-xs w-auto" data-testid="mesh-table">
            <thead><tr><th scope="col">"Rank"</th>{heads}<th scope="col">"Node"</th><th scope="col">"State"</th></tr></thead>
            <tbody>{rows}</tbody>
        </table>
    }
    .into_any()
}

fn row(place: &MeshPlace, look: Look) -> AnyView {
    let rank = place.rank;
    let of = move |part: fn(&Standing) -> String| {
        text(move || {
            look.standings
                .with(|all| all.get(&rank).map_or("–".to_owned(), part))
        })
    };
    let at: Vec<AnyView> = place
        .coordinates
        .iter()
        .map(|at| view! { <td>{at.to_string()}</td> }.into_any())
        .collect();
    let node = of(|standing| standing.node.clone());
    let state = of(|standing| standing.state.word().to_owned());
    view! { <tr><th scope="row">{rank.to_string()}</th>{at}<td class="font-mono">{node}</td><td>{state}</td></tr> }.into_any()
}
