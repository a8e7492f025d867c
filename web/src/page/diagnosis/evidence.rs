//! The evidence: charts of the period around the diagnosis with the culprit's line and its peers' lines, and log lines.

use domain::api::alerts::Evidence;
use domain::api::diagnoses::EvidenceChart;
use domain::metric::Unit;
use leptos::prelude::*;

use super::diagnosis_state::DiagnosisState;
use super::text::since_ms;
use crate::chart::{Chart, Levels, Marks, Naming, Window};
use crate::language::{tr, tr_with};
use crate::ui::{Heading, MeasuredValues, When, dynamic_view};

/// Number of charts shown at first.
const SHOWN: usize = 4;
/// Endings of metric names, and the units that they imply.
const UNITS: [(&str, Unit); 6] = [
    ("_seconds", Unit::Seconds),
    ("_ratio", Unit::Ratio),
    ("_bytes", Unit::Bytes),
    ("_celsius", Unit::Celsius),
    ("_watts", Unit::Watts),
    ("_hertz", Unit::Hertz),
];
/// Maximum number of peers drawn separately; a band summarises more.
const PEERS: usize = 4;

/// The section with the evidence.
#[component]
pub(super) fn EvidenceCharts(state: DiagnosisState) -> impl IntoView {
    // The charts of an active diagnosis would be rebuilt each second, so they stay as first loaded.
    let charts = StoredValue::new(
        state
            .view
            .with_untracked(|view| view.as_ref().map(|view| view.charts.clone()).unwrap_or_default()),
    );
    let began: Marks = state.view.with_untracked(|view| {
        let began = view
            .as_ref()
            .map(|view| (since_ms(&view.diagnosis), tr("began").to_owned()));
        began.into_iter().collect()
    });
    let marks = Signal::stored(began);
    let all = RwSignal::new(false);
    let count = charts.with_value(Vec::len);
    let shown = dynamic_view(move || {
        let most = if all.get() { usize::MAX } else { SHOWN };
        let charts = charts.get_value().into_iter().take(most);
        charts
            .map(|one| chart(one, marks))
            .collect::<Vec<AnyView>>()
            .into_any()
    });
    view! {
        <section class="min-w-0" data-testid="evidence-charts">
            <Heading text=tr("Evidence") hint=tr("The culprit's line is bold; the band covers 80 % of its peers, and the dashed line is their median.") />
            <div class="grid grid-cols-1 gap-3 lg:grid-cols-2">{shown}</div>
            <When on=move || (count > SHOWN) && !all.get()>
                <button class="btn btn-sm mt-2" on:click=move |_| all.set(true)>{tr_with("Show all {count} charts", &[("count", &count)])}</button>
            </When>
            {state.shown(|view| {
                let logs = view.diagnosis.alert.evidence.iter().filter(|one| !one.lines.is_empty());
                logs.map(log).collect::<Vec<AnyView>>().into_any()
            })}
            <details class="mt-3">
                <summary class="cursor-pointer">{tr("Values at its start")}</summary>
                {state.shown(|view| {
                    let evidence = view.diagnosis.alert.evidence.iter().cloned();
                    evidence.map(|evidence| view! { <MeasuredValues evidence /> }.into_any()).collect::<Vec<AnyView>>().into_any()
                })}
            </details>
        </section>
    }
}

fn chart(chart: EvidenceChart, marks: Signal<Marks>) -> AnyView {
    let window = Window::Past {
        start_ms: chart.start_ms,
        end_ms: chart.end_ms,
    };
    let levels: Levels = chart
        .threshold
        .map(|value| (value, tr("threshold").to_owned()))
        .into_iter()
        .collect();
    let unit = unit(&chart.query);
    view! {
        <Chart title=chart.title hint="" unit query=chart.query naming=const { Naming::by_difference().at_most(PEERS) }
            window=Signal::stored(window) marks bold=Signal::stored(chart.culprit) levels=Signal::stored(levels) />
    }
    .into_any()
}

/// Returns the unit of the first metric in a query: the last word of its name.
fn unit(query: &str) -> Unit {
    let query = query.trim_start_matches("last_over_time(");
    let end = query.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let name = &query[..end.unwrap_or(query.len())];
    UNITS
        .into_iter()
        .find(|(ending, _)| name.ends_with(ending))
        .map_or(Unit::Number, |(_, unit)| unit)
}

fn log(evidence: &Evidence) -> AnyView {
    let label = evidence.title.clone();
    view! {
        <section class="mt-3 min-w-0" data-testid="evidence-log">
            <h3 class="font-semibold" lang="en">{evidence.title.clone()}</h3>
            <pre class="bg-base-200 rounded p-2 text-xs overflow-x-auto" tabindex="0" role="region" aria-label=label>{evidence.lines.join("\n")}</pre>
        </section>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_that_of_the_metric() {
        for (query, expected) in [
            ("train_step_seconds{run=\"r\"}", Unit::Seconds),
            ("last_over_time(train_step{run=\"r\"}[1h])", Unit::Number),
            (
                "last_over_time(train_last_step_age_seconds{run=\"r\"}[1h])",
                Unit::Seconds,
            ),
            ("gpu_temperature_celsius", Unit::Celsius),
            ("max(train_step_seconds)", Unit::Number),
        ] {
            assert_eq!(unit(query), expected, "{query}");
        }
    }
}
