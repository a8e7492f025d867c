//! Alerts: active ones, then recent ones.

use domain::api::alerts::AlertView;
use leptos::prelude::*;

use crate::language::tr;
use crate::live::{Row, each};
use crate::page::polled::{Absence, Polled};
use crate::ui::{Ago, Heading, When, alert_badge, clock, severity_word, text};

/// The table of alerts.
#[component]
pub(super) fn Alerts(
    /// Active and recent alerts.
    alerts: Polled<AlertView>,
) -> impl IntoView {
    let shown = move || alerts.list.is_known() && !alerts.list.is_empty();
    view! {
        <section class="min-w-0" aria-label=tr("Alerts")>
            <Heading text=tr("Alerts") hint=tr("Active, and the last 50 that ended.") />
            <Absence of=alerts empty=tr("No alerts yet.") />
            <When on=shown>
                <table class="rows" data-testid="alerts">
                    <thead>
                        <tr>
                            <th>{tr("State")}</th>
                            <th>{tr("Alert")}</th>
                            <th class="hidden sm:table-cell">{tr("Severity")}</th>
                            <th class="hidden sm:table-cell">{tr("Since")}</th>
                            <th class="hidden md:table-cell">{tr("Until")}</th>
                        </tr>
                    </thead>
                    <tbody>{each(move || alerts.list.rows(), |row| view! { <Alert row /> }.into_any())}</tbody>
                </table>
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
    let resolved = text(move || {
        let resolved_ms = alert.with(|alert| alert.resolved_ms);
        resolved_ms.map_or("–".to_owned(), clock)
    });
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
        <tr data-testid="alert" data-rule=rule.clone() data-state=text(move || badge.get().1)>
            <td><span class=text(move || badge.get().0)>{text(move || tr(badge.get().1))}</span></td>
            <td class="max-w-0 w-full">
                <p><b>{rule.clone()}</b> " " {summary}</p>
                <p class="text-xs text-muted break-all">{labels} " " {run.map(|run| view! { <a href=format!("/runs/{run}") class="link">{tr("run")}</a> })}</p>
            </td>
            <td class="hidden sm:table-cell"><span class=severity.0>{severity.1}</span></td>
            <td class="hidden sm:table-cell whitespace-nowrap"><Ago at_ms=active_ms /></td>
            <td class="hidden md:table-cell whitespace-nowrap">{resolved}</td>
        </tr>
    }
}
