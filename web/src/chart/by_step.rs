//! A chart whose x axis counts training steps, for lines that its page has read and joined.

use domain::metric::Unit;
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::JsValue;

use super::role::{Drawn, Role};
use super::{CHART, EMPTY_CHART, create, destroy, put_lines};
use crate::ui::{When, chart_unit, effect, text};

/// Lines on one axis of steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StepLines {
    /// The steps, in order.
    pub(crate) steps: Vec<f64>,
    /// The lines.
    pub(crate) lines: Vec<StepLine>,
    /// Steps at which a value was NaN or infinite.
    pub(crate) not_finite: Vec<f64>,
}

/// One line: one value per step, NaN if there is none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepLine {
    /// Its name.
    pub(crate) name: String,
    /// Its values, then the least and the greatest value since the value before.
    pub(crate) parts: [Vec<f64>; 3],
}

/// A chart with a title. A line is drawn through all its values, because lines may have values at different steps.
#[component]
pub(crate) fn StepChart(
    /// The title above the chart, in the reader's language.
    title: &'static str,
    /// A hint on how to read the chart, in the reader's language.
    hint: &'static str,
    /// The unit of the values.
    unit: Unit,
    /// The lines.
    #[prop(into)]
    lines: Signal<StepLines>,
    /// The text if there is no value, in the reader's language.
    #[prop(into)]
    empty: Signal<String>,
) -> AnyView {
    let place = NodeRef::<Div>::new();
    let canvas: StoredValue<Option<JsValue>, LocalStorage> = StoredValue::new_local(None);
    on_cleanup(move || canvas.with_value(|canvas| canvas.iter().for_each(destroy)));
    let is_there = RwSignal::new(false);
    effect(move || {
        if let Some(element) = place.get() {
            canvas.set_value(Some(create(&element, chart_unit(unit), false, "steps")));
            is_there.set(true);
        }
    });
    effect(move || {
        if is_there.get() {
            lines.with(|lines| {
                canvas.with_value(|canvas| canvas.iter().for_each(|canvas| put(canvas, lines)))
            });
        }
    });
    let is_empty = move || lines.with(|lines| lines.steps.is_empty());
    let class = text(move || if is_empty() { EMPTY_CHART } else { CHART });
    let points = text(move || lines.with(|lines| lines.steps.len().to_string()));
    view! {
        <section class=class aria-label=title data-testid="step-chart" data-points=points>
            <div class="flex flex-wrap gap-x-3 justify-between items-baseline">
                <h3 class="font-semibold">{title}</h3>
                <When on=is_empty><p class="text-sm opacity-70">{empty}</p></When>
            </div>
            <div hidden=is_empty>
                <p class="text-xs opacity-70 mb-1">{hint}</p>
                <div node_ref=place class="w-full min-h-[240px]"></div>
            </div>
        </section>
    }
    .into_any()
}

/// Sets the lines of a canvas.
fn put(canvas: &JsValue, lines: &StepLines) {
    let (mut drawn, mut edges) = (Vec::new(), Vec::new());
    for StepLine { name, parts } in &lines.lines {
        let [line, least, greatest] = parts.clone();
        let one = |role, values| Drawn {
            name: name.clone(),
            role,
            values,
        };
        drawn.push(one(Role::Line, line));
        if least.iter().any(|value| !value.is_nan()) {
            edges.push(one(Role::Least, least));
            edges.push(one(Role::Greatest, greatest));
        }
    }
    // After all lines, so that the colours of lines do not depend on them.
    drawn.append(&mut edges);
    put_lines(canvas, &drawn, &lines.steps, &lines.not_finite);
}
