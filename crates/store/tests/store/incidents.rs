//! Tests alerts as diagnoses: found by id, run and rule, with their context and what people did about them.

use domain::api::alerts::{AlertState, AlertView};
use domain::ident::AttemptNo;
use domain::incident::{Context, DiagnosisId, Entry, EntryKind, Silence};
use serde_json::json;
use store::StateStore;
use store::state::StateError;
use store::state::alerts::{AlertChanges, RuleKey};
use store::state::audit::AuditEntry;
use store::state::deliveries::Delivery;
use store::state::incidents::ENTRIES_MAX;

use crate::harness::open;

fn alert(rule: &str, run: &str, active_ms: i64, state: AlertState) -> AlertView {
    let view = json!({
        "fingerprint": format!("{rule}{run}"), "rule": rule, "state": state, "severity": "warning",
        "labels": {"alertname": rule, "run": run}, "annotations": {}, "value": "1", "active_ms": active_ms,
    });
    serde_json::from_value(view).unwrap()
}

async fn apply(state: &StateStore, alert: AlertView, context: Option<Context>, now_ms: i64) {
    let contexts: Vec<_> = context
        .map(|context| (DiagnosisId::of(&alert), context))
        .into_iter()
        .collect();
    let changes = AlertChanges {
        upserts: &[alert],
        contexts: &contexts,
        ..AlertChanges::default()
    };
    state.apply_alerts(changes, now_ms).await.unwrap();
}

fn note(at_ms: i64, text: &str) -> Entry {
    Entry {
        at_ms,
        who: "ann".into(),
        what: EntryKind::Note { note: text.into() },
    }
}

#[tokio::test]
async fn a_diagnosis_keeps_its_id_context_and_notes_when_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let state = &store.state;
    let firing = alert("Hot", "r1", 5, AlertState::Firing);
    let id = DiagnosisId::of(&firing);
    let context = |attempt| Context {
        attempt: Some(AttemptNo(attempt)),
        ..Context::default()
    };
    apply(state, firing.clone(), Some(context(1)), 5).await;
    assert!(state.append_entry(&id, &note(6, "first")).await.unwrap());
    assert_eq!(state.active_contexts().await.unwrap().get(&id), Some(&context(1)));
    assert_eq!(state.active_entries().await.unwrap()[&id], [note(6, "first")]);

    apply(
        state,
        alert("Hot", "r1", 5, AlertState::Resolved),
        Some(context(2)),
        9,
    )
    .await;
    assert!(state.append_entry(&id, &note(10, "second")).await.unwrap());
    store.close().await;
    let store = open(folder.path()).await;
    let ended = store.state.incident(&id).await.unwrap().unwrap();
    assert_eq!(ended.alert.state, AlertState::Resolved);
    assert_eq!(ended.context, context(2));
    assert_eq!(ended.entries, [note(6, "first"), note(10, "second")]);
    assert!(store.state.active_entries().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_has_not_fired_is_no_diagnosis() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let pending = alert("Hot", "r1", 5, AlertState::Pending);
    let id = DiagnosisId::of(&pending);
    apply(&store.state, pending, None, 5).await;
    assert_eq!(store.state.incident(&id).await.unwrap(), None);
    assert!(!store.state.append_entry(&id, &note(6, "early")).await.unwrap());
}

#[tokio::test]
async fn diagnoses_are_found_by_run_and_by_rule() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let state = &store.state;
    for (at, (rule, run)) in (1..).zip([("Hot", "r1"), ("Slow", "r1"), ("Hot", "r2")]) {
        apply(state, alert(rule, run, at, AlertState::Resolved), None, 100 + at).await;
    }
    apply(state, alert("Hot", "r3", 9, AlertState::Firing), None, 200).await;
    let times = |all: Vec<store::state::incidents::Incident>| -> Vec<i64> {
        all.iter().map(|incident| incident.alert.active_ms).collect()
    };
    assert_eq!(
        times(state.resolved_incidents(None, 10).await.unwrap()),
        [3, 2, 1]
    );
    assert_eq!(
        times(state.resolved_incidents(Some("r1"), 10).await.unwrap()),
        [2, 1]
    );
    assert_eq!(
        times(state.incidents_of_rule("Hot", 0, 10).await.unwrap()),
        [9, 3, 1]
    );
    assert_eq!(
        times(state.incidents_of_rule("Hot", 2, 10).await.unwrap()),
        [9, 3]
    );
    assert_eq!(times(state.incidents_of_rule("Hot", 0, 1).await.unwrap()), [9]);
}

#[tokio::test]
async fn a_rule_last_fired_when_its_newest_alert_that_has_fired_did() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let state = &store.state;
    let fired = |rule: &str, run: &str, active_ms: i64| AlertView {
        fired_ms: Some(active_ms + 10),
        ..alert(rule, run, active_ms, AlertState::Resolved)
    };
    apply(state, fired("Slow", "r1", 5), None, 20).await;
    for at in 100..200 {
        apply(state, fired("Hot", "r1", at), None, at + 20).await;
    }
    apply(state, fired("Hot", "r2", 150), None, 400).await;
    apply(state, alert("Hot", "r2", 500, AlertState::Pending), None, 500).await;
    let rules = [
        ("Slow", None),
        ("Hot", None),
        ("Hot", Some("r2")),
        ("Hot", Some("r3")),
        ("Cold", None),
    ];
    let keys = rules.map(|(name, run)| RuleKey {
        name,
        labels: run.map(|run| ("run", run)).into_iter().collect(),
    });
    assert_eq!(
        state.last_fired(&keys).await.unwrap(),
        [Some(15), Some(209), Some(160), None, None]
    );
}

