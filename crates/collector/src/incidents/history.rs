//! The history around a diagnosis: changes before it, similar diagnoses, and the user actions on it.

use std::cmp::Reverse;

use domain::api::alerts::{AlertView, Diagnosis};
use domain::api::diagnoses::{ChangeBefore, SimilarDiagnosis, TimelineEntry};
use domain::diagnosis::finding::Finding;
use domain::event::Event;
use domain::ident::RunId;
use domain::incident::{DiagnosisId, Entry, EntryKind, handling};
use domain::run::knob::Verdict;
use domain::run::state::RunState;
use domain::time::TimestampMs;
use store::StateStore;
use store::state::StateError;
use store::state::audit::AuditEntry;
use store::state::events::EventFilter;
use store::state::incidents::Incident;

use crate::runs::Runs;

/// How long before a diagnosis a change may be its cause.
const BEFORE_MS: i64 = 3_600_000;
/// Maximum number of changes shown.
const CHANGES_MAX: u32 = 30;
/// Maximum number of events of a run or a node that are read, for a bundle or to find changes among them.
const EVENTS_MAX: u32 = 500;
/// States that each attempt has until its ranks run. A restart, a failure or a stop before them is a change; they are not.
const ROUTINE_STATES: [RunState; 4] = [
    RunState::Queued,
    RunState::Preparing,
    RunState::Starting,
    RunState::Running,
];
/// Kinds of events that change a run or its node: knobs, states other than the routine ones, agents and the driver. Other events are
/// observations.
const CHANGE_KINDS: [&str; 5] = [
    RUN_STATE,
    "knob",
    "agent_connected",
    "nvml_gone",
    "nvml_version_mismatch",
];
const RUN_STATE: &str = "run_state";
/// How far back similar diagnoses are searched: 30 days.
const SIMILAR_MS: i64 = 30 * 24 * 3_600_000;
/// Maximum number of similar diagnoses shown.
const SIMILAR_MAX: u32 = 10;

/// Returns events and audited actions on the run and the node of a diagnosis in the hour before it: what changed the run or its node first,
/// then what was observed, each the newest first. The finding of the diagnosis itself and routine states of the run are left out.
///
/// # Errors
/// Returns an error if the store fails.
pub(crate) async fn changed_before(
    state: &StateStore,
    diagnosis: &Diagnosis,
    finding: Option<&Finding>,
) -> Result<Vec<ChangeBefore>, StateError> {
    let until_ms = diagnosis.alert.active_ms + 1;
    let since_ms = diagnosis.alert.active_ms - BEFORE_MS;
    let events = events_within(state, diagnosis, (since_ms, until_ms), EVENTS_MAX).await?;
    let targets = [&diagnosis.run, &diagnosis.who.node];
    let targets: Vec<&str> = targets.into_iter().flatten().map(String::as_str).collect();
    let actions = state
        .audit_of(&targets, (since_ms, until_ms), CHANGES_MAX)
        .await?;
    Ok(changes(events, actions, finding))
}

fn changes(events: Vec<Event>, actions: Vec<AuditEntry>, finding: Option<&Finding>) -> Vec<ChangeBefore> {
    let is_own = |event: &Event| {
        event.kind == "finding" && finding.is_some_and(|finding| finding.is_described_by(&event.message))
    };
    let events = events
        .into_iter()
        .filter(|event| !is_own(event) && !is_routine(event));
    let mut changes: Vec<ChangeBefore> = events.map(of_event).collect();
    changes.extend(actions.into_iter().map(of_action));
    changes.sort_by_key(|change| (!is_change(change), Reverse(change.at_ms)));
    changes.truncate(CHANGES_MAX as usize);
    changes
}

fn is_change(change: &ChangeBefore) -> bool {
    change.who.is_some() || CHANGE_KINDS.contains(&change.kind.as_str())
}

/// Returns true if the event says that the run has a routine state, without a reason.
fn is_routine(event: &Event) -> bool {
    let run = event.run.as_deref().filter(|_| event.kind == RUN_STATE);
    let state = run.and_then(|run| {
        let of_run = event.message.strip_prefix("run ")?.strip_prefix(run)?;
        of_run.strip_prefix(" is ")
    });
    state.is_some_and(|state| ROUTINE_STATES.iter().any(|routine| routine.as_str() == state))
}

/// Returns events on the run and the node of a diagnosis from the hour before it to its end, the newest first.
///
/// # Errors
/// Returns an error if the store fails.
pub(crate) async fn events_around(
    state: &StateStore,
    diagnosis: &Diagnosis,
) -> Result<Vec<Event>, StateError> {
    let since_ms = diagnosis.alert.active_ms - BEFORE_MS;
    let until_ms = diagnosis.alert.resolved_ms.map_or(i64::MAX, |at_ms| at_ms + 1);
    let mut events = events_within(state, diagnosis, (since_ms, until_ms), EVENTS_MAX).await?;
    events.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
    Ok(events)
}

