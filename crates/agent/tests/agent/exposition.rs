//! A small reader of Prometheus text: enough to check every line of it.

use std::collections::HashMap;
use std::time::Duration;

use agent::AgentConfig;
use domain::metric::catalogue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, config, folder, simulated, until};

/// Every sample line by its series as written, checked against the catalogue.
pub(crate) fn parse(text: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let (mut helped, mut typed) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert_eq!(catalogue::find(name).unwrap().help, help);
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(catalogue::find(name).unwrap().kind.as_str(), kind);
            typed = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap();
            assert_eq!((name, name), (helped.as_str(), typed.as_str()), "{line}");
            check_labels(name, labels.strip_suffix('}').unwrap());
            assert!(
                samples
                    .insert(series.to_owned(), value.parse().unwrap())
                    .is_none(),
                "{series} twice"
            );
        }
    }
    samples
}

/// All labels are ones the catalogue knows, and `node` is there. (No label value of these tests holds a comma.)
fn check_labels(metric: &str, labels: &str) {
    let names: Vec<&str> = labels
        .split(',')
        .map(|label| label.split_once('=').unwrap().0)
        .collect();
    let known = catalogue::find(metric).unwrap().labels;
    assert!(names.contains(&"node"), "{metric}{{{labels}}}");
    assert!(
        names.iter().all(|name| *name == "node" || known.contains(name)),
        "{metric}{{{labels}}}"
    );
}

/// One request over a connection of its own, as a scraper makes it.
async fn get(address: std::net::SocketAddr, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

#[tokio::test]
async fn a_scrape_finds_the_latest_values() {
    let folder = folder();
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let nvml = simulated(folder.path(), "h100x2:healthy");
    let agent = Running::start(AgentConfig {
        nvml,
        metrics_listen: Some(free),
        metrics_required: true,
        ..config(folder.path())
    });
    let mut last = None;
    let deadline = std::time::Instant::now() + Duration::from_secs(15);
    while !last
        .as_ref()
        .is_some_and(|(_, body): &(String, String)| body.contains("gpu_power_watts{gpu=\"1\""))
    {
        assert!(std::time::Instant::now() < deadline, "no GPU in {last:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        last = get(free, "/metrics").await;
    }
    let (head, body) = last.unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    let samples = parse(
        &body
            .lines()
            .filter(|line| !is_chunk_size(line))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    assert_eq!(samples["gpu_up{gpu=\"1\",node=\"n1\"}"], 1.0);
    assert!(get(free, "/").await.unwrap().0.starts_with("HTTP/1.1 404"));
    agent.stop().await;
    until("the listener ends", Duration::from_secs(5), || {
        std::net::TcpListener::bind(free).is_ok()
    })
    .await;
}

/// A length-less answer would come in chunks, each headed by its size.
fn is_chunk_size(line: &str) -> bool {
    line.is_empty() || line.chars().all(|c| c.is_ascii_hexdigit())
}

#[tokio::test]
async fn a_taken_address_ends_only_an_agent_that_was_told_to_serve_there() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let told = |metrics_required| AgentConfig {
        metrics_listen: Some(taken.local_addr().unwrap()),
        metrics_required,
        ..config(folder.path())
    };
    let refused = agent::run(told(true), tokio_util::sync::CancellationToken::new()).await;
    assert!(
        refused.unwrap_err().to_string().contains("--metrics-listen"),
        "the message says what to do"
    );
    let agent = Running::start(told(false));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while agent::lock_holder(&folder.path().join("data")).is_none() {
        assert!(std::time::Instant::now() < deadline, "the agent does not run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    agent.stop().await;
}
