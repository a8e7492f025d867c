//! What of the newest attempt could not be seen from inside its processes: where a chart is empty, this says why.

use domain::run::unseen::UnseenLine;
use leptos::prelude::*;

use super::known::Known;
use crate::ui::{Heading, When, changing};

/// Nothing where nothing is hidden.
#[component]
pub(super) fn NotSeen(
    /// The run.
    run: Known,
) -> impl IntoView {
    let lines = lines(run);
    view! {
        <When on=move || !lines.read().is_empty()>
            <section class="min-w-0" data-testid="unseen">
                <Heading text="What could not be seen" hint="Nothing is wrong with the run: its script does these things in a way that cannot be watched from inside without changing it." />
                <ul class="card bg-base-200 border-l-4 border-info p-3 grid gap-1">
                    {changing(move || lines.get().iter().map(line).collect::<Vec<AnyView>>().into_any())}
                </ul>
            </section>
        </When>
    }
}

/// The newest attempt's; followed.
pub(super) fn lines(run: Known) -> Memo<Vec<UnseenLine>> {
    Memo::new(move |_| {
        run.with(|run| {
            let attempt = run.as_ref().and_then(|run| run.more.attempts.last());
            attempt.map(|attempt| attempt.unseen.clone()).unwrap_or_default()
        })
    })
}

fn line(line: &UnseenLine) -> AnyView {
    view! { <li class="break-words">{line.sentence()}</li> }.into_any()
}
