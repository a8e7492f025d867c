//! The rules in force, alerts of late, and who is told.

mod alerts;
mod polled;
mod rule;
mod webhooks;

use domain::api::session::Role;
use leptos::prelude::*;

use crate::session::Who;
use crate::ui::{Title, When};
use alerts::Alerts;
use rule::Rules;
use webhooks::Webhooks;

/// The page.
#[component]
pub(crate) fn RulesPage() -> impl IntoView {
    let who = expect_context::<Who>();
    view! {
        <Title of="Rules and alerts" />
        <h1 class="sr-only">"Rules and alerts"</h1>
        <div class="grid grid-cols-1 gap-8">
            <Alerts />
            <Rules />
            <When on=move || who.may(Role::Admin)><Webhooks /></When>
        </div>
    }
}
