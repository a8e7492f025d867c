//! What the probe could not observe in the newest attempt: this explains why a chart is empty.

use domain::run::unobserved::UnobservedLine;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use crate::language::tr;
use crate::ui::{Heading, When, dynamic_view};

/// The section; nothing if everything was observed.
#[component]
pub(super) fn Unobserved(
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let lines = lines(run);
    view! {
        <When on=move || !lines.read().is_empty()>
            <section class="min-w-0" data-testid="unseen">
                <Heading text=tr("What cannot be observed") hint=tr("Not a problem of the run: its script does these things in a way that cannot be observed without changing it.") />
                <ul class="card bg-base-200 border-l-4 border-info p-3 grid gap-1">
                    {dynamic_view(move || lines.get().iter().map(line).collect::<Vec<AnyView>>().into_any())}
                </ul>
            </section>
        </When>
    }
}

/// Returns the lines of the newest attempt; tracked.
pub(super) fn lines(run: RunSignal) -> Memo<Vec<UnobservedLine>> {
    Memo::new(move |_| {
        run.with(|run| {
            let attempt = run.as_ref().and_then(|run| run.more.attempts.last());
            attempt.map(|attempt| attempt.unseen.clone()).unwrap_or_default()
        })
    })
}

fn line(line: &UnobservedLine) -> AnyView {
    view! { <li class="break-words">{line.sentence()}</li> }.into_any()
}
