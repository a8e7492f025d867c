//! Receivers of alerts: which are accepted, that a hanging one delays no other, and that each gets the newest state.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use collector::notify::webhook::sign;
use domain::api::alerts::{AlertState, AlertView};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use store::state::alerts::AlertChanges;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::harness::{DEADLINE, Server, until};

async fn create(server: &Server, body: Value) -> (u16, Value) {
    let (status, body) = server.post("/api/webhooks", body).await;
    (status.as_u16(), body)
}

fn alert(rule: &str, fingerprint: &str, active_ms: i64, state: AlertState) -> AlertView {
    let mut view = json!({
        "fingerprint": fingerprint, "rule": rule, "state": state, "severity": "warning", "labels": {"alertname": rule},
        "annotations": {}, "value": "1", "active_ms": active_ms, "fired_ms": active_ms,
    });
    if state == AlertState::Resolved {
        view["resolved_ms"] = (active_ms + 1).into();
    }
    serde_json::from_value(view).unwrap()
}

/// Does what an evaluation of rules does with its changes.
async fn apply(server: &Server, upserts: &[AlertView]) {
    let changes = AlertChanges {
        upserts,
        ..AlertChanges::default()
    };
    let state = &server.running.app.state;
    state
        .apply_alerts(changes, collector::clock::now_ms())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_silent_receiver_delays_no_other() {
    let server = Server::start().await;
    // Connections wait in its queue and are never answered.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (heard, mut deliveries) = mpsc::channel(100);
    let healthy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let healthy_at = healthy.local_addr().unwrap();
    let router = Router::new().route(
        "/",
        post(move || {
            let _test_is_over = heard.try_send(());
            async {}
        }),
    );
    tokio::spawn(async move { axum::serve(healthy, router).await });
    let url = |at: SocketAddr| json!({ "url": format!("http://{at}/") });
    create(&server, url(silent.local_addr().unwrap())).await;
    create(&server, url(healthy_at)).await;

    let alerts: Vec<_> = (0..100)
        .map(|n| alert(&format!("Rule{n}"), &format!("{n}"), 1, AlertState::Firing))
        .collect();
    apply(&server, &alerts).await;
    // Nothing woke the delivery: it checks by itself within 5 s. After the first connection to the silent receiver, the healthy one does not
    // wait for the 10 s after which the collector gives up.
    let connected = tokio::time::timeout(DEADLINE, silent.accept());
    let _never_answered = connected.await.expect("a connection").unwrap();
    let within = std::time::Duration::from_secs(9);
    tokio::time::timeout(within, deliveries.recv())
        .await
        .expect("the healthy receiver is sent its alerts while the other is silent");
    until("the healthy receiver has all", async || {
        let (_, hooks) = server.get("/api/webhooks").await;
        (hooks[1]["pending"] == 0 && hooks[0]["pending"] == 100).then_some(())
    })
    .await;
}

/// How a receiver handles a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Take,
    /// Records the alerts and answers 500, like a receiver behind a proxy that fails.
    TakeAndFail,
    /// Records the alerts and never answers.
    TakeAndHang,
    /// Answers 503.
    Refuse,
}

struct Received {
    mode: Mode,
    secret: String,
    /// The id of each recorded request, in order.
    ids: Vec<String>,
    /// The last state of each alert: its start, and whether it has ended.
    alerts: BTreeMap<String, (String, bool)>,
}

type Shared = Arc<Mutex<Received>>;

