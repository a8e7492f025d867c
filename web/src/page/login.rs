//! Logging in with an API token.

use domain::api::session::{Login as LoginRequest, Session};
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api;
use crate::app::Who;

/// Asks for a token and opens a session.
#[component]
pub(crate) fn Login() -> impl IntoView {
    let who = expect_context::<Who>();
    let token = RwSignal::new(String::new());
    let error = RwSignal::new(None::<String>);
    let busy = RwSignal::new(false);
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        busy.set(true);
        error.set(None);
        spawn_local(async move {
            let request = LoginRequest {
                token: token.get_untracked().trim().to_owned(),
            };
            match api::post::<Session>("/api/session", "", &request).await {
                Ok(session) => who.0.set(Some(session)),
                Err(refused) => error.set(Some(refused.message)),
            }
            busy.set(false);
        });
    };
    view! {
        <main class="min-h-screen grid place-items-center p-4">
            <form class="card bg-base-200 w-full max-w-md" on:submit=submit>
                <div class="card-body gap-3">
                    <h1 class="card-title text-2xl">"Lockstep"</h1>
                    <p>"Log in with a token. The collector printed one at its first start and keeps it in its data folder as "
                        <code>"admin.token"</code>"."</p>
                    <label class="fieldset">
                        <span class="label">"Token"</span>
                        <input class="input w-full" type="password" name="token" autocomplete="current-password" required autofocus
                            bind:value=token />
                    </label>
                    <Show when=move || error.with(Option::is_some)>
                        <p class="alert alert-error" role="alert">{move || error.get()}</p>
                    </Show>
                    <button class="btn btn-primary" type="submit" disabled=move || busy.get()>"Log in"</button>
                </div>
            </form>
        </main>
    }
}
