//! Tests the deliveries to webhooks: the newest state of every alert, never an older one after a newer one, and nothing
//! dropped.

use std::collections::BTreeMap;

use domain::api::alerts::{AlertState, AlertView};
use proptest::prelude::*;
use serde_json::json;
use sqlx::Connection;
use store::state::StateError;
use store::state::deliveries::{ALERTS_PER_MESSAGE_MAX, Delivery, GroupDelivery};
use store::{StateStore, Store};
use tempfile::TempDir;

use crate::harness::{apply, open};

const WEBHOOK: &str = "w";

async fn with_webhook() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let made = store
        .state
        .create_webhook(WEBHOOK, "http://127.0.0.1/x", "whsec_x", 0);
    made.await.unwrap();
    (folder, store)
}

fn firing(rule: &str, fingerprint: &str, active_ms: i64) -> AlertView {
    let view = json!({
        "fingerprint": fingerprint, "rule": rule, "state": AlertState::Firing, "severity": "warning",
        "labels": {"alertname": rule}, "annotations": {}, "value": "1", "active_ms": active_ms, "fired_ms": active_ms,
    });
    serde_json::from_value(view).unwrap()
}

fn resolved(rule: &str, fingerprint: &str, active_ms: i64) -> AlertView {
    AlertView {
        state: AlertState::Resolved,
        resolved_ms: Some(active_ms + 1),
        ..firing(rule, fingerprint, active_ms)
    }
}

async fn begin(state: &StateStore, now_ms: i64) -> Option<GroupDelivery> {
    match state.begin_delivery(WEBHOOK, now_ms).await.unwrap()? {
        Delivery::Group(delivery) => Some(delivery),
        Delivery::Queued(message) => panic!("nothing was queued: {message:?}"),
    }
}

fn fingerprints(delivery: &GroupDelivery) -> Vec<(&str, AlertState)> {
    let alerts = delivery.alerts.iter();
    alerts
        .map(|alert| (alert.fingerprint.as_str(), alert.state))
        .collect()
}

async fn pending(state: &StateStore) -> u64 {
    state.webhook(WEBHOOK).await.unwrap().unwrap().pending
}

/// The state that the receiver of the webhook knows: of each alert the last state that reached it.
#[derive(Debug, Default)]
struct Receiver {
    alerts: BTreeMap<String, (i64, bool)>,
}

impl Receiver {
    fn take(&mut self, delivery: &GroupDelivery) {
        for alert in &delivery.alerts {
            let is_over = alert.state == AlertState::Resolved;
            let newest = (alert.active_ms, is_over);
            let known = self.alerts.insert(alert.fingerprint.clone(), newest);
            assert!(
                known <= Some(newest),
                "{} went back from {known:?} to {newest:?}",
                alert.fingerprint
            );
        }
    }

    fn believes_firing(&self) -> BTreeMap<String, i64> {
        let firing = self.alerts.iter().filter(|(_, (_, is_over))| !is_over);
        firing
            .map(|(fingerprint, (active_ms, _))| (fingerprint.clone(), *active_ms))
            .collect()
    }

    /// Takes everything that is due.
    async fn drain(&mut self, state: &StateStore, now_ms: i64) -> usize {
        let mut messages = 0;
        while let Some(delivery) = begin(state, now_ms).await {
            assert!(delivery.alerts.len() <= ALERTS_PER_MESSAGE_MAX);
            self.take(&delivery);
            state.group_delivered(&delivery, now_ms).await.unwrap();
            messages += 1;
        }
        messages
    }
}

