//! The loaded rules and recent alerts. For admins, also the webhooks and the audit log.

mod alerts;
mod audit;
mod audit_lines;
mod filter;
mod table;
mod webhooks;

use domain::api::alerts::AlertView;
use domain::api::session::Role;
use leptos::prelude::*;

use super::polled::Polled;
use crate::language::tr;
use crate::session::UserSession;
use crate::ui::{Title, When};
use alerts::Alerts;
use audit::AuditLog;
use table::Rules;
use webhooks::Webhooks;

/// The page of rules and alerts.
#[component]
pub(crate) fn RulesPage() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let alerts = Polled::<AlertView>::of("/api/alerts?resolved=50");
    view! {
        <Title of=tr("Rules") />
        <h1 class="sr-only">{tr("Rules")}</h1>
        <div class="grid grid-cols-1 gap-6">
            <Rules />
            <Alerts alerts />
            <When on=move || session.may(Role::Admin)>
                <Webhooks />
                <AuditLog />
            </When>
        </div>
    }
}
