//! Starting the collector: what is rejected, and what is stored.

use std::os::unix::fs::PermissionsExt;

use collector::{Config, StartError};
use reqwest::{Method, StatusCode};

use crate::harness::{ADMIN, Agent, Server, client, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_public_address_without_tls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut public = config(folder.path());
    public.listen = "0.0.0.0:0".parse().unwrap();
    let refused = collector::start(public.clone()).await.err().unwrap();
    assert!(
        matches!(refused, StartError::PublicWithoutTls { .. }),
        "{refused}"
    );
    public.insecure_public = true;
    collector::start(public).await.unwrap().shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_token_is_shown_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path());
    config.listen.set_port(0);
    let running = collector::start(config.clone()).await.unwrap();
    let token = running.admin_token_created.clone().unwrap();
    let file = folder.path().join("admin.token");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), token);
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    running.shutdown().await;

    let running = collector::start(config).await.unwrap();
    assert_eq!(running.admin_token_created, None);
    let request = client()
        .request(Method::GET, format!("{}/api/tokens", running.url()))
        .bearer_auth(&token);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_collector_on_the_same_folder_is_refused() {
    let server = Server::start().await;
    let refused = collector::start(config(server.folder.path()))
        .await
        .err()
        .unwrap();
    assert!(matches!(refused, StartError::Store { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_certificate_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    let missing = folder.path().join("missing.pem");
    config.tls = Some(collector::TlsFiles {
        cert: missing.clone(),
        key: missing.clone(),
    });
    let refused = collector::start(config).await.err().unwrap().to_string();
    assert!(refused.contains("missing.pem"), "{refused}");
}

/// A self-signed certificate for 127.0.0.1, created for this test and valid for a hundred years.
const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls-cert.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls-key.pem");

#[tokio::test(flavor = "multi_thread")]
async fn one_port_serves_https_and_agents_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.tls = Some(collector::TlsFiles {
        cert: CERTIFICATE.into(),
        key: KEY.into(),
    });
    let running = collector::start(config).await.unwrap();
    let pem = std::fs::read(CERTIFICATE).unwrap();

    let trusted = reqwest::Certificate::from_pem(&pem).unwrap();
    let browser = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([trusted])
        .build()
        .unwrap();
    let log_in = browser
        .post(format!("{}/api/session", running.url()))
        .json(&serde_json::json!({ "token": ADMIN }));
    let response = log_in.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(
        response.headers()["set-cookie"]
            .to_str()
            .unwrap()
            .ends_with("; Secure")
    );
    assert!(response.headers().contains_key("strict-transport-security"));

    let endpoint = wire::telemetry::Endpoint::new(&running.url(), Some(&pem)).unwrap();
    let agent = Agent::over(&endpoint, ADMIN, Agent::hello("n1")).await.unwrap();
    assert!(agent.ack.credential.starts_with("lsn_"));
    running.shutdown().await;
}
