//! The GPU grid: one cell per GPU, coloured by the difference to its peers, with rings around culprits.
//!
//! Values are not stored in signals, because ten thousand GPUs would need ten thousand signals. They are in plain lists in [`Picture`], and
//! `grid.js` paints the changes.

mod controls;
mod fleet;
mod layout;
mod measure;
mod notices;
mod peers;
mod picture;
mod pointer;
mod samples;
mod worst;

use domain::api::stream::{Column, Request};
use domain::series::Labels;
use leptos::html::Div;
use leptos::prelude::*;

use crate::language::tr;
use crate::live::{Live, StreamMessage};
use crate::route::Route;
use crate::ui::{When, canvas_in, dynamic_view, effect, empty_view, text};
use controls::{Controls, Legend};
use fleet::{Culprit, Grouping, Node};
use measure::{Measure, Shows, measure};
use notices::Notices;
use picture::{Canvas, Picture};
use pointer::Pointer;
use worst::Worst;

/// The interval at which the grid requests which rank uses which GPU.
const ASSIGNMENT_STEP_MS: i64 = 15_000;
const ASSIGNMENT: &str = "group by (node, gpu, run, rank) (gpu_assignment_info{run!=\"\"})";

/// The user's choices, stored in the address. Cheap to copy.
#[derive(Clone, Copy)]
struct Choices {
    measure: Memo<Option<String>>,
    shows: Memo<Option<String>>,
    grouping: Memo<Option<String>>,
    view: Memo<Option<String>>,
}

impl Choices {
    fn of(route: Route) -> Self {
        Self {
            measure: route.param("colour"),
            shows: route.param("show"),
            grouping: route.param("group"),
            view: route.param("gpus"),
        }
    }

    fn measure(self) -> &'static Measure {
        self.measure.with(|key| measure(key.as_deref()))
    }

    fn shows(self) -> Shows {
        if self.shows.with(|key| key.as_deref() == Some("value")) {
            Shows::Value
        } else {
            Shows::Difference
        }
    }

    fn grouping(self) -> Grouping {
        self.grouping.with(|key| match key.as_deref() {
            Some("run") => Grouping::Run,
            Some("rack") => Grouping::Rack,
            _ => Grouping::Node,
        })
    }

    fn is_table(self) -> bool {
        self.view.with(|key| key.as_deref() == Some("table"))
    }
}

/// The grid with its controls, or the table instead.
#[component]
pub(super) fn GpuGrid() -> impl IntoView {
    let nodes = expect_context::<Live>().nodes;
    let choices = Choices::of(expect_context::<Route>());
    let grid = Grid::watched(choices);
    let gpus = grid.gpus;
    let shown = dynamic_view(move || match (gpus.get(), choices.is_table()) {
        (0, _) => empty_view(),
        (_, true) => view! { <Worst grid /> }.into_any(),
        (_, false) => view! { <Cells grid /> }.into_any(),
    });
    let none = move || nodes.is_known() && gpus.get() == 0;
    view! {
        <section class="min-w-0" aria-label=tr("GPUs")>
            <Controls choices gpus />
            <When on=none><p class="text-muted">{tr("No GPUs yet. Connect a node to see its GPUs.")}</p></When>
            <When on=move || !nodes.is_known()><p class="text-muted">{tr("Loading…")}</p></When>
            {shown}
            <Notices />
        </section>
    }
}

/// The data of the grid. Cheap to copy.
#[derive(Clone, Copy)]
struct Grid {
    choices: Choices,
    picture: StoredValue<Picture, LocalStorage>,
    /// Counts changes of the picture, for the parts outside the canvas.
    version: RwSignal<u32>,
    /// The number of GPUs.
    gpus: Memo<usize>,
}

