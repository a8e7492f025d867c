//! The rules in force, alerts of late, and who is told.

mod alerts;
mod filter;
mod polled;
mod table;
mod webhooks;

use domain::api::alerts::AlertView;
use domain::api::session::Role;
use leptos::prelude::*;

use crate::session::Who;
use crate::ui::{Title, When};
use alerts::Alerts;
use polled::Polled;
use table::Rules;
use webhooks::Webhooks;

/// The page.
#[component]
pub(crate) fn RulesPage() -> impl IntoView {
    let who = expect_context::<Who>();
    let alerts = Polled::<AlertView>::of("/api/alerts?resolved=50");
    view! {
        <Title of="Rules" />
        <h1 class="sr-only">"Rules"</h1>
        <div class="grid grid-cols-1 gap-6">
            <Rules alerts />
            <Alerts alerts />
            <When on=move || who.may(Role::Admin)><Webhooks /></When>
        </div>
    }
}
