//! The rules in force, alerts of late, and who is told.

use domain::api::alerts::{AlertView, CreateWebhook, NewWebhook, RuleView, WebhookView};
use domain::api::session::Role;
use domain::time::DisplayDuration;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api;
use crate::app::Who;
use crate::live::Live;
use crate::ui::{ago, clock};

/// The page.
#[component]
pub(crate) fn RulesPage() -> impl IntoView {
    let who = expect_context::<Who>();
    view! {
        <div class="grid gap-6">
            <Alerts />
            <Rules />
            <Show when=move || who.may(Role::Admin)><Webhooks /></Show>
        </div>
    }
}

/// Asks again whenever an alert changes.
fn fresh<T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static>(
    path: &'static str,
) -> RwSignal<Option<Result<T, api::ApiError>>> {
    let live = expect_context::<Live>();
    let answer = RwSignal::new(None);
    Effect::new(move || {
        live.diagnoses.track();
        spawn_local(async move { answer.set(Some(api::get::<T>(path).await)) });
    });
    answer
}

fn loaded<T, V: IntoView + 'static>(
    answer: Option<Result<T, api::ApiError>>,
    show: impl FnOnce(T) -> V,
) -> AnyView {
    match answer {
        None => view! { <p class="opacity-70">"Loading…"</p> }.into_any(),
        Some(Err(error)) => {
            view! { <p class="alert alert-error" role="alert">{error.message}</p> }.into_any()
        }
        Some(Ok(value)) => show(value).into_any(),
    }
}

#[component]
fn Alerts() -> impl IntoView {
    let alerts = fresh::<Vec<AlertView>>("/api/alerts?resolved=50");
    let table = |alerts: Vec<AlertView>| {
        if alerts.is_empty() {
            return view! { <p class="opacity-70">"No alert so far."</p> }.into_any();
        }
        let rows = alerts
            .into_iter()
            .map(|alert| view! { <AlertRow alert /> })
            .collect_view();
        view! {
            <div class="overflow-x-auto"><table class="table table-sm" data-testid="alerts">
                <thead><tr><th>"Alert"</th><th>"State"</th><th>"Since"</th><th>"What"</th></tr></thead>
                <tbody>{rows}</tbody>
            </table></div>
        }
        .into_any()
    };
    view! {
        <section>
            <h2 class="text-lg font-bold mb-2">"Alerts"</h2>
            {move || loaded(alerts.get(), table)}
        </section>
    }
}

#[component]
fn AlertRow(alert: AlertView) -> impl IntoView {
    let summary = alert.annotations.get("summary").unwrap_or_default().to_owned();
    let until = alert
        .resolved_ms
        .map(|ms| format!(" to {}", clock(ms)))
        .unwrap_or_default();
    view! {
        <tr>
            <td>{alert.rule}</td>
            <td>{format!("{:?}", alert.state).to_lowercase()}</td>
            <td>{clock(alert.active_ms)}{until}</td>
            <td class="break-all">{summary}<div class="text-xs opacity-70">{alert.labels.to_string()}</div></td>
        </tr>
    }
}

#[component]
fn Rules() -> impl IntoView {
    let rules = fresh::<Vec<RuleView>>("/api/rules");
    let cards = |rules: Vec<RuleView>| {
        rules
            .into_iter()
            .map(|rule| view! { <RuleCard rule /> })
            .collect_view()
    };
    view! {
        <section>
            <h2 class="text-lg font-bold mb-2">"Rules"</h2>
            <div class="grid gap-2" data-testid="rules">{move || loaded(rules.get(), cards)}</div>
        </section>
    }
}

