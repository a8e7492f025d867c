//! One sentence: how many runs need attention, the summary of the worst diagnosis, and the next step. Without a diagnosis: the runs that
//! failed lately or are lost.

use domain::api::alerts::Diagnosis;
use domain::api::runs::RunSummary;
use domain::event::Severity;
use domain::run::state::RunState;
use domain::time::TimestampMs;
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::live::{Live, Row};
use crate::ui::{diagnosis_href, english, next_action, severity_word, text};

/// How long the sentence counts a failed run. Its diagnosis ends after one hour, when people may be away.
const FAILED_SHOWN_MS: i64 = 12 * 3_600_000;
/// The table with these runs.
const FAILED_OR_LOST: &str = "/runs?state=failed,lost";

/// The data of the sentence.
#[derive(Debug, Clone, Default, PartialEq)]
struct StatusSummary {
    active_runs: usize,
    /// Active runs with a diagnosis of severity warning or higher.
    affected_runs: usize,
    diagnoses: usize,
    /// Runs that failed lately or are lost.
    failed_or_lost: usize,
    worst: Option<Worst>,
}

/// The first of the diagnoses.
#[derive(Debug, Clone, PartialEq)]
struct Worst {
    severity: Severity,
    /// With a full stop.
    summary: String,
    href: String,
}

/// The sentence; a screen reader announces changes.
#[component]
pub(super) fn Sentence() -> impl IntoView {
    let live = expect_context::<Live>();
    let known = move || live.runs.is_known() && live.diagnoses.is_known();
    let minute = Memo::new(move |_| live.now_ms.get() / 60_000);
    let status = move || {
        let active: Vec<String> = live
            .runs
            .rows()
            .iter()
            .filter(|row| !row.get().state.is_final())
            .map(|row| row.key.clone())
            .collect();
        let diagnoses: Vec<Diagnosis> = live.diagnoses.rows().iter().map(Row::get).collect();
        let since_ms = minute.get() * 60_000 - FAILED_SHOWN_MS;
        known().then(|| StatusSummary {
            failed_or_lost: live.runs.count(|run| has_failed_or_is_lost(run, since_ms)),
            ..StatusSummary::of(&active, &diagnoses)
        })
    };
    let worst = move || status().and_then(|status| status.worst);
    let class = text(move || status().map_or("", |status| status.class()));
    let count = text(move || status().map_or(tr("Loading…").to_owned(), |status| status.count()));
    let summary = text(move || worst().map(|worst| worst.summary).unwrap_or_default());
    let href = text(move || status().map(StatusSummary::href).unwrap_or_default());
    view! {
        <p class="flex flex-wrap gap-x-3 gap-y-1 items-center text-base sm:text-lg" data-testid="sentence">
            <span class=class style:white-space="normal" aria-live="polite">
                <span>{count} " " {english(summary)}</span>
            </span>
            <a class="off-wall btn btn-sm" href=href hidden=move || href.with(String::is_empty)>{tr("Open")}</a>
            {next_action(None)}
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
            failed_or_lost: 0,
            worst: diagnoses.first().map(|worst| Worst {
                severity: worst.alert.severity,
                summary: with_full_stop(worst.summary.trim()),
                href: diagnosis_href(worst),
            }),
        }
    }

    fn class(&self) -> &'static str {
        match &self.worst {
            Some(worst) => severity_word(worst.severity).0,
            None if self.failed_or_lost > 0 => "state state-warning",
            None => "state state-ok",
        }
    }

    /// Returns the address of what the sentence names; empty if it names nothing.
    fn href(self) -> String {
        let runs = if self.failed_or_lost > 0 {
            FAILED_OR_LOST
        } else {
            ""
        };
        self.worst.map_or_else(|| runs.to_owned(), |worst| worst.href)
    }

    /// Says how many runs need attention.
    fn count(&self) -> String {
        if self.worst.is_none() {
            return match self.active_runs {
                _ if self.failed_or_lost > 0 => tr_with(
                    "No open diagnoses. Runs that failed in the last 12 hours or are lost: {count}.",
                    &[("count", &self.failed_or_lost)],
                ),
                0 => tr("No problems found. No runs are active.").to_owned(),
                1 => tr("No problems found. 1 run is active.").to_owned(),
                many => tr_with("No problems found. {count} runs are active.", &[("count", &many)]),
            };
        }
        match (self.affected_runs, self.active_runs, self.diagnoses) {
            (0, _, 1) => tr("1 diagnosis.").to_owned(),
            (0, _, many) => tr_with("{count} diagnoses.", &[("count", &many)]),
            (1, 1, _) => tr("The active run needs attention.").to_owned(),
            (1, of, _) => tr_with("1 of {all} runs needs attention.", &[("all", &of)]),
            (many, of, _) => tr_with(
                "{count} of {all} runs need attention.",
                &[("count", &many), ("all", &of)],
            ),
        }
    }
}