#[tokio::test]
async fn an_alert_is_sent_when_it_fires_and_when_it_is_over() {
    let (_folder, store) = with_webhook().await;
    let state = &store.state;
    assert!(matches!(
        state.create_webhook(WEBHOOK, "http://x", "s", 1).await,
        Err(StateError::Exists { .. })
    ));
    assert_eq!(state.next_delivery_ms().await.unwrap(), None);
    apply(state, &[firing("Hot", "a", 10)], 10).await;
    assert_eq!(state.due_webhooks(9).await.unwrap(), Vec::<String>::new());
    assert_eq!(state.due_webhooks(10).await.unwrap(), [WEBHOOK]);
    assert_eq!(state.next_delivery_ms().await.unwrap(), Some(10));

    let first = begin(state, 10).await.unwrap();
    assert_eq!(fingerprints(&first), [("a", AlertState::Firing)]);
    state.group_failed(&first, true, 99, "no answer").await.unwrap();
    let webhook = state.webhook(WEBHOOK).await.unwrap().unwrap();
    assert_eq!(
        (webhook.pending, webhook.last_error.as_deref()),
        (1, Some("no answer"))
    );
    assert_eq!(begin(state, 98).await, None, "it waits for its time");
    let again = begin(state, 99).await.unwrap();
    assert_eq!((again.attempts, &again.alerts), (1, &first.alerts));
    state.group_delivered(&again, 100).await.unwrap();
    assert_eq!(begin(state, i64::MAX).await, None);

    apply(state, &[resolved("Hot", "a", 10)], 200).await;
    let end = begin(state, 200).await.unwrap();
    assert_eq!(fingerprints(&end), [("a", AlertState::Resolved)]);
    state.group_delivered(&end, 201).await.unwrap();
    assert_eq!(state.next_delivery_ms().await.unwrap(), None);
    let webhook = state.webhook(WEBHOOK).await.unwrap().unwrap();
    assert_eq!(
        (
            webhook.pending,
            webhook.delivered_ms,
            webhook.last_error.as_deref()
        ),
        (0, Some(201), None)
    );
    assert!(
        !format!("{webhook:?}").contains("whsec"),
        "a secret is not printed"
    );

    apply(state, &[firing("Hot", "b", 300)], 300).await;
    assert!(state.delete_webhook(WEBHOOK).await.unwrap());
    assert!(
        state.due_webhooks(i64::MAX).await.unwrap().is_empty(),
        "what waits for a webhook goes with it"
    );
}

/// Earlier versions retried the first message after newer ones had overtaken it.
#[tokio::test]
async fn a_late_retry_does_not_follow_the_end_of_its_alert() {
    let (_folder, store) = with_webhook().await;
    let (state, mut receiver) = (&store.state, Receiver::default());
    apply(state, &[firing("Hot", "a", 1)], 1).await;
    let lost = begin(state, 1).await.unwrap();
    // The request arrived, but not the response.
    receiver.take(&lost);
    state
        .group_failed(&lost, true, 300_000, "no answer")
        .await
        .unwrap();
    apply(state, &[resolved("Hot", "a", 1)], 2).await;
    assert_eq!(
        state.next_delivery_ms().await.unwrap(),
        Some(10_002),
        "a change ends a long pause"
    );
    assert_eq!(receiver.drain(state, 10_002).await, 1);
    assert_eq!(
        receiver.drain(state, i64::MAX).await,
        0,
        "nothing is left to be repeated"
    );
    assert_eq!(receiver.believes_firing(), BTreeMap::new());
}

#[tokio::test]
async fn the_end_of_an_alert_that_was_never_sent_is_not_delivered() {
    for (was_sent, expected) in [
        (false, vec![]),
        // The request may have arrived.
        (true, vec![("a", AlertState::Resolved)]),
    ] {
        let (_folder, store) = with_webhook().await;
        let state = &store.state;
        apply(state, &[firing("Hot", "a", 1)], 1).await;
        let delivery = begin(state, 1).await.unwrap();
        state.group_failed(&delivery, was_sent, 2, "down").await.unwrap();
        apply(state, &[resolved("Hot", "a", 1)], 3).await;
        let end = begin(state, i64::MAX).await;
        assert_eq!(
            end.as_ref().map_or_else(Vec::new, fingerprints),
            expected,
            "{was_sent}"
        );
        assert_eq!(pending(state).await, u64::from(was_sent));
    }
}

#[tokio::test]
async fn an_end_while_the_request_cannot_be_sent_leaves_nothing() {
    let (_folder, store) = with_webhook().await;
    let state = &store.state;
    apply(state, &[firing("Hot", "a", 1)], 1).await;
    let delivery = begin(state, 1).await.unwrap();
    apply(state, &[resolved("Hot", "a", 1)], 2).await;
    state
        .group_failed(&delivery, false, 3, "connection refused")
        .await
        .unwrap();
    assert_eq!(begin(state, i64::MAX).await, None);
    assert_eq!(pending(state).await, 0);
}