impl Grid {
    /// Tracks nodes, runs, culprits and the chosen measure while the current owner lives.
    fn watched(choices: Choices) -> Self {
        let live = expect_context::<Live>();
        let picture = StoredValue::new_local(Picture::default());
        let version = RwSignal::new(0);
        let gpus = Memo::new(move |_| {
            version.track();
            picture.with_value(|picture| picture.fleet.cells.len())
        });
        let grid = Self {
            choices,
            picture,
            version,
            gpus,
        };
        live.watch(
            |id| Request::WatchRange {
                id,
                query: ASSIGNMENT.to_owned(),
                range_ms: ASSIGNMENT_STEP_MS,
                step_ms: ASSIGNMENT_STEP_MS,
                extremes: false,
                end_ms: None,
            },
            move |message| {
                if let StreamMessage::Frame { series, .. } = message {
                    grid.change(|picture| picture.assign_by(assigned(series)));
                }
            },
        );
        // One owner per measure: the next measure ends the watch of this one.
        effect(move || {
            let query = choices.measure().query.to_owned();
            grid.change(Picture::forget_values);
            live.watch(
                |id| Request::WatchInstant { id, query },
                move |message| match message {
                    StreamMessage::Frame { series, .. } => grid.change(|picture| picture.take(series)),
                    _ => grid.change(Picture::forget_values),
                },
            );
        });
        effect(move || {
            let rows = live.nodes.rows();
            let nodes = rows.iter().map(|row| Node::from(&row.get())).collect();
            grid.change(|picture| picture.arrange(nodes, choices.grouping()));
        });
        effect(move || {
            let rows = live.diagnoses.rows();
            let named = rows
                .iter()
                .filter_map(|row| row.peek(|diagnosis| culprit(&diagnosis.alert.labels)));
            let culprits = named.collect();
            grid.change(|picture| picture.mark(culprits));
        });
        grid
    }

    fn change(self, change: impl FnOnce(&mut Picture)) {
        self.picture.update_value(change);
        self.version.update(|version| *version = version.wrapping_add(1));
    }
}

/// Returns the GPU that a diagnosis names, or the rank or node on which a run has a problem. A full disk does not concern GPUs.
fn culprit(labels: &Labels) -> Option<Culprit> {
    let text = |name| labels.get(name).map(str::to_owned);
    let gpu = labels.get("gpu").and_then(|gpu| gpu.parse().ok());
    let run = text("run");
    if gpu.is_none() && run.is_none() {
        return None;
    }
    Some(Culprit {
        node: text("node")?,
        gpu,
        rank: run.zip(text("rank")),
    })
}

/// Returns the labels of the series that have a value now.
fn assigned(series: Vec<Column>) -> Vec<Labels> {
    let is_now = |column: &Column| column.values.last().copied().flatten().is_some();
    let now = series.into_iter().filter(is_now);
    now.map(|column| column.labels).collect()
}

/// The canvas, with mouse and keyboard control.
#[component]
fn Cells(grid: Grid) -> impl IntoView {
    let place = NodeRef::<Div>::new();
    let pointer = Pointer::new(grid);
    let (canvas, width) = canvas_in(place, Canvas::on);
    let height = RwSignal::new(0);
    effect(move || {
        grid.version.track();
        let (width, shows, measure) = (width.get(), grid.choices.shows(), grid.choices.measure());
        let pointed = pointer.pointed.get();
        if width == 0 {
            return;
        }
        grid.picture.update_value(|picture| {
            canvas.update_value(|canvas| {
                if let Some(canvas) = canvas {
                    canvas.show(picture, width, shows, measure, pointed);
                }
            });
        });
        height.set(grid.picture.with_value(|picture| picture.layout.height));
    });
    view! {
        <div
            node_ref=place
            class="relative focus-visible:outline-2 outline-primary"
            style:height=text(move || format!("{}px", height.get()))
            role="grid"
            tabindex="0"
            aria-label=tr("GPUs. Arrow keys select a GPU, Enter opens its run.")
            aria-activedescendant="gpu-pointed"
            data-testid="gpu-grid"
            data-version=move || grid.version.get()
            on:pointermove=move |event| pointer.over(event.offset_x(), event.offset_y())
            on:pointerleave=move |_| pointer.leave()
            on:click=move |event| pointer.pressed(event.offset_x(), event.offset_y())
            on:keydown=move |event| pointer.key(&event)
        >
            <div role="row" class="sr-only"><div role="gridcell" id="gpu-pointed" aria-live="polite">{pointer.words}</div></div>
        </div>
        <p class="text-xs min-h-5 mt-1" data-testid="gpu-words">{pointer.words}</p>
        <Legend choices=grid.choices />
    }
}