#[component]
fn RuleCard(rule: RuleView) -> impl IntoView {
    let firing = rule
        .alerts
        .iter()
        .filter(|alert| alert.fired_ms.is_some())
        .count();
    let badge = match (&rule.error, firing, rule.alerts.len()) {
        (Some(_), ..) => ("badge badge-error", "error".to_owned()),
        (None, 0, 0) => ("badge badge-ghost", "quiet".to_owned()),
        (None, 0, pending) => ("badge badge-info", format!("{pending} pending")),
        (None, firing, _) => ("badge badge-warning", format!("{firing} firing")),
    };
    let text = |name: &str| rule.annotations.get(name).unwrap_or_default().to_owned();
    view! {
        <details class="card bg-base-200 p-3">
            <summary class="cursor-pointer">
                <b>{rule.name.clone()}</b> " " <span class=badge.0>{badge.1}</span>
                <span class="text-sm opacity-70">" " {rule.group.clone()} ", for " {DisplayDuration(rule.for_ms).to_string()}</span>
            </summary>
            {rule.error.clone().map(|error| view! { <p class="alert alert-error mt-2">{error}</p> })}
            <pre class="bg-base-300 rounded p-2 mt-2 text-xs whitespace-pre-wrap">{rule.expr.clone()}</pre>
            <p class="mt-2"><b>"Why: "</b>{text("cause")}</p>
            <p><b>"What to do: "</b>{text("advice")}</p>
            <p class="text-xs opacity-70">"evaluated " {ago(rule.evaluated_ms)} " in " {format!("{:.1} ms", rule.duration_s * 1_000.0)}</p>
        </details>
    }
}

#[component]
fn Webhooks() -> impl IntoView {
    let who = expect_context::<Who>();
    let asked = RwSignal::new(0_u32);
    let webhooks = RwSignal::new(None);
    Effect::new(move || {
        asked.track();
        spawn_local(async move { webhooks.set(Some(api::get::<Vec<WebhookView>>("/api/webhooks").await)) });
    });
    let url = RwSignal::new(String::new());
    let said = RwSignal::new(None::<String>);
    let create = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        spawn_local(async move {
            let wish = CreateWebhook {
                url: url.get_untracked(),
                secret: None,
            };
            said.set(Some(
                match api::post::<NewWebhook>("/api/webhooks", &who.csrf(), &wish).await {
                    Ok(made) => format!("Made. Its signing secret, shown this once: {}", made.secret),
                    Err(error) => error
                        .fields
                        .first()
                        .map_or(error.message, |field| field.message.clone()),
                },
            ));
            asked.update(|n| *n += 1);
        });
    };
    let list = move |all: Vec<WebhookView>| {
        all.into_iter()
            .map(|webhook| view! { <WebhookRow webhook asked /> })
            .collect_view()
    };
    view! {
        <section>
            <h2 class="text-lg font-bold mb-2">"Webhooks"</h2>
            <p class="text-sm opacity-80 mb-2">"Every alert that fires or resolves is posted there in Alertmanager's format, signed as Standard Webhooks asks."</p>
            <ul class="grid gap-1">{move || loaded(webhooks.get(), list)}</ul>
            <form class="flex flex-wrap gap-2 mt-2" on:submit=create>
                <input class="input flex-1" type="url" name="webhook" placeholder="https://…" aria-label="address" required bind:value=url />
                <button class="btn" type="submit">"Add"</button>
            </form>
            <p aria-live="polite">{move || said.get()}</p>
        </section>
    }
}

#[component]
fn WebhookRow(webhook: WebhookView, asked: RwSignal<u32>) -> impl IntoView {
    let who = expect_context::<Who>();
    let id = webhook.id.clone();
    let remove = move |_| {
        let path = format!("/api/webhooks/{id}");
        spawn_local(async move {
            if api::delete(&path, &who.csrf()).await.is_ok() {
                asked.update(|n| *n += 1);
            }
        });
    };
    let state = match (&webhook.last_error, webhook.delivered_ms) {
        (Some(error), _) => format!("{} waiting; {error}", webhook.pending),
        (None, Some(at_ms)) => format!("last delivered {}", ago(at_ms)),
        (None, None) => "nothing sent yet".to_owned(),
    };
    view! {
        <li class="flex gap-2 items-center">
            <code>{webhook.url}</code> <span class="text-sm opacity-70">{state}</span>
            <button class="btn btn-ghost btn-xs" on:click=remove>"Remove"</button>
        </li>
    }
}