#[tokio::test]
async fn an_answer_confirms_only_what_was_sent() {
    let (_folder, store) = with_webhook().await;
    let (state, mut receiver) = (&store.state, Receiver::default());
    apply(state, &[firing("Hot", "a", 1), firing("Hot", "b", 1)], 1).await;
    let on_the_way = begin(state, 1).await.unwrap();
    apply(state, &[resolved("Hot", "a", 1)], 2).await;
    receiver.take(&on_the_way);
    state.group_delivered(&on_the_way, 3).await.unwrap();
    let next = begin(state, 3).await.unwrap();
    assert_eq!(
        fingerprints(&next),
        [("a", AlertState::Resolved), ("b", AlertState::Firing)],
        "as long as one fires, the message as a whole does"
    );
    receiver.take(&next);
    state.group_delivered(&next, 4).await.unwrap();
    assert_eq!(begin(state, i64::MAX).await, None);
    assert_eq!(receiver.believes_firing(), BTreeMap::from([("b".to_owned(), 1)]));
}

#[tokio::test]
async fn a_group_that_fails_delays_no_other() {
    let (_folder, store) = with_webhook().await;
    let state = &store.state;
    apply(state, &[firing("Cold", "a", 1), firing("Hot", "b", 1)], 1).await;
    let refused = begin(state, 1).await.unwrap();
    assert_eq!(refused.rule, "Cold");
    state
        .group_failed(&refused, true, 1_000, "the receiver answered 400")
        .await
        .unwrap();
    assert_eq!(begin(state, 1).await.unwrap().rule, "Hot");
}

/// Earlier versions kept 10,000 messages, and dropped those about resolved alerts first.
#[tokio::test]
async fn after_a_long_outage_the_receiver_gets_the_current_state() {
    const ALERTS: i64 = 300;
    let (_folder, store) = with_webhook().await;
    let (state, mut receiver) = (&store.state, Receiver::default());
    let rules = ["Hot", "Slow", "Full"];
    let of = |n: i64| (rules[usize::try_from(n % 3).unwrap()], format!("{n:03}"));
    let change = |n: i64, active_ms: i64, fires: bool| {
        let (rule, fingerprint) = of(n);
        if fires {
            firing(rule, &fingerprint, active_ms)
        } else {
            resolved(rule, &fingerprint, active_ms)
        }
    };
    // The receiver knows every third alert as firing before it goes down.
    let known: Vec<_> = (0..ALERTS).step_by(3).map(|n| change(n, 1, true)).collect();
    apply(state, &known, 1).await;
    receiver.drain(state, 1).await;

    // 12,000 changes: each alert ends and fires again twenty times; half of them are resolved at the end.
    let mut truth = BTreeMap::new();
    for round in 0..20_i64 {
        for fires in [false, true] {
            let active_ms = 100 + 10 * (round + i64::from(fires));
            let changes: Vec<_> = (0..ALERTS)
                .filter(|n| fires || round > 0 || n % 3 == 0)
                .map(|n| change(n, if fires || round > 0 { active_ms } else { 1 }, fires))
                .collect();
            apply(state, &changes, active_ms).await;
            if let Some(delivery) = begin(state, i64::MAX).await {
                let next_ms = active_ms + 1;
                state
                    .group_failed(&delivery, round % 2 == 0, next_ms, "down")
                    .await
                    .unwrap();
            }
        }
    }
    let last_ms = 100 + 10 * 20;
    let over: Vec<_> = (0..ALERTS)
        .filter(|n| n % 2 == 0)
        .map(|n| change(n, last_ms, false))
        .collect();
    apply(state, &over, 1_000).await;
    for n in (0..ALERTS).filter(|n| n % 2 == 1) {
        truth.insert(of(n).1, last_ms);
    }
    assert_eq!(pending(state).await, 3, "one row per group waits");

    let messages = receiver.drain(state, i64::MAX).await;
    assert!(messages <= 9, "{messages} messages for 300 alerts");
    assert_eq!(receiver.believes_firing(), truth);
    assert_eq!(pending(state).await, 0);
}

