//! Alerts: those that are active, then those of late.

use domain::api::alerts::AlertView;
use leptos::prelude::*;

use super::polled::{Absence, Polled};
use crate::live::{Row, each};
use crate::ui::{Ago, Heading, When, alert_badge, clock, severity_word, text};

/// The table.
#[component]
pub(super) fn Alerts() -> impl IntoView {
    let alerts = Polled::<AlertView>::of("/api/alerts?resolved=50");
    let shown = move || alerts.list.is_known() && !alerts.list.is_empty();
    view! {
        <section class="min-w-0">
            <Heading text="Alerts" hint="A rule whose condition holds: pending until it has held long enough, then firing, then resolved. The last 50 that ended stay here." />
            <Absence of=alerts empty="No alert so far." />
            <When on=shown>
                <ul class="grid grid-cols-1 gap-2" data-testid="alerts">
                    {each(move || alerts.list.rows(), |row| view! { <Alert row /> }.into_any())}
                </ul>
            </When>
        </section>
    }
}

#[component]
fn Alert(row: Row<AlertView>) -> impl IntoView {
    let alert = row.signal();
    let badge = Memo::new(move |_| alert.with(|alert| alert_badge(alert.state)));
    let summary =
        text(move || alert.with(|alert| alert.annotations.get("summary").unwrap_or_default().to_owned()));
    let resolved_ms = Memo::new(move |_| alert.with(|alert| alert.resolved_ms));
    let (rule, severity, active_ms) =
        row.peek(|alert| (alert.rule.clone(), severity_word(alert.severity), alert.active_ms));
    let labels = row.peek(|alert| {
        alert
            .labels
            .filtered(|name| name != "alertname" && name != "severity")
            .to_string()
    });
    let run = row.peek(|alert| alert.labels.get("run").map(str::to_owned));
    view! {
        <li class="card bg-base-200 p-3 text-sm" data-testid="alert" data-rule=rule.clone() data-state=text(move || badge.get().1)>
            <div class="flex flex-wrap gap-2 items-center">
                <span class=text(move || badge.get().0)>{text(move || badge.get().1)}</span>
                <b>{rule.clone()}</b>
                <span class=severity.0>{severity.1}</span>
                <span class="opacity-70">
                    {clock(active_ms)} {text(move || resolved_ms.get().map_or(String::new(), |at_ms| format!(" to {}", clock(at_ms))))} " · " <Ago at_ms=active_ms />
                </span>
            </div>
            <p class="break-words mt-1">{summary}</p>
            <p class="text-xs opacity-70 break-all">{labels} " " {run.map(|run| view! { <a href=format!("/runs/{run}") class="link">"run"</a> })}</p>
        </li>
    }
}
