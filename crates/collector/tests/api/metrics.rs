//! `/metrics`: the whole cluster in one scrape.

use domain::api::session::Role;
use reqwest::Method;

use crate::harness::{ADMIN, Agent, Server};
use crate::remote_write::{push, series};

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_one_clean_scrape() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    agent
        .define(
            "live",
            0,
            &[
                ("gpu_power_watts", "0"),
                ("gpu_energy_joules_total", "0"),
                ("train_loss", "0"),
            ],
        )
        .await;
    let now_ms = collector::clock::now_ms();
    agent.sample("live", 1, now_ms, &[311.5, 12.0, f64::NAN]).await;
    agent.acked("live", 1).await;
    push(
        &server,
        &[series(
            &[("__name__", "theirs"), ("node", "n1")],
            &[(now_ms, 1.0)],
        )],
    )
    .await;

    let scrape = server.token(Role::Scrape, None).await.token;
    let response = server
        .anonymous(Method::GET, "/metrics")
        .bearer_auth(scrape)
        .send()
        .await
        .unwrap();
    assert!(
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = response.text().await.unwrap();
    for line in [
        "# TYPE gpu_power_watts gauge",
        "gpu_power_watts{gpu=\"0\",node=\"n1\"} 311.5",
        "# TYPE gpu_energy_joules_total counter",
        "train_loss{gpu=\"0\",node=\"n1\"} NaN",
        "lockstep_agent_streams 1",
        "lockstep_ingest_batches_total 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in\n{text}"
        );
    }
    assert!(
        !text.contains("theirs"),
        "what others wrote is not given out again"
    );
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines() {
        let name = if line.starts_with('#') {
            line
        } else {
            line.rsplit_once(' ').unwrap().0
        };
        assert!(seen.insert(name.to_owned()), "{name} twice");
    }
}
