//! Tests the records of nodes, runs, alerts and users.

use std::collections::BTreeSet;

use domain::api::alerts::{AlertState, AlertView};
use domain::api::runs::RunSummary;
use domain::api::session::Role;
use domain::event::{Event, Severity};
use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::RunState;
use domain::series::Labels;
use domain::topology::Inventory;
use serde_json::json;
use store::Store;
use store::state::StateError;
use store::state::alerts::AlertChanges;
use store::state::audit::AuditEntry;
use store::state::events::EventFilter;
use store::state::nodes::NodeRecord;
use store::state::runs::{RunAction, RunRecord, RunUpdate};
use store::state::tokens::NewToken;
use tempfile::TempDir;

use crate::harness::{apply, open};

async fn state() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    (folder, store)
}

#[tokio::test]
async fn a_node_is_known_by_its_latest_hello() {
    let (folder, store) = state().await;
    let node = |version: &str, seen_ms| NodeRecord {
        name: NodeName::new("node-1").unwrap(),
        agent_version: version.into(),
        clock_offset_ms: -3,
        inventory: Inventory {
            hostname: "h".into(),
            ..Inventory::default()
        },
        seen_ms,
    };
    store.state.upsert_node(&node("1", 10)).await.unwrap();
    store.state.upsert_node(&node("2", 20)).await.unwrap();
    store.state.touch_node(&node("2", 0).name, 30).await.unwrap();
    store.state.touch_node(&node("2", 0).name, 5).await.unwrap();
    store.close().await;
    let store = open(folder.path()).await;
    assert_eq!(store.state.nodes().await.unwrap(), [node("2", 30)]);
    assert!(store.state.delete_node(&node("2", 0).name).await.unwrap());
    assert!(store.state.nodes().await.unwrap().is_empty());
}

fn run(id: &str, state: RunState, submitted_ms: i64) -> RunRecord {
    let summary = RunSummary {
        id: id.into(),
        name: "ddp".into(),
        program: "ddp".into(),
        state,
        outcome: None,
        attempt: AttemptNo(1),
        nodes: vec![],
        world_size: 0,
        owner: None,
        labels: std::collections::BTreeMap::new(),
        submitted_ms,
        started_ms: None,
        ended_ms: None,
    };
    let id = RunId::new(id).unwrap();
    RunRecord {
        id,
        version: 0,
        spec: json!({"recipe": "ddp"}),
        machine: json!({"at": "queued"}),
        summary,
    }
}

fn action(n: u32) -> RunAction {
    RunAction {
        attempt: AttemptNo(1),
        n,
        action: json!({"start": n}),
    }
}

#[tokio::test]
async fn a_transition_and_its_actions_are_one() {
    let (_folder, store) = state().await;
    let state = &store.state;
    let (first, second) = (
        run("a-1", RunState::Queued, 10),
        run("b-1", RunState::Succeeded, 20),
    );
    state.insert_run(&first, &[action(0)], 1).await.unwrap();
    state.insert_run(&second, &[], 2).await.unwrap();
    assert!(matches!(
        state.insert_run(&first, &[], 3).await,
        Err(StateError::Exists { .. })
    ));
    assert_eq!(state.runs(10).await.unwrap(), [second, first.clone()]);
    assert_eq!(
        state.unfinished_runs().await.unwrap(),
        std::slice::from_ref(&first)
    );

    let running = run("a-1", RunState::Running, 10);
    let machine = json!({"at": "running"});
    let actions = [action(1), action(2)];
    let json = machine.to_string();
    let update = |version, event_ids| RunUpdate {
        run: &running.id,
        expected_version: version,
        machine: &json,
        summary: &running.summary,
        actions: &actions,
        event_ids,
        done: &[],
        pins: None,
    };
    assert_eq!(state.update_run(update(0, &["e1", "e0"]), 4).await.unwrap(), 1);
    // The event is repeated, and another decision is based on an old version: nothing changes.
    let again = RunUpdate {
        actions: &[],
        ..update(1, &["e1"])
    };
    assert!(matches!(
        state.update_run(again, 5).await,
        Err(StateError::Exists { .. })
    ));
    assert!(matches!(
        state.update_run(update(0, &[]), 6).await,
        Err(StateError::Conflict { .. })
    ));
    // If the key of an action is taken, the whole transition is undone.
    assert!(state.update_run(update(1, &[]), 7).await.is_err());
    let stored = state.run(&running.id).await.unwrap().unwrap();
    assert_eq!(
        (stored.version, stored.machine, stored.summary.state),
        (1, machine.clone(), RunState::Running)
    );
    assert_eq!(
        state
            .run_events_seen(&running.id, &["e0", "e1", "e2"])
            .await
            .unwrap(),
        BTreeSet::from(["e0".to_owned(), "e1".to_owned()])
    );

    let pending = |actions: &[u32]| {
        actions
            .iter()
            .map(|n| (running.id.clone(), action(*n)))
            .collect::<Vec<_>>()
    };
    assert_eq!(state.pending_actions().await.unwrap(), pending(&[0, 1, 2]));
    state.action_done(&running.id, AttemptNo(1), 1, 8).await.unwrap();
    assert_eq!(state.pending_actions().await.unwrap(), pending(&[0, 2]));
    let done = RunUpdate {
        actions: &[],
        done: &[(AttemptNo(1), 0)],
        ..update(1, &[])
    };
    assert_eq!(state.update_run(done, 9).await.unwrap(), 2);
    assert_eq!(state.pending_actions().await.unwrap(), pending(&[2]));
}

