//! The log-in page.

use leptos::html::Input;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::language::{tr, tr_parts};
use crate::session::UserSession;
use crate::ui::{ErrorMessage, LanguageChoice, Title, effect, text};

/// Reads a token from the user and opens a session.
#[component]
pub(crate) fn Login() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let token = RwSignal::new(String::new());
    let error = RwSignal::new(None::<String>);
    let busy = RwSignal::new(false);
    let field = NodeRef::<Input>::new();
    effect(move || {
        if let Some(field) = field.get() {
            // Fails only for a removed element.
            let _gone = field.focus();
        }
    });
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        busy.set(true);
        error.set(None);
        spawn_local(async move {
            if let Err(refused) = session.log_in(&token.get_untracked()).await {
                error.set(Some(refused.message));
                busy.set(false);
            }
        });
    };
    let [log_in, file, command] = tr_parts(
        "Log in with a token. The collector printed the admin token at its first start and keeps it in its data folder as {file}; {command} creates others.",
    );
    view! {
        <Title of=tr("Log in") />
        <main class="min-h-screen grid place-items-center p-4">
            <form class="card bg-base-200 w-full max-w-md" method="post" on:submit=submit>
                <div class="card-body gap-3">
                    <h1 class="card-title text-2xl">"Lockstep"</h1>
                    <p>{log_in} <code>"admin.token"</code> {file} <code>"lockstep token create"</code> {command}</p>
                    // Password managers store a token under a user name.
                    <input type="text" name="username" value="lockstep" autocomplete="username" readonly hidden />
                    <label class="fieldset">
                        <span class="label">{tr("Token")}</span>
                        <input
                            class="input w-full"
                            type="password"
                            name="token"
                            autocomplete="current-password"
                            required
                            node_ref=field
                            aria-invalid=text(move || error.with(Option::is_some).to_string())
                            bind:value=token
                        />
                    </label>
                    <ErrorMessage what=error />
                    <button class="btn btn-primary" type="submit" disabled=move || busy.get()>
                        {text(move || if busy.get() { tr("Logging in…") } else { tr("Log in") })}
                    </button>
                    <LanguageChoice class="btn btn-ghost btn-sm self-center" />
                </div>
            </form>
        </main>
    }
}
