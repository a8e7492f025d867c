//! The one sentence: how many runs need somebody, and the worst diagnosis in the words of the server.

use domain::api::alerts::Diagnosis;
use domain::event::Severity;
use leptos::prelude::*;

use crate::live::{Live, Row};
use crate::ui::{diagnosis_href, severity_word, text};

/// What the sentence is made of.
#[derive(Debug, Clone, Default, PartialEq)]
struct Standing {
    active_runs: usize,
    /// Active runs that a diagnosis of warning or worse names.
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

/// The sentence, read out when it changes.
#[component]
pub(super) fn Sentence() -> impl IntoView {
    let live = expect_context::<Live>();
    let known = move || live.runs.is_known() && live.diagnoses.is_known();
    let standing = move || {
        let active: Vec<String> = live
            .runs
            .rows()
            .iter()
            .filter(|row| !row.get().state.is_final())
            .map(|row| row.key.clone())
            .collect();
        let diagnoses: Vec<Diagnosis> = live.diagnoses.rows().iter().map(Row::get).collect();
        known().then(|| Standing::of(&active, &diagnoses))
    };
    let worst = move || standing().and_then(|standing| standing.worst);
    let class = text(move || match standing().map(|standing| standing.worst) {
        Some(Some(worst)) => severity_word(worst.severity).0,
        Some(None) => "state state-ok",
        None => "",
    });
    let words = text(move || standing().map_or("Loading…".to_owned(), |standing| standing.words()));
    let href = text(move || worst().map(|worst| worst.href).unwrap_or_default());
    view! {
        <p class="flex flex-wrap gap-x-3 gap-y-1 items-center text-base sm:text-lg" data-testid="sentence">
            <span class=class style:white-space="normal" aria-live="polite">
                <span>{words}</span>
            </span>
            <a class="off-wall btn btn-sm" href=href hidden=move || worst().is_none()>"Open"</a>
        </p>
    }
}

impl Standing {
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
                0 => "Nothing is wrong that a rule knows of. No run is active.".to_owned(),
                1 => "Nothing is wrong that a rule knows of. 1 run is active.".to_owned(),
                many => format!("Nothing is wrong that a rule knows of. {many} runs are active."),
            };
        };
        let count = match (self.affected_runs, self.active_runs, self.diagnoses) {
            (0, _, 1) => "1 diagnosis.".to_owned(),
            (0, _, many) => format!("{many} diagnoses."),
            (1, 1, _) => "The active run needs you.".to_owned(),
            (1, of, _) => format!("1 of {of} runs needs you."),
            (many, of, _) => format!("{many} of {of} runs need you."),
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

    fn standing(affected_runs: usize, active_runs: usize, summary: Option<&str>) -> Standing {
        Standing {
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
        for (standing, expected) in [
            (
                standing(0, 0, None),
                "Nothing is wrong that a rule knows of. No run is active.",
            ),
            (
                standing(0, 6, None),
                "Nothing is wrong that a rule knows of. 6 runs are active.",
            ),
            (
                standing(1, 1, Some("rank 3 is late")),
                "The active run needs you. rank 3 is late.",
            ),
            (
                standing(1, 6, Some("rank 3 is late.")),
                "1 of 6 runs needs you. rank 3 is late.",
            ),
            (
                standing(2, 6, Some("rank 3 is late")),
                "2 of 6 runs need you. rank 3 is late.",
            ),
            (standing(0, 6, Some("disk is full")), "1 diagnosis. disk is full."),
        ] {
            assert_eq!(standing.words(), expected);
        }
    }
}