#[tokio::test]
async fn events_are_found_by_what_they_concern() {
    let (_folder, store) = state().await;
    let event = |at_ms, severity, kind: &str, node: Option<&str>, run: Option<&str>| Event {
        at_ms,
        severity,
        kind: kind.into(),
        node: node.map(Into::into),
        gpu: None,
        run: run.map(Into::into),
        message: "something".into(),
    };
    let events = [
        event(1, Severity::Info, "agent_connected", Some("a"), None),
        event(2, Severity::Critical, "xid", Some("a"), Some("r")),
        event(3, Severity::Warning, "run_state", None, Some("r")),
    ];
    for event in &events {
        store.state.append_event(event).await.unwrap();
    }
    let found = async |filter: EventFilter| {
        let found = store.state.events(&filter, 10).await.unwrap();
        found.iter().map(|event| event.at_ms).collect::<Vec<_>>()
    };
    let all = EventFilter::default;
    assert_eq!(found(all()).await, [3, 2, 1]);
    assert_eq!(
        found(EventFilter {
            node: Some("a".into()),
            ..all()
        })
        .await,
        [2, 1]
    );
    assert_eq!(
        found(EventFilter {
            run: Some("r".into()),
            kind: Some("xid".into()),
            ..all()
        })
        .await,
        [2]
    );
    assert_eq!(
        found(EventFilter {
            severity: Some(Severity::Warning),
            ..all()
        })
        .await,
        [3, 2]
    );
    assert_eq!(
        found(EventFilter {
            since_ms: Some(2),
            before_ms: Some(3),
            ..all()
        })
        .await,
        [2]
    );
}

fn alert(fingerprint: &str, state: AlertState, active_ms: i64) -> AlertView {
    let view = json!({
        "fingerprint": fingerprint, "rule": "Hot", "state": state, "severity": "warning", "labels": {"alertname": "Hot"},
        "annotations": Labels::empty(), "value": "NaN", "active_ms": active_ms,
    });
    serde_json::from_value(view).unwrap()
}

#[tokio::test]
async fn resolved_alerts_are_kept_in_the_history() {
    let (_folder, store) = state().await;
    let state = &store.state;
    let pending = [
        alert("f", AlertState::Pending, 1),
        alert("g", AlertState::Pending, 2),
    ];
    apply(state, &pending, 10).await;
    apply(state, &[alert("f", AlertState::Firing, 1)], 20).await;
    let forgotten = ["f".to_owned(), "g".to_owned()];
    let changes = AlertChanges {
        forgotten: &forgotten,
        ..AlertChanges::default()
    };
    state.apply_alerts(changes, 25).await.unwrap();
    assert_eq!(
        state.active_alerts().await.unwrap(),
        [alert("f", AlertState::Firing, 1)],
        "only what is pending is forgotten"
    );
    apply(state, &[alert("f", AlertState::Resolved, 1)], 30).await;
    apply(state, &[alert("f", AlertState::Firing, 40)], 40).await;
    assert_eq!(
        state.active_alerts().await.unwrap(),
        [alert("f", AlertState::Firing, 40)]
    );
    assert_eq!(
        state.alert_history(10).await.unwrap(),
        [alert("f", AlertState::Resolved, 1)]
    );
}