/// Returns true if the run is lost, or has failed at this time or later.
fn has_failed_or_is_lost(run: &RunSummary, since_ms: TimestampMs) -> bool {
    match run.state {
        RunState::Lost => true,
        RunState::Failed => run.ended_ms.is_some_and(|ended_ms| ended_ms >= since_ms),
        _ => false,
    }
}

fn with_full_stop(sentence: &str) -> String {
    let end = if sentence.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{sentence}{end}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use domain::ident::AttemptNo;

    use super::*;

    #[test]
    fn the_sentence_says_how_many() {
        for (affected_runs, active_runs, has_worst, expected) in [
            (0, 0, false, "No problems found. No runs are active."),
            (0, 6, false, "No problems found. 6 runs are active."),
            (1, 1, true, "The active run needs attention."),
            (1, 6, true, "1 of 6 runs needs attention."),
            (2, 6, true, "2 of 6 runs need attention."),
            (0, 6, true, "1 diagnosis."),
        ] {
            let status = StatusSummary {
                active_runs,
                affected_runs,
                diagnoses: usize::from(has_worst),
                failed_or_lost: 0,
                worst: has_worst.then(|| Worst {
                    severity: Severity::Warning,
                    summary: "rank 3 is late.".to_owned(),
                    href: String::new(),
                }),
            };
            assert_eq!(status.count(), expected);
        }
    }

    #[test]
    fn without_a_diagnosis_failed_and_lost_runs_are_named() {
        for (failed_or_lost, class, href, expected) in [
            (0, "state state-ok", "", "No problems found. 2 runs are active."),
            (
                3,
                "state state-warning",
                FAILED_OR_LOST,
                "No open diagnoses. Runs that failed in the last 12 hours or are lost: 3.",
            ),
        ] {
            let status = StatusSummary {
                active_runs: 2,
                failed_or_lost,
                ..StatusSummary::default()
            };
            assert_eq!((status.class(), status.count().as_str()), (class, expected));
            assert_eq!(status.href(), href);
        }
    }

    #[test]
    fn a_run_that_failed_long_ago_is_not_named() {
        let run = |state, ended_ms| RunSummary {
            id: "ddp-1".to_owned(),
            name: "ddp".to_owned(),
            program: "ddp".to_owned(),
            state,
            outcome: None,
            attempt: AttemptNo(1),
            nodes: vec![],
            world_size: 2,
            owner: None,
            labels: BTreeMap::new(),
            submitted_ms: 0,
            started_ms: None,
            ended_ms,
        };
        for (state, ended_ms, expected) in [
            (RunState::Failed, Some(100), true),
            (RunState::Failed, Some(99), false),
            (RunState::Failed, None, false),
            (RunState::Stopped, Some(100), false),
            (RunState::Lost, None, true),
        ] {
            assert_eq!(has_failed_or_is_lost(&run(state, ended_ms), 100), expected);
        }
    }

    #[test]
    fn the_summary_ends_with_a_full_stop() {
        for (summary, expected) in [
            ("rank 3 is late", "rank 3 is late."),
            ("rank 3 is late.", "rank 3 is late."),
            ("is the disk full?", "is the disk full?"),
        ] {
            assert_eq!(with_full_stop(summary), expected);
        }
    }
}