#[tokio::test]
async fn an_end_that_waits_outlives_the_history_of_alerts() {
    let (_folder, store) = with_webhook().await;
    let (state, mut receiver) = (&store.state, Receiver::default());
    apply(state, &[firing("Hot", "a", 1)], 1).await;
    receiver.drain(state, 1).await;
    apply(state, &[resolved("Hot", "a", 1)], 2).await;
    // More than the 20,000 resolved alerts that are kept.
    let many: Vec<_> = (0..20_100)
        .map(|n| resolved("Other", &format!("{n}"), 3))
        .collect();
    apply(state, &many, 4).await;
    assert_eq!(receiver.drain(state, i64::MAX).await, 1);
    assert_eq!(receiver.believes_firing(), BTreeMap::new());
    apply(state, &[], 5).await;
    let history = state.alert_history(10_000).await.unwrap();
    assert!(
        history.iter().all(|alert| alert.fingerprint != "a"),
        "then it goes"
    );
}

// === any order of events ===

const RULES: [&str; 2] = ["Hot", "Slow"];
const ALERTS: usize = 5;

#[derive(Debug, Clone)]
enum Step {
    /// An alert fires, or resolves if it is firing.
    Change(usize),
    /// A delivery, the alerts that change during it, and how it ends.
    Deliver(Vec<usize>, Ending),
    Restart,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Delivered,
    /// The connection was refused.
    NotSent,
    /// The receiver or a proxy answered 500.
    Refused,
    /// The receiver took the request, but its response was lost.
    AnswerLost,
    /// The collector was killed before it sent the request.
    KilledBefore,
    /// The collector was killed after the receiver had taken the request.
    KilledAfter,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        Just(Ending::Delivered),
        Just(Ending::NotSent),
        Just(Ending::Refused),
        Just(Ending::AnswerLost),
        Just(Ending::KilledBefore),
        Just(Ending::KilledAfter),
    ];
    prop_oneof![
        6 => (0..ALERTS).prop_map(Step::Change),
        6 => (proptest::collection::vec(0..ALERTS, 0..3), ending).prop_map(|(changes, ending)| Step::Deliver(changes, ending)),
        1 => Just(Step::Restart),
    ]
}

struct World {
    folder: TempDir,
    store: Option<Store>,
    now_ms: i64,
    /// The time since which each alert fires.
    truth: [Option<i64>; ALERTS],
    receiver: Receiver,
}

impl World {
    async fn new() -> Self {
        let (folder, store) = with_webhook().await;
        Self {
            folder,
            store: Some(store),
            now_ms: 1,
            truth: [None; ALERTS],
            receiver: Receiver::default(),
        }
    }

    fn state(&self) -> StateStore {
        self.store.as_ref().unwrap().state.clone()
    }

    async fn take(&mut self, step: &Step) {
        self.now_ms += 1_000;
        match step {
            Step::Change(alert) => self.change(*alert).await,
            Step::Deliver(changes, ending) => self.deliver(changes, *ending).await,
            Step::Restart => self.restart().await,
        }
    }

    async fn change(&mut self, n: usize) {
        self.now_ms += 1;
        let (rule, fingerprint) = (RULES[n % RULES.len()], format!("alert-{n}"));
        let alert = match self.truth[n].take() {
            Some(active_ms) => resolved(rule, &fingerprint, active_ms),
            None => {
                self.truth[n] = Some(self.now_ms);
                firing(rule, &fingerprint, self.now_ms)
            }
        };
        apply(&self.state(), &[alert], self.now_ms).await;
    }

    async fn deliver(&mut self, changes: &[usize], ending: Ending) {
        // All pauses after failures are over by then.
        self.now_ms += 1_000_000;
        let state = self.state();
        let Some(delivery) = begin(&state, self.now_ms).await else {
            return;
        };
        for n in changes {
            self.change(*n).await;
        }
        if matches!(
            ending,
            Ending::Delivered | Ending::AnswerLost | Ending::KilledAfter
        ) {
            self.receiver.take(&delivery);
        }
        let next_ms = self.now_ms + 100_000;
        match ending {
            Ending::Delivered => state.group_delivered(&delivery, self.now_ms).await.unwrap(),
            Ending::NotSent => state
                .group_failed(&delivery, false, next_ms, "down")
                .await
                .unwrap(),
            Ending::Refused | Ending::AnswerLost => {
                state.group_failed(&delivery, true, next_ms, "500").await.unwrap();
            }
            Ending::KilledBefore | Ending::KilledAfter => self.restart().await,
        }
    }

    async fn restart(&mut self) {
        self.store.take().unwrap().close().await;
        self.store = Some(open(self.folder.path()).await);
    }