/// Returns events on the run of a diagnosis, then the other ones on its node, at most `limit` of each.
async fn events_within(
    state: &StateStore,
    diagnosis: &Diagnosis,
    (since_ms, before_ms): (TimestampMs, TimestampMs),
    limit: u32,
) -> Result<Vec<Event>, StateError> {
    let within = EventFilter {
        since_ms: Some(since_ms),
        before_ms: Some(before_ms),
        ..EventFilter::default()
    };
    let mut events: Vec<Event> = Vec::new();
    if let Some(run) = diagnosis.run.clone() {
        let filter = EventFilter {
            run: Some(run),
            ..within.clone()
        };
        events = state.events(&filter, limit).await?;
    }
    if let Some(node) = diagnosis.who.node.clone() {
        let filter = EventFilter {
            node: Some(node),
            ..within
        };
        for event in state.events(&filter, limit).await? {
            if !events.contains(&event) {
                events.push(event);
            }
        }
    }
    Ok(events)
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

/// Converts for example `run_apply` and `demo-abc123 num_workers=4` to `run apply: demo-abc123 num_workers=4`.
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

/// Returns diagnoses of the same rule in the 30 days before this one, the newest first.
///
/// # Errors
/// Returns an error if the store fails.
pub(crate) async fn similar(
    state: &StateStore,
    runs: &Runs,
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
    let mut similar = Vec::new();
    for incident in others.take(SIMILAR_MAX as usize) {
        similar.push(as_similar(runs, incident).await);
    }
    Ok(similar)
}

async fn as_similar(runs: &Runs, incident: Incident) -> SimilarDiagnosis {
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
        helped: match acted(runs, &entries).await {
            Some(words) => Some(words),
            None => last_note(&entries),
        },
    }
}

/// Returns the user actions on a diagnosis. An action that changed a run has the verdict on the change.
pub(crate) async fn timeline(runs: &Runs, entries: &[Entry]) -> Vec<TimelineEntry> {
    let mut timeline = Vec::with_capacity(entries.len());
    for entry in entries {
        timeline.push(TimelineEntry {
            verdict: verdict(runs, entry).await,
            ..TimelineEntry::from(entry)
        });
    }
    timeline
}

async fn verdict(runs: &Runs, entry: &Entry) -> Option<Verdict> {
    let EntryKind::Acted {
        run,
        attempt,
        live,
        prune,
        ..
    } = &entry.what
    else {
        return None;
    };
    let run = RunId::new(run.clone()).ok()?;
    match prune {
        Some(no) => runs.verdict_on_prune(&run, *no).await,
        None => runs.verdict_on(&run, ((*attempt)?, *live)).await,
    }
}

/// Returns the last action, with its verdict if there is one.
async fn acted(runs: &Runs, entries: &[Entry]) -> Option<String> {
    let is_action = |entry: &&Entry| matches!(entry.what, EntryKind::Acted { .. });
    let entry = entries.iter().rfind(is_action)?;
    let title = entry.what.note();
    Some(match verdict(runs, entry).await {
        Some(verdict) => format!("{title}: {}, {}", verdict.decision.words(), verdict.summary),
        None => title.to_owned(),
    })
}

/// Returns the last note that a user wrote.
fn last_note(entries: &[Entry]) -> Option<String> {
    let written = entries.iter().rev().filter(|entry| match entry.what {
        EntryKind::Note { .. } | EntryKind::NotAProblem { .. } | EntryKind::Acknowledged { .. } => true,
        EntryKind::Released { .. } | EntryKind::Silenced { .. } | EntryKind::Acted { .. } => false,
    });
    let mut notes = written.map(|entry| entry.what.note());
    notes.find(|note| !note.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use domain::diagnosis::finding::{Cause, Culprit, FindingKind};
    use domain::event::Severity;
    use domain::ident::Rank;

    use super::*;

    fn event(at_ms: TimestampMs, kind: &str, message: &str) -> Event {
        Event {
            run: Some("r-1".to_owned()),
            ..Event::new(at_ms, Severity::Info, kind, message.to_owned())
        }
    }

    fn straggler(rank: u32, cause: Cause) -> Finding {
        Finding {
            kind: FindingKind::Straggler,
            culprit: Culprit::Ranks {
                ranks: [Rank(rank)].into_iter().collect(),
                nodes: vec!["a".to_owned()],
            },
            phase: None,
            cause,
            since_ms: 0,
            since_step: None,
            witnesses: Vec::new(),
            is_suspect: false,
            is_symptom: false,
            severity: Severity::Warning,
            lost_seconds: 0.0,
        }
    }

    #[test]
    fn changes_come_first_without_routine_states_and_the_diagnosis_itself() {
        let (own, other) = (straggler(1, Cause::Unknown), straggler(2, Cause::Unknown));
        let events = vec![
            event(90, "finding", &own.sentence()),
            event(80, "finding", &other.sentence()),
            event(70, RUN_STATE, "run r-1 is running"),
            event(69, RUN_STATE, "run r-1 is starting"),
            event(68, RUN_STATE, "run r-1 is preparing"),
            event(67, RUN_STATE, "run r-1 is queued"),
            event(60, RUN_STATE, "run r-1 is restarting: rank 3 was killed"),
            event(50, "xid", "Xid 63"),
        ];
        let action = AuditEntry {
            at_ms: 10,
            who: "ann".to_owned(),
            what: "run_apply".to_owned(),
            target: "r-1 lr=0.1".to_owned(),
        };
        let found = straggler(1, Cause::Throttled);
        let shown = changes(events, vec![action], Some(&found));
        let shown: Vec<&str> = shown.iter().map(|change| change.text.as_str()).collect();
        assert_eq!(
            shown,
            [
                "run r-1 is restarting: rank 3 was killed",
                "run apply: r-1 lr=0.1",
                other.sentence().as_str(),
                "Xid 63",
            ]
        );
    }

    #[test]
    fn many_observations_do_not_displace_an_older_change() {
        let observed = (0..100).map(|at_ms| event(at_ms + 1_000, "xid", "Xid 63"));
        let knob = event(1, "knob", "attempt 1: lr=0.1");
        let shown = changes(observed.chain([knob]).collect(), Vec::new(), None);
        assert_eq!((shown.len(), shown[0].text.as_str()), (30, "attempt 1: lr=0.1"));
    }
}
