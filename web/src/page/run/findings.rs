//! Findings of the analysers: which rank slows the run down, in which phase and why, with the evidence.

use domain::event::Severity;
use domain::run::state::RunState;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use super::run_signal::RunSignal;
use crate::language::{tr, tr_parts, tr_with};
use crate::live::Live;
use crate::session::UserSession;
use crate::ui::{
    Ago, AnswerOrder, Heading, count_every, dynamic_view, effect, fixed, severity_class, severity_word, track,
};

/// Interval between requests. The analysers decide once per second.
const AGAIN_MS: u32 = 2_000;

/// The fields of [`RunFindings`](domain::api::findings::RunFindings) that are read.
#[derive(Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
struct Answer {
    over_since_ms: Option<i64>,
    findings: Vec<Found>,
}

/// The fields of a [`FindingView`](domain::api::findings::FindingView) that are shown.
#[derive(Clone, PartialEq, Deserialize)]
struct Found {
    sentence: String,
    evidence: Vec<String>,
    severity: Severity,
    since_ms: i64,
    since_step: Option<u64>,
    lost_seconds: f64,
    #[serde(default)]
    is_symptom: bool,
}

/// The section; nothing if there are no findings.
#[component]
pub(super) fn Findings(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let found = found(&id, run);
    dynamic_view(move || {
        let found = found.get();
        if found.findings.is_empty() {
            return ().into_any();
        }
        let hint = if found.over_since_ms.is_some() {
            tr("The last findings before the attempt ended.")
        } else {
            tr("Measured by the ranks, the kernel and the GPU drivers, and compared during the run.")
        };
        let cards: Vec<AnyView> = found.findings.iter().map(card).collect();
        view! {
            <section class="min-w-0" data-testid="findings">
                <Heading text=tr("What slows the run") hint=hint />
                <div class="grid gap-3">{cards}</div>
            </section>
        }
        .into_any()
    })
}

fn card(finding: &Found) -> AnyView {
    let since = finding
        .since_step
        .map(|step| tr_with(", step {step}", &[("step", &step)]))
        .unwrap_or_default();
    let [since_text, ago] = tr_parts("since {time}");
    let lost = (finding.lost_seconds >= 0.05).then(|| {
        let seconds = fixed(finding.lost_seconds, 1);
        tr_with("cost the run {seconds} s", &[("seconds", &seconds)])
    });
    let note = finding
        .is_symptom
        .then(|| tr("Another finding of this run explains it."));
    let witnesses: Vec<AnyView> = finding
        .evidence
        .iter()
        .cloned()
        .map(|witness| view! { <li class="break-words">{witness}</li> }.into_any())
        .collect();
    view! {
        <article class=format!("card bg-base-200 border-l-4 p-3 {}", severity_class(finding.severity)) data-testid="finding">
            <p class="flex flex-wrap gap-x-2 items-center text-sm">
                <span class=severity_word(finding.severity).0>{severity_word(finding.severity).1}</span>
                <span class="opacity-80">{since_text} <Ago at_ms=Signal::stored(finding.since_ms) /> {ago} {since}</span>
                <span class="opacity-80">{lost}</span>
            </p>
            <h3 class="font-bold mt-1 break-words" lang="en">{finding.sentence.clone()}</h3>
            <p class="text-sm empty:hidden">{note}</p>
            <p class="text-sm mt-1">{tr("Witnesses:")}</p>
            <ul class="text-sm list-disc ml-5" lang="en">{witnesses}</ul>
        </article>
    }
    .into_any()
}

/// Requests the findings while the page is open and the run can change.
fn found(id: &str, run: RunSignal) -> RwSignal<Answer> {
    let (found, request_count) = (RwSignal::new(Answer::default()), RwSignal::new(0_u32));
    let answers = AnswerOrder::new();
    let session = expect_context::<UserSession>();
    let live = expect_context::<Live>();
    let state = Memo::new(move |_| run.with(|run| run.as_ref().map(|run| run.summary.state)));
    let path = format!("/api/runs/{id}/findings");
    effect(move || {
        request_count.track();
        track(state);
        live.connected.track();
        let (path, number) = (path.clone(), answers.begin());
        spawn_local(async move {
            // Another part of the page shows when the collector does not respond.
            if let Ok(answer) = session.get::<Answer>(&path).await
                && answers.accept(number)
                && found.with_untracked(|shown| *shown != answer)
            {
                found.set(answer);
            }
        });
    });
    count_every(AGAIN_MS, request_count, move || {
        live.paused.get_untracked() || state.get_untracked().is_some_and(RunState::is_final)
    });
    found
}
