//! A chart of a query. The stream sends columns, this module keeps the last range of them, and uPlot draws them. The stream sends a past
//! period once.

mod by_step;
mod lines;
mod multiples;
mod naming;
mod role;
mod window;
mod zoom;

use std::cell::RefCell;
use std::rc::Rc;

use domain::api::prometheus::MatrixSeries;
use domain::api::stream::Request;
use domain::metric::Unit;
use domain::series::Labels;
use domain::time::TimestampMs;
use js_sys::{Array, Float64Array};
use leptos::html::Div;
use leptos::prelude::*;
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use crate::language::{tr, tr_with};
use crate::live::{Live, StreamMessage};
use crate::ui::{When, chart_unit, effect, text};
use lines::Lines;
use role::{Drawn, Role};

pub(crate) use by_step::{StepChart, StepLine, StepLines};
pub(crate) use multiples::Multiples;
pub(crate) use naming::Naming;
pub(crate) use window::Window;
pub(crate) use zoom::{on_zoom, period_changed};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn create(element: &web_sys::HtmlElement, unit: &str, small: bool, axis: &str) -> JsValue;
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn set(
        chart: &JsValue,
        names: Array,
        roles: Array,
        times: Float64Array,
        columns: Array,
        not_finite: Float64Array,
    );
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn mark(chart: &JsValue, times: Float64Array, words: Array);
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn level(chart: &JsValue, values: Float64Array, words: Array);
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn destroy(chart: &JsValue);
}

/// Stands for the distance of points in the query of a chart.
pub(crate) const STEP: &str = "$step";

/// The classes of a chart.
const CHART: &str = "card bg-base-200 p-3 min-w-0";
/// The classes of a chart without data: it is not stretched to the height of the chart beside it.
const EMPTY_CHART: &str = "card bg-base-200 p-3 min-w-0 self-start";

/// A chart with a title of the result of `query` in `window`.
#[component]
pub(crate) fn Chart(
    /// The title above the chart.
    #[prop(into)]
    title: String,
    /// A hint on how to read the chart.
    #[prop(into)]
    hint: String,
    /// The unit of the values.
    unit: Unit,
    /// The PromQL query; see [`STEP`].
    query: String,
    /// How the lines are named, ordered and drawn.
    naming: Naming,
    /// The period shown.
    #[prop(into)]
    window: Signal<Window>,
    /// Marked times in milliseconds, each with a label.
    #[prop(into)]
    marks: Signal<Marks>,
    /// Lines drawn bold because a diagnosis names them, selected by labels.
    #[prop(into, default = Signal::stored(Vec::new()))]
    bold: Signal<Vec<Labels>>,
    /// Horizontal reference lines, each with a label.
    #[prop(into, default = Signal::stored(Vec::new()))]
    levels: Signal<Levels>,
    /// The text if there is no data.
    #[prop(default = tr("No data in this period."))]
    empty: &'static str,
    /// Whether to hide the chart if there is no data.
    #[prop(optional)]
    if_any: bool,
) -> AnyView {
    let place = NodeRef::<Div>::new();
    let drawing = Drawing::new(naming);
    drawing.follow(query, window);
    effect(move || drawing.mark(&marks.get()));
    effect(move || drawing.level(&levels.get()));
    effect(move || drawing.emphasise(bold.get()));
    effect(move || {
        if let Some(element) = place.get() {
            drawing.begin(create(&element, chart_unit(unit), false, "time"));
            drawing.mark(&marks.get_untracked());
            drawing.level(&levels.get_untracked());
        }
    });
    let is_summary = move || drawing.summarised.get() > 0 || drawing.all.get();
    let toggle = move |_| drawing.toggle_all();
    let words = text(move || match (drawing.all.get(), drawing.summarised.get()) {
        (true, _) => tr("Median and band").to_owned(),
        (false, lines) => tr_with("Show all {count} lines", &[("count", &lines)]),
    });
    // A chart without data is one line. While it loads, it keeps its height, so that the page does not jump.
    let is_empty = move || drawing.answered.get() && drawing.points.get() == 0;
    let class = text(move || if is_empty() { EMPTY_CHART } else { CHART });
    view! {
        <section class=class hidden=move || if_any && drawing.points.get() == 0 aria-label=title.clone() data-testid="chart" data-title=title.clone() data-points=move || drawing.points.get() data-marks=move || marks.with(Vec::len)>
            <div class="flex flex-wrap gap-x-3 justify-between items-baseline">
                <h3 class="font-semibold">{title.clone()}</h3>
                <When on=is_summary><button class="link text-xs" on:click=toggle>{words}</button></When>
                <When on=is_empty><p class="text-sm opacity-70">{empty}</p></When>
            </div>
            <When on=move || drawing.problem.with(Option::is_some)>
                <p class="alert alert-warning text-sm" role="alert">{text(move || drawing.problem.get().unwrap_or_default())}</p>
            </When>
            <div hidden=is_empty>
                <p class="text-xs opacity-70 mb-1">{hint}</p>
                <div class="relative min-h-[240px]">
                    <div node_ref=place class="w-full"></div>
                    <When on=move || !drawing.answered.get()>
                        <p class="absolute inset-x-0 top-24 text-center text-sm opacity-70">{tr("Loading…")}</p>
                    </When>
                </div>
            </div>
        </section>
    }
    .into_any()
}

/// Horizontal reference lines, each with a label.
pub(crate) type Levels = Vec<(f64, String)>;

/// Marked times, each with a label.
pub(crate) type Marks = Vec<(TimestampMs, String)>;

