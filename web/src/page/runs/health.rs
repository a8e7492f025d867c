//! The health of each run: its worst open diagnosis, its step and its step time.

use std::collections::BTreeMap;

use domain::event::Severity;
use domain::metric::Unit;
use leptos::prelude::*;

use crate::live::Live;
use crate::page::run_figures::{ByRun, STEP, STEP_TIME, figure, newest_by_run};
use crate::ui::{When, diagnosis_href, fixed, severity_word, show, text};

/// The health of all runs. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Health {
    diagnosed: Memo<BTreeMap<String, Diagnosed>>,
    step: RwSignal<ByRun>,
    step_time: RwSignal<ByRun>,
}

/// An open diagnosis of a run.
#[derive(Debug, Clone, PartialEq)]
struct Diagnosed {
    severity: Severity,
    summary: String,
    href: String,
}

impl Health {
    /// Follows the health of all runs until the current owner is cleaned up.
    pub(super) fn of() -> Self {
        let diagnoses = expect_context::<Live>().diagnoses;
        Self {
            diagnosed: Memo::new(move |_| {
                let rows = diagnoses.rows().into_iter();
                worst(rows.filter_map(|row| {
                    let diagnosis = row.get();
                    let href = diagnosis_href(&diagnosis);
                    let shown = Diagnosed {
                        severity: diagnosis.alert.severity,
                        summary: diagnosis.summary,
                        href,
                    };
                    Some((diagnosis.run?, shown))
                }))
            }),
            step: newest_by_run(STEP),
            step_time: newest_by_run(STEP_TIME),
        }
    }

    /// Returns the step of a run as text.
    pub(super) fn step(self, id: StoredValue<String>) -> Signal<String> {
        figure(id, self.step, |step| fixed(step, 0))
    }

    /// Returns the step time of a run as text.
    pub(super) fn step_time(self, id: StoredValue<String>) -> Signal<String> {
        figure(id, self.step_time, |time| show(time, Unit::Seconds))
    }

    /// Renders the worst open diagnosis of a run, with a link to it; nothing if there is none.
    pub(super) fn mark(self, id: StoredValue<String>) -> AnyView {
        let found = Memo::new(move |_| {
            self.diagnosed
                .with(|diagnosed| id.with_value(|id| diagnosed.get(id).cloned()))
        });
        // The link is kept while its text changes, because it may have the focus.
        let of = move |say: fn(&Diagnosed) -> String| {
            text(move || found.with(|found| found.as_ref().map(say).unwrap_or_default()))
        };
        let (href, summary) = (of(|found| found.href.clone()), of(|found| found.summary.clone()));
        let class = of(|found| severity_word(found.severity).0.to_owned());
        let word = of(|found| severity_word(found.severity).1.to_owned());
        view! {
            <When on=move || found.with(Option::is_some)>
                <a class="link flex gap-1 items-center min-h-(--row) text-xs" href=href title=summary data-testid="run-diagnosis">
                    <span class=class><span class="sr-only">{word}</span></span>
                    <span class="truncate" lang="en">{summary}</span>
                </a>
            </When>
        }
        .into_any()
    }
}

/// Returns the first diagnosis of each run: the list has the worst first.
fn worst(all: impl Iterator<Item = (String, Diagnosed)>) -> BTreeMap<String, Diagnosed> {
    let mut by_run = BTreeMap::new();
    for (run, diagnosed) in all {
        by_run.entry(run).or_insert(diagnosed);
    }
    by_run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_worst_diagnosis() {
        let diagnosed = |run: &str, severity, summary: &str| {
            let diagnosed = Diagnosed {
                severity,
                summary: summary.to_owned(),
                href: format!("/diagnoses/{summary}"),
            };
            (run.to_owned(), diagnosed)
        };
        // The order of the collector.
        let all = [
            diagnosed("a", Severity::Critical, "stuck"),
            diagnosed("b", Severity::Warning, "slow"),
            diagnosed("a", Severity::Info, "partly unseen"),
        ];
        let worst = worst(all.into_iter());
        let shown: Vec<(&str, &str)> = worst
            .iter()
            .map(|(run, found)| (run.as_str(), found.summary.as_str()))
            .collect();
        assert_eq!(shown, [("a", "stuck"), ("b", "slow")]);
    }
}