    /// The receiver works again from now on.
    async fn check(mut self) {
        let state = self.state();
        let messages = self.receiver.drain(&state, i64::MAX).await;
        assert!(messages <= 2 * RULES.len(), "{messages} messages");
        let firing = |(n, active_ms): (usize, &Option<i64>)| Some((format!("alert-{n}"), (*active_ms)?));
        let truth: BTreeMap<_, _> = self.truth.iter().enumerate().filter_map(firing).collect();
        assert_eq!(self.receiver.believes_firing(), truth);
        assert_eq!(pending(&state).await, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: u32::try_from(crate::harness::from_environment("LOCKSTEP_SOAK_DELIVERY_CASES", 25)).unwrap(),
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_receiver_never_goes_back_and_ends_at_the_truth(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.take(step).await;
            }
            world.check().await;
        });
    }
}

// === an upgrade ===

/// A `state.db` that revision b49bf1d wrote: two webhooks, alerts of `Hot` and `Blink`, queued messages.
const QUEUED_BY_B49BF1D: &str = include_str!("../data/queued-by-b49bf1d.sql");

#[tokio::test]
async fn messages_queued_before_the_upgrade_go_out_first() {
    let folder = tempfile::tempdir().unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(folder.path().join("state.db"))
        .create_if_missing(true)
        // The tables are ordered by name, not by their references.
        .foreign_keys(false);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql(QUEUED_BY_B49BF1D)
        .execute(&mut connection)
        .await
        .unwrap();
    let queued: Vec<(String, String, String)> =
        sqlx::query_as("SELECT webhook, message_id, body FROM outbox ORDER BY id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    connection.close().await.unwrap();
    assert!(queued.len() >= 2, "the fixture has queued messages");

    let store = open(folder.path()).await;
    let state = &store.state;
    let active = state.active_alerts().await.unwrap();
    let is_firing = |alert: &&AlertView| alert.state == AlertState::Firing;
    let fires: Vec<_> = active.iter().filter(is_firing).cloned().collect();
    assert!(!fires.is_empty(), "the fixture has alerts that fire");
    // They are resolved right after the upgrade, and another one fires.
    let now_ms = 2_000_000_000_000;
    let mut changes: Vec<_> = fires
        .iter()
        .map(|alert| AlertView {
            state: AlertState::Resolved,
            resolved_ms: Some(now_ms),
            ..alert.clone()
        })
        .collect();
    changes.push(firing("New", "new", now_ms));
    apply(state, &changes, now_ms).await;

    for webhook in state.webhooks().await.unwrap() {
        let of_webhook = queued.iter().filter(|(of, ..)| *of == webhook.id);
        for (_, message_id, body) in of_webhook {
            let Some(Delivery::Queued(message)) = state.begin_delivery(&webhook.id, now_ms).await.unwrap()
            else {
                panic!("{message_id} of {} goes out before everything newer", webhook.id);
            };
            assert_eq!(
                (&message.message_id, &message.body),
                (message_id, body),
                "as it was queued"
            );
            let (again_ms, attempts) = (now_ms + 1, message.attempts);
            state
                .queued_failed(&message, Some(again_ms), "503")
                .await
                .unwrap();
            assert_eq!(
                state.begin_delivery(&webhook.id, now_ms).await.unwrap(),
                None,
                "nothing passes a queued message that failed"
            );
            let again = state.begin_delivery(&webhook.id, again_ms).await.unwrap();
            let Some(Delivery::Queued(message)) = again else {
                panic!("{message_id} is tried again")
            };
            assert_eq!(message.attempts, attempts + 1);
            state.queued_delivered(&message, again_ms).await.unwrap();
        }
        let mut rest = Vec::new();
        while let Some(delivery) = state.begin_delivery(&webhook.id, now_ms + 1).await.unwrap() {
            let Delivery::Group(delivery) = delivery else {
                panic!("all queued messages are out")
            };
            rest.extend(
                delivery
                    .alerts
                    .iter()
                    .map(|alert| (alert.fingerprint.clone(), alert.state)),
            );
            state.group_delivered(&delivery, now_ms + 1).await.unwrap();
        }
        let ends = fires
            .iter()
            .map(|alert| (alert.fingerprint.clone(), AlertState::Resolved));
        let mut expected: Vec<_> = ends.collect();
        expected.push(("new".to_owned(), AlertState::Firing));
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        rest.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            rest, expected,
            "what fired before the upgrade is ended for {}",
            webhook.id
        );
    }
}
