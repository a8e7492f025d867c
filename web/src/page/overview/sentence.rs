//! One sentence: how many runs need attention, the summary of the worst diagnosis, and the next step.

use domain::api::alerts::Diagnosis;
use domain::event::Severity;
use leptos::prelude::*;

use super::next_action::NextAction;
use crate::language::{tr, tr_with};
use crate::live::{Live, Row};
use crate::ui::{When, diagnosis_href, focus_when_shown, severity_word, text};

/// The data of the sentence.
#[derive(Debug, Clone, Default, PartialEq)]
struct StatusSummary {
    active_runs: usize,
    /// Active runs with a diagnosis of severity warning or higher.
    affected_runs: usize,
    diagnoses: usize,
    worst: Option<Worst>,
}

/// The first of the diagnoses.
#[derive(Debug, Clone, PartialEq)]
struct Worst {
    severity: Severity,
    summary: String,
    href: String,
}

/// The sentence; a screen reader announces changes.
#[component]
pub(super) fn Sentence() -> impl IntoView {
    let live = expect_context::<Live>();
    let known = move || live.runs.is_known() && live.diagnoses.is_known();
    let status = move || {
        let active: Vec<String> = live
            .runs
            .rows()
            .iter()
            .filter(|row| !row.get().state.is_final())
            .map(|row| row.key.clone())
            .collect();
        let diagnoses: Vec<Diagnosis> = live.diagnoses.rows().iter().map(Row::get).collect();
        known().then(|| StatusSummary::of(&active, &diagnoses))
    };
    let worst = move || status().and_then(|status| status.worst);
    let class = text(move || match status().map(|status| status.worst) {
        Some(Some(worst)) => severity_word(worst.severity).0,
        Some(None) => "state state-ok",
        None => "",
    });
    let words = text(move || status().map_or(tr("Loading…").to_owned(), |status| status.words()));
    let href = text(move || worst().map(|worst| worst.href).unwrap_or_default());
    let next = NextAction::of_worst();
    // The action of another diagnosis is never shown.
    let has_action = move || worst().is_some_and(|worst| worst.href == next.href.get());
    // The page of the diagnosis asks before it does anything.
    let go_to_action = move |_| focus_when_shown(format!("[data-action='{}']", next.id.get_untracked()));
    view! {
        <p class="flex flex-wrap gap-x-3 gap-y-1 items-center text-base sm:text-lg" data-testid="sentence">
            <span class=class style:white-space="normal" aria-live="polite">
                <span>{words}</span>
            </span>
            <a class="off-wall btn btn-sm" href=href hidden=move || worst().is_none()>{tr("Open")}</a>
            <When on=has_action>
                <a class="off-wall btn btn-primary btn-sm h-auto min-h-(--row) max-w-full" href=href lang="en" on:click=go_to_action data-testid="next-action">{next.title} "…"</a>
            </When>
        </p>
    }
}

impl StatusSummary {
    fn of(active: &[String], diagnoses: &[Diagnosis]) -> Self {
        let mut affected: Vec<&str> = Vec::new();
        for diagnosis in diagnoses {
            let run = diagnosis.alert.labels.get("run").unwrap_or_default();
            let is_new = !affected.contains(&run) && active.iter().any(|active| active == run);
            if is_new && diagnosis.alert.severity >= Severity::Warning {
                affected.push(run);
            }
        }
        Self {
            active_runs: active.len(),
            affected_runs: affected.len(),
            diagnoses: diagnoses.len(),
            worst: diagnoses.first().map(|worst| Worst {
                severity: worst.alert.severity,
                summary: worst.summary.trim().to_owned(),
                href: diagnosis_href(worst),
            }),
        }
    }

    fn words(&self) -> String {
        let Some(worst) = &self.worst else {
            return match self.active_runs {
                0 => tr("No problems found. No runs are active.").to_owned(),
                1 => tr("No problems found. 1 run is active.").to_owned(),
                many => tr_with("No problems found. {count} runs are active.", &[("count", &many)]),
            };
        };
        let count = match (self.affected_runs, self.active_runs, self.diagnoses) {
            (0, _, 1) => tr("1 diagnosis.").to_owned(),
            (0, _, many) => tr_with("{count} diagnoses.", &[("count", &many)]),
            (1, 1, _) => tr("The active run needs attention.").to_owned(),
            (1, of, _) => tr_with("1 of {all} runs needs attention.", &[("all", &of)]),
            (many, of, _) => tr_with(
                "{count} of {all} runs need attention.",
                &[("count", &many), ("all", &of)],
            ),
        };
        let end = if worst.summary.ends_with(['.', '!', '?']) {
            ""
        } else {
            "."
        };
        format!("{count} {}{end}", worst.summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(affected_runs: usize, active_runs: usize, summary: Option<&str>) -> StatusSummary {
        StatusSummary {
            active_runs,
            affected_runs,
            diagnoses: usize::from(summary.is_some()),
            worst: summary.map(|summary| Worst {
                severity: Severity::Warning,
                summary: summary.to_owned(),
                href: String::new(),
            }),
        }
    }

    #[test]
    fn the_sentence_says_how_many_and_who() {
        for (status, expected) in [
            (status(0, 0, None), "No problems found. No runs are active."),
            (status(0, 6, None), "No problems found. 6 runs are active."),
            (
                status(1, 1, Some("rank 3 is late")),
                "The active run needs attention. rank 3 is late.",
            ),
            (
                status(1, 6, Some("rank 3 is late.")),
                "1 of 6 runs needs attention. rank 3 is late.",
            ),
            (
                status(2, 6, Some("rank 3 is late")),
                "2 of 6 runs need attention. rank 3 is late.",
            ),
            (status(0, 6, Some("disk is full")), "1 diagnosis. disk is full."),
        ] {
            assert_eq!(status.words(), expected);
        }
    }
}
