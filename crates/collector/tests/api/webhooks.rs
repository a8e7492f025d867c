//! Receivers of alerts: what is taken as one, and that one which is silent holds up no other.

use axum::Router;
use axum::routing::post;
use http::Method;
use serde_json::{Value, json};
use store::state::outbox::NewMessage;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::harness::{Server, answer, until};

async fn create(server: &Server, body: Value) -> (u16, Value) {
    let (status, body) = answer(server.request(Method::POST, "/api/webhooks").json(&body)).await;
    (status.as_u16(), body)
}

fn message(webhook: &Value, n: usize) -> NewMessage {
    let webhook = webhook["id"].as_str().unwrap().to_owned();
    NewMessage {
        message_id: format!("msg_{webhook}_{n}"),
        webhook,
        body: "{}".into(),
        resolved: false,
    }
}

#[tokio::test]
async fn a_silent_receiver_holds_up_no_other() {
    let server = Server::start().await;
    // Connections come to its queue and are never answered.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (heard, mut deliveries) = mpsc::channel(1);
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
    let url = |at: std::net::SocketAddr| json!({ "url": format!("http://{at}/") });
    let (_, silent_hook) = create(&server, url(silent.local_addr().unwrap())).await;
    let (_, healthy_hook) = create(&server, url(healthy_at)).await;

    let state = &server.running.app.store.state;
    let mut messages: Vec<_> = (0..100).map(|n| message(&silent_hook, n)).collect();
    messages.push(message(&healthy_hook, 0));
    state.enqueue_messages(&messages, 0).await.unwrap();
    // Nobody woke the delivery: it looks by itself within 5 s, and then again for the second.
    let within = std::time::Duration::from_secs(9);
    tokio::time::timeout(within, deliveries.recv())
        .await
        .expect("the healthy receiver is told while the other is silent");
    until("the message is forgotten", async || {
        let (_, hooks) = server.get("/api/webhooks").await;
        (hooks[1]["pending"] == 0 && hooks[0]["pending"] == 100).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_secret_that_could_be_guessed_is_refused() {
    let server = Server::start().await;
    for secret in ["whsec_", "whsec_c2hvcnQ=", "hunter2hunter2hunter2hunter2"] {
        let wish = json!({ "url": "http://127.0.0.1:1/", "secret": secret });
        let (status, body) = create(&server, wish).await;
        assert_eq!(
            (status, &body["errors"][0]["field"]),
            (422, &json!("secret")),
            "{secret}"
        );
    }
}
