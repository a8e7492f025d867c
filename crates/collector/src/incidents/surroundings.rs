//! What happened before a diagnosis, and what was like it.

use domain::api::alerts::{AlertView, Diagnosis};
use domain::api::diagnoses::{ChangeBefore, SimilarDiagnosis};
use domain::event::Event;
use domain::incident::{DiagnosisId, Entry, EntryKind, handling};
use store::StateStore;
use store::state::StateError;
use store::state::audit::AuditEntry;
use store::state::events::EventFilter;
use store::state::incidents::Incident;

/// How long before a diagnosis a change may be its cause.
const BEFORE_MS: i64 = 3_600_000;
/// Changes shown; the newest are the likeliest causes.
const CHANGES_MAX: u32 = 30;
/// How far back like diagnoses are looked for.
const SIMILAR_MS: i64 = 30 * 24 * 3_600_000;
/// Like diagnoses shown.
const SIMILAR_MAX: u32 = 10;

/// Events and audited actions of the run and the node of a diagnosis in the hour before it, the newest first.
///
/// # Errors
/// When the store fails.
pub(crate) async fn changed_before(
    state: &StateStore,
    diagnosis: &Diagnosis,
) -> Result<Vec<ChangeBefore>, StateError> {
    let until_ms = diagnosis.alert.active_ms + 1;
    let since_ms = diagnosis.alert.active_ms - BEFORE_MS;
    let (run, node) = (diagnosis.run.clone(), diagnosis.who.node.clone());
    let within = EventFilter {
        since_ms: Some(since_ms),
        before_ms: Some(until_ms),
        ..EventFilter::default()
    };
    let mut events: Vec<Event> = Vec::new();
    if run.is_some() {
        let run = run.clone();
        events.extend(
            state
                .events(
                    &EventFilter {
                        run,
                        ..within.clone()
                    },
                    CHANGES_MAX,
                )
                .await?,
        );
    }
    if node.is_some() {
        let node = node.clone();
        let of_node = state.events(&EventFilter { node, ..within }, CHANGES_MAX).await?;
        for event in of_node {
            if !events.contains(&event) {
                events.push(event);
            }
        }
    }
    let targets: Vec<&str> = [&run, &node].into_iter().flatten().map(String::as_str).collect();
    let actions = state
        .audit_of(&targets, (since_ms, until_ms), CHANGES_MAX)
        .await?;
    let mut changes: Vec<ChangeBefore> = events.into_iter().map(of_event).collect();
    changes.extend(actions.into_iter().map(of_action));
    changes.sort_by_key(|change| std::cmp::Reverse(change.at_ms));
    changes.truncate(CHANGES_MAX as usize);
    Ok(changes)
}

fn of_event(event: Event) -> ChangeBefore {
    ChangeBefore {
        at_ms: event.at_ms,
        kind: event.kind,
        who: None,
        severity: Some(event.severity),
        node: event.node,
        text: event.message,
    }
}

/// `run_apply` and `demo-abc123 num_workers=4` become `run apply: demo-abc123 num_workers=4`.
fn of_action(entry: AuditEntry) -> ChangeBefore {
    ChangeBefore {
        at_ms: entry.at_ms,
        text: format!("{}: {}", entry.what.replace('_', " "), entry.target),
        kind: entry.what,
        who: Some(entry.who),
        severity: None,
        node: None,
    }
}

/// Diagnoses of the same rule in the 30 days before this one, the newest first.
///
/// # Errors
/// When the store fails.
pub(crate) async fn similar(
    state: &StateStore,
    alert: &AlertView,
) -> Result<Vec<SimilarDiagnosis>, StateError> {
    let since_ms = alert.active_ms - SIMILAR_MS;
    let own = DiagnosisId::of(alert);
    // One more than shown, because the diagnosis itself is among them.
    let incidents = state
        .incidents_of_rule(&alert.rule, since_ms, SIMILAR_MAX + 1)
        .await?;
    let others = incidents
        .into_iter()
        .filter(|incident| DiagnosisId::of(&incident.alert) != own);
    Ok(others.take(SIMILAR_MAX as usize).map(as_similar).collect())
}

fn as_similar(incident: Incident) -> SimilarDiagnosis {
    let Incident {
        alert,
        context,
        entries,
    } = incident;
    SimilarDiagnosis {
        id: DiagnosisId::of(&alert).to_string(),
        summary: alert.annotations.get("summary").unwrap_or_default().to_owned(),
        run: alert.labels.get("run").map(str::to_owned),
        attempt: context.attempt,
        fired_ms: alert.fired_ms.unwrap_or(alert.active_ms),
        resolved_ms: alert.resolved_ms,
        not_a_problem: handling(&entries).not_a_problem.is_some(),
        helped: helped(&entries),
    }
}

/// The last note that a person wrote.
fn helped(entries: &[Entry]) -> Option<String> {
    let written = entries.iter().rev().filter(|entry| match entry.what {
        EntryKind::Note { .. } | EntryKind::NotAProblem { .. } | EntryKind::Acknowledged { .. } => true,
        EntryKind::Released { .. } | EntryKind::Silenced { .. } => false,
    });
    let mut notes = written.map(|entry| entry.what.note());
    notes.find(|note| !note.is_empty()).map(str::to_owned)
}
