//! A live chart of a query: the stream pushes columns, this keeps the last range of them, uPlot draws.

use std::cell::RefCell;
use std::rc::Rc;

use domain::api::stream::{Column, Push, Request};
use domain::series::Labels;
use domain::time::TimestampMs;
use js_sys::{Array, Float64Array};
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;

use crate::live::Live;
use crate::ui::Unit;

/// Lines one chart draws; beyond that nobody can tell them apart.
const LINES_MAX: usize = 64;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn create(element: &web_sys::HtmlElement, unit: &str) -> JsValue;
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn set(chart: &JsValue, names: Array, times: Float64Array, columns: Array);
    #[wasm_bindgen(js_namespace = lockstepChart)]
    fn destroy(chart: &JsValue);
}

/// A titled chart of what `query` gives over the last `range_ms`. `name` makes the name of a line from its labels.
#[component]
pub(crate) fn Chart(
    /// Above the chart.
    title: &'static str,
    /// How values are written.
    unit: Unit,
    /// PromQL.
    query: String,
    /// The label that tells the lines apart; its value is their name.
    by: &'static str,
    /// How far back.
    #[prop(default = 600_000)]
    range_ms: i64,
    /// Distance of points.
    #[prop(default = 1_000)]
    step_ms: i64,
) -> impl IntoView {
    let live = expect_context::<Live>();
    let place = NodeRef::<Div>::new();
    let problem = RwSignal::new(None::<String>);
    let points = RwSignal::new(0_usize);
    let lines = Rc::new(RefCell::new(Lines::default()));
    let drawn: StoredValue<Option<JsValue>, LocalStorage> = StoredValue::new_local(None);

    Effect::new({
        let lines = Rc::clone(&lines);
        move || {
            if let Some(element) = place.get() {
                let chart = create(&element, unit.name());
                lines.borrow().draw(&chart, by);
                drawn.set_value(Some(chart));
            }
        }
    });
    live.watch(
        |id| Request::WatchRange {
            id,
            query,
            range_ms,
            step_ms,
        },
        move |push| match push {
            Push::Frame {
                reset,
                times_ms,
                series,
                ..
            } => {
                problem.set(None);
                let mut lines = lines.borrow_mut();
                lines.take(reset, &times_ms, &series, range_ms);
                points.set(lines.times_ms.len());
                drawn.with_value(|chart| chart.iter().for_each(|chart| lines.draw(chart, by)));
            }
            Push::Failed { message, .. } => problem.set(Some(message)),
            _ => {}
        },
    );
    on_cleanup(move || drawn.with_value(|chart| chart.iter().for_each(destroy)));
    view! {
        <section class="card bg-base-200 p-3 min-w-0" data-testid="chart" data-title=title data-points=move || points.get()>
            <h3 class="font-semibold mb-1">{title}</h3>
            <Show when=move || problem.with(Option::is_some)>
                <p class="alert alert-warning text-sm">{move || problem.get()}</p>
            </Show>
            <div node_ref=place class="w-full min-h-[260px]"></div>
        </section>
    }
}

/// The columns of a chart: each line has one value a time, NaN where it has none.
#[derive(Default)]
struct Lines {
    times_ms: Vec<TimestampMs>,
    lines: Vec<(Labels, Vec<f64>)>,
}

impl Lines {
    fn take(&mut self, reset: bool, times_ms: &[TimestampMs], series: &[Column], range_ms: i64) {
        if reset {
            *self = Self::default();
        }
        let before = self.times_ms.len();
        self.times_ms.extend_from_slice(times_ms);
        for column in series {
            let values = column.values.iter().map(|value| value.unwrap_or(f64::NAN));
            let room = self.lines.len() < LINES_MAX;
            match self.lines.iter_mut().find(|(labels, _)| *labels == column.labels) {
                Some((_, line)) => line.extend(values),
                None if room => {
                    let line = std::iter::repeat_n(f64::NAN, before).chain(values).collect();
                    self.lines.push((column.labels.clone(), line));
                }
                None => {}
            }
        }
        self.lines
            .iter_mut()
            .for_each(|(_, line)| line.resize(self.times_ms.len(), f64::NAN));
        self.forget_older_than(range_ms);
    }

    fn forget_older_than(&mut self, range_ms: i64) {
        let Some(last) = self.times_ms.last() else { return };
        let old = self.times_ms.partition_point(|time| *time < last - range_ms);
        if old == 0 {
            return;
        }
        self.times_ms.drain(..old);
        self.lines
            .iter_mut()
            .for_each(|(_, line)| drop(line.drain(..old)));
        self.lines
            .retain(|(_, line)| line.iter().any(|value| !value.is_nan()));
    }

    fn draw(&self, chart: &JsValue, by: &str) {
        let names: Array = self
            .lines
            .iter()
            .map(|(labels, _)| JsValue::from_str(&name(labels, by)))
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
        let times: Vec<f64> = self.times_ms.iter().map(|time| *time as f64 / 1_000.0).collect();
        let columns: Array = self
            .lines
            .iter()
            .map(|(_, line)| JsValue::from(Float64Array::from(line.as_slice())))
            .collect();
        set(chart, names, Float64Array::from(times.as_slice()), columns);
    }
}

fn name(labels: &Labels, by: &str) -> String {
    match (labels.get(by), by) {
        (Some(value), "rank" | "gpu") => format!("{by} {value}"),
        (Some(value), _) => value.to_owned(),
        (None, _) => "all".to_owned(),
    }
}
