//! All diagnoses: those that fire now, worst first, and those that have ended; and the silences.

mod ended;
mod row;
mod silence_text;
mod silences;

use domain::api::alerts::Diagnosis;
use leptos::prelude::*;

use crate::language::tr;
use crate::live::{Live, Row, each};
use crate::route::Route;
use crate::ui::{ErrorMessage, Heading, Title, When};
use ended::Ended;
use silences::Silences;

/// The page of all diagnoses.
#[component]
pub(crate) fn DiagnosesPage() -> impl IntoView {
    let route = expect_context::<Route>();
    let firing = expect_context::<Live>().diagnoses;
    let ended = Ended::of();
    let wanted = route.param("q");
    let filter = move |event| {
        let words = event_target_value(&event);
        route.set_param("q", Some(words.as_str()).filter(|words| !words.is_empty()));
    };
    let matching = move |rows: Vec<Row<Diagnosis>>| {
        let wanted = wanted.get().unwrap_or_default().to_lowercase();
        let is_wanted = |row: &Row<Diagnosis>| row.peek(|diagnosis| row::matches(diagnosis, &wanted));
        rows.into_iter().filter(is_wanted).collect::<Vec<_>>()
    };
    let now = move || matching(firing.rows());
    let before = move || matching(ended.list.rows());
    let none_of = move |total: usize, shown: usize| total > 0 && shown == 0;
    view! {
        <Title of=tr("Diagnoses") />
        <h1 class="sr-only">{tr("Diagnoses")}</h1>
        <div class="grid grid-cols-1 gap-6">
            <label class="flex gap-2 items-center text-sm max-w-xl">{tr("Filter")}
                <input class="input input-sm grow" type="search" name="q" placeholder=tr("rule, run, node or text") prop:value=move || wanted.get().unwrap_or_default() on:input=filter />
            </label>
            <section class="min-w-0">
                <Heading text=tr("Now") hint=tr("Problems with culprit and start time, worst first. Open one for its evidence and actions.") />
                <When on=move || !firing.is_known()><p class="opacity-70">{tr("Loading…")}</p></When>
                <When on=move || firing.is_empty()><p class="opacity-70" data-testid="nothing-wrong">{tr("No active diagnoses.")}</p></When>
                <When on=move || none_of(firing.rows().len(), now().len())><p class="opacity-70">{tr("No diagnosis matches.")}</p></When>
                <ul class="grid grid-cols-1 gap-2" data-testid="firing">{each(now, |one| row::row(&one))}</ul>
            </section>
            <Silences />
            <section class="min-w-0">
                <Heading text=tr("Ended") hint=tr("Newest first.") />
                <ErrorMessage what=ended.problem />
                <When on=move || ended.list.is_empty()><p class="opacity-70">{tr("No ended diagnoses.")}</p></When>
                <When on=move || none_of(ended.list.rows().len(), before().len())><p class="opacity-70">{tr("No diagnosis matches.")}</p></When>
                <ul class="grid grid-cols-1 gap-2" data-testid="ended">{each(before, |one| row::row(&one))}</ul>
            </section>
        </div>
    }
}