#[tokio::test]
async fn entries_of_a_diagnosis_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let firing = alert("Hot", "r1", 5, AlertState::Firing);
    let id = DiagnosisId::of(&firing);
    apply(&store.state, firing, None, 5).await;
    for at_ms in 0..ENTRIES_MAX {
        let at_ms = i64::try_from(at_ms).unwrap();
        assert!(store.state.append_entry(&id, &note(at_ms, "x")).await.unwrap());
    }
    let refused = store.state.append_entry(&id, &note(0, "one more")).await;
    assert!(matches!(refused, Err(StateError::Full { .. })), "{refused:?}");
}

#[tokio::test]
async fn the_audit_log_is_searched_by_what_an_action_was_done_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for (at_ms, target) in (1..).zip(["r1", "r1 lr=0.1", "r10", "node-1", "x r1"]) {
        let entry = AuditEntry {
            at_ms,
            who: "ann".into(),
            what: "run_apply".into(),
            target: target.into(),
        };
        store.state.append_audit(&entry).await.unwrap();
    }
    let found = async |targets: &[&str], range| -> Vec<String> {
        let found = store.state.audit_of(targets, range, 10).await.unwrap();
        found.into_iter().map(|entry| entry.target).collect()
    };
    assert_eq!(
        found(&["r1", "node-1"], (0, 100)).await,
        ["node-1", "r1 lr=0.1", "r1"]
    );
    assert_eq!(found(&["r1"], (2, 100)).await, ["r1 lr=0.1"]);
    assert_eq!(found(&["r1"], (0, 2)).await, ["r1"]);
    assert_eq!(found(&[], (0, 100)).await, Vec::<String>::new());
}

fn silence(id: &str, ends_ms: i64) -> Silence {
    Silence {
        id: id.into(),
        matchers: vec![],
        starts_ms: 0,
        ends_ms,
        created_ms: 0,
        created_by: "ann".into(),
        comment: "fan".into(),
    }
}

#[tokio::test]
async fn silences_are_kept_for_a_month_after_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let state = &store.state;
    let month_ms = 30 * 86_400_000;
    state.put_silence(&silence("a", 10), 0).await.unwrap();
    state.put_silence(&silence("b", 20), 0).await.unwrap();
    state.put_silence(&silence("b", 15), 0).await.unwrap();
    assert_eq!(
        state.silences().await.unwrap(),
        [silence("b", 15), silence("a", 10)]
    );
    state
        .put_silence(&silence("c", 2 * month_ms), 11 + month_ms)
        .await
        .unwrap();
    let ids: Vec<_> = state
        .silences()
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.id)
        .collect();
    assert_eq!(ids, ["c", "b"]);
}

async fn pending(state: &StateStore) -> u64 {
    state.webhooks().await.unwrap()[0].pending
}

#[tokio::test]
async fn a_silenced_alert_is_noted_for_webhooks_once_it_is_not_silenced_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let state = &store.state;
    state
        .create_webhook("w", "http://localhost/", "s", 1)
        .await
        .unwrap();
    let firing = alert("Hot", "r1", 5, AlertState::Firing);
    let changes = AlertChanges {
        upserts: std::slice::from_ref(&firing),
        silenced: std::slice::from_ref(&firing.fingerprint),
        ..AlertChanges::default()
    };
    state.apply_alerts(changes, 5).await.unwrap();
    assert_eq!(pending(state).await, 0);
    let alerts = [firing];
    state.notify_unsilenced(&alerts, 10).await.unwrap();
    assert_eq!(pending(state).await, 1);
    state.silence_alerts(&alerts).await.unwrap();
    assert_eq!(pending(state).await, 0);

    state.notify_unsilenced(&alerts, 20).await.unwrap();
    let Some(Delivery::Group(delivery)) = state.begin_delivery("w", 20).await.unwrap() else {
        panic!("the alert is due");
    };
    state.group_delivered(&delivery, 21).await.unwrap();
    state.notify_unsilenced(&alerts, 30).await.unwrap();
    assert_eq!(
        pending(state).await,
        0,
        "a receiver that knows it is not told again"
    );
    apply(state, alert("Hot", "r1", 5, AlertState::Resolved), None, 40).await;
    assert_eq!(pending(state).await, 1, "its end is told, silenced or not");
    state.notify_unsilenced(&alerts, 50).await.unwrap();
    assert!(
        matches!(state.begin_delivery("w", 50).await.unwrap(),
            Some(Delivery::Group(end)) if end.alerts[0].state == AlertState::Resolved),
        "what has ended does not fire again"
    );
}
