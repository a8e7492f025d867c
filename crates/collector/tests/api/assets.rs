//! The dashboard's files and their headers.

use reqwest::{Method, StatusCode};

use crate::harness::Server;

#[tokio::test(flavor = "multi_thread")]
async fn pages_come_with_careful_headers() {
    let server = Server::start().await;
    for path in ["/", "/runs/ddp-1a2b3c", "/runs/llama.v2-1a2b3c"] {
        let response = server.anonymous(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with("text/html"), "{path}");
        assert!(header("content-security-policy").contains("script-src 'self' 'wasm-unsafe-eval';"));
        assert_eq!(
            (header("x-frame-options"), header("x-content-type-options")),
            ("DENY".into(), "nosniff".into())
        );
        assert_eq!(header("referrer-policy"), "no-referrer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_file_is_not_a_page() {
    let server = Server::start().await;
    for path in [
        "/missing.js",
        "/../../etc/passwd.txt",
        "/%2e%2e/Cargo.json",
        "/favicon.ico",
    ] {
        let response = server.anonymous(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_not_kept_and_are_compressed_when_asked() {
    let server = Server::start().await;
    let response = server
        .request(Method::GET, "/api/v1/metadata")
        .header("accept-encoding", "gzip")
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let bytes = response.bytes().await.unwrap();
    assert_eq!(bytes[..2], [0x1f, 0x8b], "a gzip stream");
}