/// Sets the marks of a canvas.
fn put_marks(canvas: &JsValue, marks: &Marks) {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
    let times: Vec<f64> = marks.iter().map(|(at_ms, _)| *at_ms as f64 / 1_000.0).collect();
    let words: Array = marks.iter().map(|(_, word)| JsValue::from_str(word)).collect();
    mark(canvas, Float64Array::from(times.as_slice()), words);
}

/// Sets the lines of a canvas. `not_finite`: the times at which a value was NaN or infinite.
fn put_lines(canvas: &JsValue, lines: &[Drawn], times: &[f64], not_finite: &[f64]) {
    let names: Array = lines.iter().map(|line| JsValue::from_str(&line.name)).collect();
    let roles: Array = lines
        .iter()
        .map(|line| JsValue::from_str(line.role.as_str()))
        .collect();
    let columns: Array = lines
        .iter()
        .map(|line| JsValue::from(Float64Array::from(line.values.as_slice())))
        .collect();
    let not_finite = Float64Array::from(not_finite);
    set(
        canvas,
        names,
        roles,
        Float64Array::from(times),
        columns,
        not_finite,
    );
}

/// Sets the levels of a canvas.
fn put_levels(canvas: &JsValue, levels: &Levels) {
    let values: Vec<f64> = levels.iter().map(|(value, _)| *value).collect();
    let words: Array = levels.iter().map(|(_, word)| JsValue::from_str(word)).collect();
    level(canvas, Float64Array::from(values.as_slice()), words);
}

/// The result of a range query; always of type `matrix`.
#[derive(Deserialize)]
pub(crate) struct Matrix {
    /// The series.
    pub(crate) result: Vec<MatrixSeries>,
}

/// The lines of a chart and their canvas.
#[derive(Clone, Copy)]
struct Drawing {
    naming: Naming,
    lines: StoredValue<Rc<RefCell<Lines>>, LocalStorage>,
    canvas: StoredValue<Option<JsValue>, LocalStorage>,
    /// Labels of the bold lines.
    bold: StoredValue<Vec<Labels>>,
    /// Whether each line is drawn, even if there are many.
    all: RwSignal<bool>,
    /// The number of lines that the band summarises; 0 if each line is drawn.
    summarised: RwSignal<usize>,
    /// The number of times that have a value; 0 means no data.
    points: RwSignal<usize>,
    /// Whether a response has arrived.
    answered: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl Drawing {
    /// Creates the data of a chart. The current owner owns it.
    fn new(naming: Naming) -> Self {
        let canvas: StoredValue<Option<JsValue>, LocalStorage> = StoredValue::new_local(None);
        on_cleanup(move || canvas.with_value(|canvas| canvas.iter().for_each(destroy)));
        Self {
            naming,
            lines: StoredValue::new_local(Rc::default()),
            canvas,
            bold: StoredValue::new(Vec::new()),
            all: RwSignal::new(false),
            summarised: RwSignal::new(0),
            points: RwSignal::new(0),
            answered: RwSignal::new(false),
            problem: RwSignal::new(None),
        }
    }

    fn begin(self, canvas: JsValue) {
        self.canvas.set_value(Some(canvas));
        self.draw();
    }

    fn mark(self, marks: &Marks) {
        self.canvas
            .with_value(|canvas| canvas.iter().for_each(|canvas| put_marks(canvas, marks)));
    }

    fn level(self, levels: &Levels) {
        self.canvas
            .with_value(|canvas| canvas.iter().for_each(|canvas| put_levels(canvas, levels)));
    }

    fn emphasise(self, bold: Vec<Labels>) {
        self.bold.set_value(bold);
        self.draw();
    }

    fn toggle_all(self) {
        self.all.update(|all| *all = !*all);
        self.draw();
    }

    /// Requests the data of the window, and again whenever the window changes.
    fn follow(self, query: String, window: Signal<Window>) {
        let live = expect_context::<Live>();
        // Parts of a whole have no extremes: the parts of a sum need not be greatest at the same time.
        let extremes = !self.naming.is_stacked;
        // One owner per window: the next window ends the watch of this one.
        effect(move || {
            let (range_ms, end_ms) = window.get().range();
            let step_ms = window::step_ms(range_ms);
            let query = query.replace(STEP, &format!("{}s", step_ms / 1_000));
            live.watch(
                |id| Request::WatchRange {
                    id,
                    query,
                    range_ms,
                    step_ms,
                    extremes,
                    end_ms,
                },
                move |message| self.take(message, range_ms),
            );
        });
    }

    fn take(self, message: StreamMessage, range_ms: i64) {
        match message {
            StreamMessage::Frame {
                reset,
                times_ms,
                series,
                ..
            } => self.change(|lines| lines.take(reset, &times_ms, &series, range_ms)),
            StreamMessage::Failed { message, .. } => self.problem.set(Some(message)),
            _ => {}
        }
    }

    fn change(self, change: impl FnOnce(&mut Lines)) {
        self.problem.set(None);
        self.answered.set(true);
        let lines = self.lines.get_value();
        change(&mut lines.borrow_mut());
        self.points.set(lines.borrow().measured());
        self.draw();
    }

    fn draw(self) {
        let lines = self.lines.get_value();
        let lines = lines.borrow();
        self.canvas.with_value(|canvas| {
            let Some(canvas) = canvas else { return };
            let (times, named) = self.bold.with_value(|bold| lines.named(&self.naming, bold));
            let most = if self.all.get_untracked() {
                usize::MAX
            } else {
                self.naming.most
            };
            let count = named.len();
            let drawn = role::drawn(&self.naming, named, most);
            let is_band = drawn.iter().any(|line| line.role == Role::Median);
            let summarised = if is_band { count } else { 0 };
            if self.summarised.get_untracked() != summarised {
                self.summarised.set(summarised);
            }
            put_lines(canvas, &drawn, &times, &lines.not_finite_s());
        });
    }
}
