//! The rules, each folded: what it looks for, and what is to be done when it fires.

use domain::api::alerts::RuleView;
use domain::time::DisplayDuration;
use leptos::prelude::*;

use super::polled::{Absence, Polled};
use crate::live::{Row, each};
use crate::ui::{Ago, Heading, When, fixed, text};

/// The list.
#[component]
pub(super) fn Rules() -> impl IntoView {
    let rules = Polled::<RuleView>::of("/api/rules");
    view! {
        <section class="min-w-0">
            <Heading text="Rules" hint="What Lockstep looks for, once a second. Prometheus' own format: the files can be taken to any Prometheus." />
            <Absence of=rules empty="No rule is loaded." />
            <div class="grid grid-cols-1 gap-2" data-testid="rules">
                {each(move || rules.list.rows(), |row| view! { <Rule row /> }.into_any())}
            </div>
        </section>
    }
}

#[component]
fn Rule(row: Row<RuleView>) -> impl IntoView {
    let rule = row.signal();
    let badge = Memo::new(move |_| rule.with(badge));
    let error = Memo::new(move |_| rule.with(|rule| rule.error.clone()));
    let evaluated_ms = Signal::derive(move || rule.with(|rule| rule.evaluated_ms));
    let took = text(move || rule.with(|rule| format!("{} ms", fixed(rule.duration_s * 1_000.0, 1))));
    let (name, group, expr) =
        row.peek(|rule| (rule.name.clone(), rule.group.clone(), rule.expr.trim().to_owned()));
    let patience = row.peek(|rule| match rule.for_ms {
        0 => "at once".to_owned(),
        for_ms => format!("after {}", DisplayDuration(for_ms)),
    });
    let annotation = |name: &str| row.peek(|rule| rule.annotations.get(name).unwrap_or_default().to_owned());
    view! {
        <details class="card bg-base-200 p-3" data-testid="rule" data-rule=name.clone()>
            <summary class="cursor-pointer">
                <b>{name.clone()}</b> " " <span class=text(move || badge.get().0)>{text(move || badge.get().1)}</span>
                <span class="text-sm opacity-70">" " {group} ", " {patience}</span>
            </summary>
            <When on=move || error.with(Option::is_some)><p class="alert alert-error mt-2">{text(move || error.get().unwrap_or_default())}</p></When>
            <pre class="bg-base-300 rounded p-2 mt-2 text-xs whitespace-pre-wrap break-words">{expr}</pre>
            <p class="mt-2"><b>"Says: "</b>{annotation("summary")}</p>
            <p class="mt-1"><b>"Why: "</b>{annotation("cause")}</p>
            <p class="mt-1"><b>"What to do: "</b>{annotation("advice")}</p>
            <p class="text-xs opacity-70 mt-1">"evaluated " <Ago at_ms=evaluated_ms /> " in " {took}</p>
        </details>
    }
}

fn badge(rule: &RuleView) -> (&'static str, String) {
    let firing = rule
        .alerts
        .iter()
        .filter(|alert| alert.fired_ms.is_some())
        .count();
    match (&rule.error, firing, rule.alerts.len()) {
        (Some(_), ..) => ("badge badge-sm badge-error", "error".to_owned()),
        (None, 0, 0) => ("badge badge-sm badge-ghost", "quiet".to_owned()),
        (None, 0, pending) => ("badge badge-sm badge-info", format!("{pending} pending")),
        (None, firing, _) => ("badge badge-sm badge-warning", format!("{firing} firing")),
    }
}
