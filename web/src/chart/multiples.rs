//! Small charts of one query, one per line, for values without a common scale.

use domain::metric::Unit;
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use super::lines::Line;
use super::role::drawn;
use super::{Drawing, Marks, Naming, Window, create, destroy, put_lines, put_marks};
use crate::language::tr_with;
use crate::ui::{When, chart_unit, dynamic_view, effect, order, show, text};

/// The number of charts shown at first. The query has the same limit as a chart.
const SHOWN: usize = 12;

/// Lines on one time axis.
#[derive(Default)]
struct Columns {
    times: Vec<f64>,
    lines: Vec<Line>,
}

impl Columns {
    /// Returns the line with this name.
    fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name)
    }

    /// Returns the names of the lines in their order.
    fn names(&self) -> Vec<String> {
        let compare = |a: usize, b: usize| self.lines[a].name.cmp(&self.lines[b].name);
        let places = order(self.lines.len(), &compare);
        places.into_iter().map(|at| self.lines[at].name.clone()).collect()
    }
}

/// The data of the charts and their canvases. Cheap to copy.
#[derive(Clone, Copy)]
struct Small {
    columns: RwSignal<Columns, LocalStorage>,
    marks: Signal<Marks>,
}

/// One small chart per value of the label `by`. Nothing if there are none.
#[component]
pub(crate) fn Multiples(
    /// The title above the charts.
    title: &'static str,
    /// A hint on how to read the charts.
    hint: &'static str,
    /// The PromQL query.
    query: String,
    /// The label that names a chart.
    by: &'static str,
    /// The period shown.
    #[prop(into)]
    window: Signal<Window>,
    /// Marked times.
    #[prop(into)]
    marks: Signal<Marks>,
) -> impl IntoView {
    let naming = Naming::by(by);
    let data = Drawing::new(naming);
    data.follow(query, window);
    let small = Small {
        columns: RwSignal::new_local(Columns::default()),
        marks,
    };
    effect(move || {
        // Changes whenever data is added.
        data.points.track();
        let lines = data.lines.get_value();
        let (times, lines) = lines.borrow().named(&naming, &[]);
        small.columns.set(Columns { times, lines });
    });
    let names = Memo::new(move |_| small.columns.with(Columns::names));
    let all = RwSignal::new(false);
    let charts = move || {
        let most = if all.get() { usize::MAX } else { SHOWN };
        let charts = names.get().into_iter().take(most);
        charts
            .map(|name| chart(name, naming, small))
            .collect::<Vec<AnyView>>()
            .into_any()
    };
    let has_more = move || !all.get() && names.read().len() > SHOWN;
    let more = text(move || tr_with("Show all {count}", &[("count", &names.read().len())]));
    view! {
        <When on=move || !names.read().is_empty()>
            <section class="mt-4 min-w-0" data-testid="multiples">
                <h3 class="font-semibold">{title}</h3>
                <p class="text-xs opacity-70 mb-2">{hint}</p>
                <div class="grid grid-cols-1 gap-2 sm:grid-cols-2 lg:grid-cols-4">{dynamic_view(charts)}</div>
                <When on=has_more>
                    <button class="btn btn-sm mt-2" on:click=move |_| all.set(true)>{more}</button>
                </When>
            </section>
        </When>
    }
}

fn chart(name: String, naming: Naming, small: Small) -> AnyView {
    let place = NodeRef::<Div>::new();
    let canvas: StoredValue<Option<JsValue>, LocalStorage> = StoredValue::new_local(None);
    on_cleanup(move || canvas.with_value(|canvas| canvas.iter().for_each(destroy)));
    let key = StoredValue::new(name.clone());
    let draw = move || {
        small.columns.with(|columns| {
            let line = key.with_value(|name| columns.line(name));
            canvas.with_value(|canvas| {
                if let (Some(canvas), Some(line)) = (canvas, line) {
                    let drawn = drawn(&naming, vec![line.clone()], 1);
                    put_lines(canvas, &drawn, &columns.times, &[]);
                }
            });
        });
    };
    let is_there = RwSignal::new(false);
    effect(move || {
        if let Some(element) = place.get() {
            canvas.set_value(Some(create(&element, chart_unit(Unit::Number), true, "time")));
            is_there.set(true);
        }
    });
    effect(move || {
        if is_there.get() {
            draw();
        }
    });
    effect(move || {
        if is_there.get() {
            small.marks.with(|marks| {
                canvas.with_value(|canvas| canvas.iter().for_each(|canvas| put_marks(canvas, marks)))
            });
        }
    });
    let newest = text(move || {
        small.columns.with(|columns| {
            let line = key.with_value(|name| columns.line(name));
            let newest = line.and_then(|line| line.values.iter().rev().find(|value| !value.is_nan()));
            newest.map_or_else(String::new, |value| show(*value, Unit::Number))
        })
    });
    view! {
        <section class="card bg-base-200 p-2 min-w-0" aria-label=name.clone() data-testid="small-chart" data-name=name.clone()>
            <h4 class="text-xs flex gap-2 justify-between"><span class="font-mono truncate" title=name.clone()>{name.clone()}</span><b>{newest}</b></h4>
            <div class="min-h-[110px]"><div node_ref=place class="w-full"></div></div>
        </section>
    }
    .into_any()
}