#[tokio::test]
async fn tokens_and_sessions_are_read_back_until_they_are_revoked() {
    let (_folder, store) = state().await;
    let state = &store.state;
    let (hash, cookie) = ([1; 32], [2; 32]);
    let token = |id, hash, expires_ms| NewToken {
        id,
        role: Role::Operator,
        hash,
        note: "ci",
        expires_ms,
    };
    state
        .create_token(token("t1", &hash, Some(100)), 1)
        .await
        .unwrap();
    assert!(matches!(
        state.create_token(token("t2", &hash, None), 1).await,
        Err(StateError::Exists { .. })
    ));
    state
        .touch_tokens(&[("t1".into(), 60), ("gone".into(), 60)])
        .await
        .unwrap();
    let tokens = state.tokens_by_hash().await.unwrap();
    let (of, view) = &tokens[0];
    assert_eq!((of, &*view.id, view.role), (&hash, "t1", Role::Operator));
    assert_eq!((view.expires_ms, view.used_ms), (Some(100), Some(60)));
    assert_eq!(state.tokens().await.unwrap(), std::slice::from_ref(view));

    state
        .create_browser_session(&cookie, "t1", "csrf", 50, 90)
        .await
        .unwrap();
    let sessions = state.browser_sessions(89).await.unwrap();
    let (of, session) = &sessions[0];
    assert_eq!((of, &*session.csrf, &*session.token), (&cookie, "csrf", "t1"));
    assert!(
        !format!("{session:?}").contains("csrf\""),
        "a secret is not printed"
    );
    assert!(state.browser_sessions(90).await.unwrap().is_empty(), "expired");
    assert!(
        state
            .create_browser_session(&[3; 32], "nobody", "x", 50, 90)
            .await
            .is_err()
    );
    assert!(state.revoke_token("t1").await.unwrap());
    assert!(!state.revoke_token("t1").await.unwrap());
    assert!(
        state.browser_sessions(60).await.unwrap().is_empty(),
        "its browsers are logged out"
    );
}

#[tokio::test]
async fn the_audit_log_is_read_from_its_end() {
    let (_folder, store) = state().await;
    for at_ms in [1, 2, 3] {
        let (who, what, target) = ("t1".into(), "run_stop".into(), "a-1".into());
        store
            .state
            .append_audit(&AuditEntry {
                at_ms,
                who,
                what,
                target,
            })
            .await
            .unwrap();
    }
    let times = async |before_ms, limit| {
        let entries = store.state.audit(before_ms, limit).await.unwrap();
        entries.iter().map(|entry| entry.at_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(None, 2).await, [3, 2]);
    assert_eq!(times(Some(2), 10).await, [1]);
}

#[tokio::test]
async fn a_pin_is_found_by_other_runs_until_it_is_removed() {
    let (_folder, store) = state().await;
    let state = &store.state;
    let (a, b) = (run("a", RunState::Running, 10), run("b", RunState::Running, 11));
    for run in [&a, &b] {
        state.insert_run(run, &[], 1).await.unwrap();
    }
    let pins = |paths: &[&str]| {
        paths
            .iter()
            .map(|path| (*path).to_owned())
            .collect::<BTreeSet<String>>()
    };
    let asked = BTreeSet::from(["/c/1", "/c/2"]);
    for (version, pinned, found) in [
        (0, pins(&["/c/1", "/c/9"]), pins(&["/c/1"])),
        (1, pins(&["/c/1", "/c/2"]), pins(&["/c/1", "/c/2"])),
        (2, pins(&[]), pins(&[])),
    ] {
        let update = RunUpdate {
            run: &a.id,
            expected_version: version,
            machine: &a.machine.to_string(),
            summary: &a.summary,
            actions: &[],
            event_ids: &[],
            done: &[],
            pins: Some(&pinned),
        };
        state.update_run(update, 2).await.unwrap();
        assert_eq!(state.pinned_by_others(&b.id, &asked).await.unwrap(), found);
        assert_eq!(
            state.pinned_by_others(&a.id, &asked).await.unwrap(),
            pins(&[]),
            "its own"
        );
        assert_eq!(
            state.pinned_by_others(&b.id, &BTreeSet::new()).await.unwrap(),
            pins(&[])
        );
    }
}
