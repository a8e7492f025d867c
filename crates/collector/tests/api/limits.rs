//! Excessive requests are rejected with an explanation, and unknown paths never return 200.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, answer, is_problem};

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_bounded() {
    let server = Server::start().await;
    let note = "x".repeat(2 << 20);
    let (status, body) = server
        .post("/api/tokens", json!({ "role": "viewer", "note": note }))
        .await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(is_problem(&body, status), "{body}");

    let (status, body) = answer(
        server
            .request(Method::POST, "/api/v1/write")
            .body(vec![0; (16 << 20) + 1]),
    )
    .await;
    assert_eq!(
        (status, &body["status"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("error")),
        "{body}"
    );
    let form = format!("query={}", "x".repeat(2 << 20));
    let request = server
        .request(Method::POST, "/api/v1/query")
        .header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(answer(request.body(form)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_endpoint_is_not_found() {
    let server = Server::start().await;
    for path in ["/api/unknown", "/api", "/api/v2/query", "/api/tokens/x/y"] {
        let (status, body) = server.get(path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(is_problem(&body, status), "{path}: {body}");
    }
    let (status, body) = server.get("/api/v1/unknown").await;
    assert_eq!(
        (status, &body["errorType"]),
        (StatusCode::NOT_FOUND, &json!("not_found"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_explained() {
    let server = Server::start().await;
    for (method, path, body, status) in [
        (
            Method::PUT,
            "/api/tokens",
            Value::Null,
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        (
            Method::POST,
            "/api/tokens",
            json!({ "role": "king" }),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            Method::POST,
            "/api/tokens",
            json!({ "role": "viewer", "note": "x".repeat(300) }),
            StatusCode::BAD_REQUEST,
        ),
        (
            Method::GET,
            "/api/events?limit=many",
            Value::Null,
            StatusCode::BAD_REQUEST,
        ),
        (
            Method::DELETE,
            "/api/tokens/none",
            Value::Null,
            StatusCode::NOT_FOUND,
        ),
    ] {
        let (got, answer) = answer(server.request(method.clone(), path).json(&body)).await;
        assert_eq!(got, status, "{method} {path}: {answer}");
        assert!(is_problem(&answer, status), "{method} {path}: {answer}");
    }
}
