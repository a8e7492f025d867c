//! Starting: what is refused, and what is kept.

use std::os::unix::fs::PermissionsExt;

use collector::{Config, StartError};
use reqwest::{Method, StatusCode};

use crate::harness::{Server, client, config};

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