async fn receiver(server: &Server, mode: Mode) -> Shared {
    let received = Arc::new(Mutex::new(Received {
        mode,
        secret: String::new(),
        ids: Vec::new(),
        alerts: BTreeMap::new(),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/", post(take))
        .with_state(Arc::clone(&received));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (_, made) = create(server, json!({ "url": format!("http://{at}/") })).await;
    received.lock().unwrap().secret = made["secret"].as_str().unwrap().to_owned();
    received
}

async fn take(State(received): State<Shared>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mode = received.lock().unwrap().note(&headers, &body);
    match mode {
        Mode::Take => StatusCode::NO_CONTENT,
        Mode::TakeAndFail => StatusCode::INTERNAL_SERVER_ERROR,
        Mode::TakeAndHang => std::future::pending().await,
        Mode::Refuse => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl Received {
    fn note(&mut self, headers: &HeaderMap, body: &[u8]) -> Mode {
        if self.mode == Mode::Refuse {
            return self.mode;
        }
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let (id, text) = (header("webhook-id"), std::str::from_utf8(body).unwrap());
        let signature = sign(&self.secret, &id, &header("webhook-timestamp"), text).unwrap();
        assert_eq!(header("webhook-signature"), signature);
        let body: Value = serde_json::from_str(text).unwrap();
        for alert in body["alerts"].as_array().unwrap() {
            let word = |name: &str| alert[name].as_str().unwrap().to_owned();
            let newest = (word("startsAt"), word("status") == "resolved");
            let known = self.alerts.insert(word("fingerprint"), newest.clone());
            assert!(
                known.as_ref() <= Some(&newest),
                "back from {known:?} to {newest:?}"
            );
        }
        self.ids.push(id);
        self.mode
    }

    fn firing(&self) -> Vec<&str> {
        let firing = self.alerts.iter().filter(|(_, (_, is_over))| !is_over);
        firing.map(|(fingerprint, _)| fingerprint.as_str()).collect()
    }
}

async fn until_nothing_is_pending(server: &Server) {
    until("everything to be delivered", async || {
        let (_, hooks) = server.get("/api/webhooks").await;
        (hooks[0]["pending"] == 0).then_some(())
    })
    .await;
}

async fn until_requests(received: &Shared, count: usize) {
    until("a request", async || {
        (received.lock().unwrap().ids.len() >= count).then_some(())
    })
    .await;
}

/// Earlier versions sent the first message again after the second.
#[tokio::test]
async fn a_retry_carries_the_newest_state() {
    let server = Server::start().await;
    let received = receiver(&server, Mode::TakeAndFail).await;
    apply(&server, &[alert("Hot", "a", 1_000, AlertState::Firing)]).await;
    until_requests(&received, 2).await;
    apply(&server, &[alert("Hot", "a", 1_000, AlertState::Resolved)]).await;
    until("the end", async || {
        received.lock().unwrap().firing().is_empty().then_some(())
    })
    .await;
    received.lock().unwrap().mode = Mode::Take;
    until_nothing_is_pending(&server).await;
    let received = received.lock().unwrap();
    assert_eq!(
        received.firing(),
        Vec::<&str>::new(),
        "the end is the last that it hears"
    );
    assert_eq!(
        received.ids[0], received.ids[1],
        "the same content has the same id"
    );
    assert_ne!(
        received.ids[0],
        *received.ids.last().unwrap(),
        "a receiver must not take the end for a repeat"
    );
}

/// Earlier versions dropped messages of resolved alerts when 10,000 waited.
#[tokio::test]
async fn a_receiver_that_was_down_learns_the_newest_state_of_every_alert() {
    const ALERTS: usize = 150;
    let server = Server::start().await;
    let received = receiver(&server, Mode::Take).await;
    let all = |active_ms: i64, state: AlertState| -> Vec<AlertView> {
        let of = |n: usize| alert(["Hot", "Slow"][n % 2], &format!("{n:03}"), active_ms, state);
        (0..ALERTS).map(of).collect()
    };
    apply(&server, &all(1_000, AlertState::Firing)).await;
    until_nothing_is_pending(&server).await;
    assert_eq!(received.lock().unwrap().firing().len(), ALERTS);

    received.lock().unwrap().mode = Mode::Refuse;
    for round in 1..20 {
        apply(&server, &all(1_000 * round, AlertState::Resolved)).await;
        apply(&server, &all(1_000 * (round + 1), AlertState::Firing)).await;
    }
    let over: Vec<_> = all(20_000, AlertState::Resolved)
        .into_iter()
        .filter(|alert| alert.fingerprint.as_str() > "009")
        .collect();
    apply(&server, &over).await;
    until("a failure to be shown", async || {
        let (_, hooks) = server.get("/api/webhooks").await;
        (hooks[0]["pending"] == 2 && hooks[0]["last_error"].is_string()).then_some(())
    })
    .await;

    received.lock().unwrap().mode = Mode::Take;
    until_nothing_is_pending(&server).await;
    let received = received.lock().unwrap();
    let expected: Vec<_> = (0..10).map(|n| format!("{n:03}")).collect();
    assert_eq!(received.firing(), expected);
    assert!(
        received.ids.len() <= 12,
        "{} requests for two groups",
        received.ids.len()
    );
}

/// The collector is killed between the delivery and its record, and the rule of the alert is removed: the receiver must get the end of the
/// alert.
#[tokio::test]
async fn a_receiver_that_took_an_alert_before_a_crash_learns_its_end() {
    let server = Server::start().await;
    let received = receiver(&server, Mode::TakeAndHang).await;
    apply(&server, &[alert("Hot", "a", 1_000, AlertState::Firing)]).await;
    until_requests(&received, 1).await;
    assert_eq!(received.lock().unwrap().firing(), ["a"]);
    received.lock().unwrap().mode = Mode::Take;
    // As if it were killed now: the answer is not recorded. The new collector has no rule for this alert, so the alert is resolved.
    let again = server.start_from_copy().await;
    until_nothing_is_pending(&again).await;
    assert_eq!(received.lock().unwrap().firing(), Vec::<&str>::new());
}

#[tokio::test]
async fn a_secret_that_could_be_guessed_is_refused() {
    let server = Server::start().await;
    for secret in ["whsec_", "whsec_c2hvcnQ=", "hunter2hunter2hunter2hunter2"] {
        let request = json!({ "url": "http://127.0.0.1:1/", "secret": secret });
        let (status, body) = create(&server, request).await;
        assert_eq!(
            (status, &body["errors"][0]["field"]),
            (422, &json!("secret")),
            "{secret}"
        );
    }
}
