//! The webhooks that receive notifications. For admins.

use domain::api::alerts::{CreateWebhook, NewWebhook, WebhookView};
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::language::{tr, tr_parts, tr_with};
use crate::live::{Row, each};
use crate::page::polled::{Absence, Polled};
use crate::session::UserSession;
use crate::ui::{Ago, ErrorMessage, Heading, PendingRequest, dynamic_view, empty_view};

/// The list, and a form to add one.
#[component]
pub(super) fn Webhooks() -> impl IntoView {
    let webhooks = Polled::<WebhookView>::of("/api/webhooks");
    view! {
        <section class="min-w-0">
            <Heading text=tr("Webhooks") hint=tr("Firing and resolved alerts are posted in Alertmanager's format, signed according to Standard Webhooks.") />
            <Absence of=webhooks empty=tr("No webhooks configured.") />
            <ul class="grid grid-cols-1 gap-1">
                {each(move || webhooks.list.rows(), move |row| view! { <Webhook row webhooks /> }.into_any())}
            </ul>
            <Add webhooks />
        </section>
    }
}

#[component]
fn Add(webhooks: Polled<WebhookView>) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let url = RwSignal::new(String::new());
    let said = RwSignal::new(None::<Result<String, String>>);
    let busy = RwSignal::new(false);
    let create = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let body = CreateWebhook {
            url: url.get_untracked(),
            secret: None,
        };
        busy.set(true);
        spawn_local(async move {
            let answer = session.post::<NewWebhook>("/api/webhooks", &body).await;
            // The user may have left the page.
            if busy.try_set(false).is_some() {
                return;
            }
            let answer = answer.map(|made| made.secret).map_err(|error| {
                let field = error.fields.into_iter().next();
                field.map_or(error.message, |field| field.message)
            });
            if answer.is_ok() {
                url.set(String::new());
                webhooks.again();
            }
            said.set(Some(answer));
        });
    };
    let answer = dynamic_view(move || {
        said.get().map_or_else(empty_view, |answer| match answer {
            Ok(secret) => view! { <p class="alert alert-success mt-2 break-all">{tr("Added. Signing secret, shown only once: ")} <code>{secret}</code></p> }.into_any(),
            Err(message) => view! { <p class="alert alert-error mt-2">{message}</p> }.into_any(),
        })
    });
    view! {
        <form class="flex flex-wrap gap-2 mt-2" on:submit=create>
            <input class="input grow" type="url" name="webhook" placeholder="https://…" aria-label=tr("URL of the new webhook") required bind:value=url />
            <button class="btn" type="submit" disabled=busy>{tr("Add")}</button>
        </form>
        <div aria-live="polite">{answer}</div>
    }
}

#[component]
fn Webhook(row: Row<WebhookView>, webhooks: Polled<WebhookView>) -> impl IntoView {
    let request = PendingRequest::new();
    let webhook = row.signal();
    let path = format!("/api/webhooks/{}", row.key);
    let remove = move |_| request.delete(path.clone(), move || webhooks.again());
    let state = dynamic_view(move || {
        webhook.with(|webhook| match (&webhook.last_error, webhook.delivered_ms) {
            (Some(error), _) => tr_with(
                "{count} waiting; {error}",
                &[("count", &webhook.pending), ("error", error)],
            )
            .into_any(),
            (None, Some(at_ms)) => {
                let [delivered, ago] = tr_parts("last delivered {time}");
                view! { {delivered} <Ago at_ms /> {ago} }.into_any()
            }
            (None, None) => tr("nothing sent yet").into_any(),
        })
    });
    view! {
        <li class="flex flex-wrap gap-2 items-center">
            <code class="break-all">{row.peek(|webhook| webhook.url.clone())}</code>
            <span class="text-sm text-muted">{state}</span>
            <button class="btn btn-ghost btn-xs" disabled=request.busy on:click=remove>{tr("Remove")}</button>
            <ErrorMessage what=request.problem />
        </li>
    }
}
