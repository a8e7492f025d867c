//! A small parser of Prometheus text, which checks every line.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agent::config::{HostLabel, TlsFiles};
use agent::{AgentConfig, MetricsConfig};
use domain::metric::catalogue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, WAIT_MAX, config, folder, simulated, until};

/// Returns every sample by its series as written, checked against the catalogue.
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

/// Returns all values that an agent reads of simulated GPUs at one time.
pub(crate) async fn read_once(spec: &str) -> HashMap<String, f64> {
    let folder = folder();
    let config = AgentConfig {
        nvml: simulated(folder.path(), spec),
        ..config(folder.path())
    };
    parse(&agent::once(config).await.unwrap())
}

/// Checks that all labels are in the catalogue and that `node` is present. (No label value in these tests contains a quotation mark.)
fn check_labels(metric: &str, labels: &str) {
    let names: Vec<&str> = labels
        .split("\",")
        .map(|label| label.split_once('=').unwrap().0)
        .collect();
    let known = catalogue::find(metric).unwrap().labels;
    assert!(names.contains(&"node"), "{metric}{{{labels}}}");
    assert!(
        names.iter().all(|name| *name == "node" || known.contains(name)),
        "{metric}{{{labels}}}"
    );
}

/// Sends one request over a new connection, as a scraper does.
async fn get(address: SocketAddr, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// A configuration that serves at this address, or fails.
fn listening(address: SocketAddr) -> MetricsConfig {
    MetricsConfig {
        listen: Some(address),
        required: true,
        ..MetricsConfig::default()
    }
}

/// Returns an address that was free just now.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Creates a client. All tests of the process share the crypto provider that was installed first.
fn client() -> reqwest::ClientBuilder {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}

/// Returns the content type and the text of a page when it contains `word`: readers add their values one after another.
async fn page(client: &reqwest::Client, url: &str, header: (&str, &str), word: &str) -> (String, String) {
    let deadline = Instant::now() + WAIT_MAX;
    let mut last = String::new();
    while Instant::now() < deadline {
        if let Ok(answer) = client.get(url).header(header.0, header.1).send().await {
            let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
            last = answer.text().await.unwrap();
            if last.contains(word) {
                return (kind, last);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no {word} on {url}: {last}");
}

#[tokio::test]
async fn a_page_is_openmetrics_on_request_and_contains_the_requested_series() {
    let (folder, free) = (folder(), free_address());
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x2:healthy"),
        metrics: listening(free),
        ..config(folder.path())
    });
    let client = client().build().unwrap();
    let accept = (
        "accept",
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    );
    let url = format!("http://{free}/metrics");
    let (kind, text) = page(&client, &url, accept, "gpu_energy_joules_total{gpu=\"1\"").await;
    assert!(
        kind.starts_with("application/openmetrics-text; version=1.0.0"),
        "{kind}"
    );
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(
        text.contains("# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n"),
        "{text}"
    );
    assert!(
        text.contains("\ngpu_energy_joules_total{gpu=\"1\",node=\"n1\"} "),
        "{text}"
    );
    assert!(!text.contains("gpu_process_memory_bytes"), "{text}");

    let url_of_some = format!("{url}?collect[]=gpu_power&collect[]=gpu_process");
    let (_, some) = page(
        &client,
        &url_of_some,
        ("accept", "*/*"),
        "gpu_power_watts{gpu=\"1\"",
    )
    .await;
    let families: Vec<&str> = some
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    assert!(
        families
            .iter()
            .all(|family| family.starts_with("gpu_power") || family.starts_with("gpu_process")),
        "{families:?}"
    );
    let all = format!("{url}?all=1");
    page(&client, &all, ("accept", "*/*"), "gpu_process_memory_bytes{").await;
    let wrong = client.get(format!("{url}?collect[]=gpus")).send().await.unwrap();
    assert_eq!(wrong.status(), 400);
    assert!(wrong.text().await.unwrap().contains("gpus"));
    agent.stop().await;
}

#[tokio::test]
async fn clients_that_are_silent_or_send_too_much_delay_no_scraper() {
    let (folder, free) = (folder(), free_address());
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x2:healthy"),
        metrics: listening(free),
        ..config(folder.path())
    });
    let url = format!("http://{free}/metrics");
    page(&client().build().unwrap(), &url, ("accept", "*/*"), "gpu_up").await;
    // More connections than the agent allows per address: the oldest ones are closed.
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(TcpStream::connect(free).await.unwrap());
    }
    let (head, _) = get(free, "/metrics").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let closed = tokio::time::timeout(Duration::from_secs(5), silent[0].read(&mut [0])).await;
    assert!(
        matches!(closed, Ok(Ok(0) | Err(_))),
        "the oldest gave way: {closed:?}"
    );
    let (head, _) = get(free, &format!("/{}", "x".repeat(8_192))).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    agent.stop().await;
}

#[tokio::test]
async fn metrics_are_served_over_https_and_only_with_the_token() {
    let (folder, free) = (folder(), free_address());
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../collector/tests/data");
    let cert = format!("{data}/tls-cert.pem");
    let token = folder.path().join("metrics.token");
    std::fs::write(&token, "of-the-scraper\n").unwrap();
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x2:healthy"),
        metrics: MetricsConfig {
            tls: Some(TlsFiles {
                cert: cert.clone().into(),
                key: format!("{data}/tls-key.pem").into(),
            }),
            token_file: Some(token),
            ..listening(free)
        },
        ..config(folder.path())
    });
    let authority = reqwest::Certificate::from_pem(&std::fs::read(&cert).unwrap()).unwrap();
    let client = client().tls_certs_only([authority]).build().unwrap();
    let url = format!("https://{free}/metrics");
    let good = ("authorization", "Bearer of-the-scraper");
    page(&client, &url, good, "gpu_up{gpu=\"1\",node=\"n1\"} 1\n").await;
    for wrong in [
        "",
        "Bearer of-the-scrape",
        "Bearer of-the-scraper2",
        "Basic of-the-scraper",
    ] {
        let refused = client
            .get(&url)
            .header("authorization", wrong)
            .send()
            .await
            .unwrap();
        assert_eq!(refused.status(), 401, "{wrong:?}");
        assert!(!refused.text().await.unwrap().contains("gpu_up"));
    }
    let plain = client.get(format!("http://{free}/metrics")).send().await;
    assert!(
        plain.is_err() || plain.unwrap().status() != 200,
        "no page without TLS"
    );
    agent.stop().await;
}

#[tokio::test]
async fn simulated_gpus_have_dcgm_s_names_labels_and_units() {
    let (folder, free) = (folder(), free_address());
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x2:healthy"),
        metrics: MetricsConfig {
            dcgm_names: Some(HostLabel::Upper),
            ..listening(free)
        },
        ..config(folder.path())
    });
    let client = client().build().unwrap();
    let url = format!("http://{free}/metrics");
    let accept = ("accept", "application/openmetrics-text");
    let only = format!("{url}?collect[]=DCGM_FI");
    // This value of a GPU appears last, because it needs two readings.
    let (_, only) = page(
        &client,
        &only,
        accept,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu=\"1\"",
    )
    .await;
    let lines: Vec<&str> = only.lines().filter(|line| !line.starts_with('#')).collect();
    for line in &lines {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let names: Vec<&str> = labels
            .split("\",")
            .map(|label| label.split_once('=').unwrap().0)
            .collect();
        let expected = [
            "gpu",
            "UUID",
            "pci_bus_id",
            "device",
            "modelName",
            "Hostname",
            "DCGM_FI_DRIVER_VERSION",
        ];
        assert_eq!(names[..7], expected, "{line}");
        assert!(
            name.starts_with("DCGM_FI_") && value.parse::<f64>().unwrap().is_finite(),
            "{line}"
        );
    }
    let value = |name: &str| -> f64 {
        let line = lines
            .iter()
            .find(|line| line.starts_with(&format!("{name}{{gpu=\"1\"")));
        line.unwrap_or_else(|| panic!("no {name}: {only}"))
            .rsplit_once(' ')
            .unwrap()
            .1
            .parse()
            .unwrap()
    };
    assert!((60.0..750.0).contains(&value("DCGM_FI_DEV_POWER_USAGE")));
    assert!((1_000.0..90_000.0).contains(&value("DCGM_FI_DEV_FB_USED")));
    assert!((300.0..2_000.0).contains(&value("DCGM_FI_DEV_SM_CLOCK")));
    assert!((0.0..=100.0).contains(&value("DCGM_FI_DEV_GPU_UTIL")));
    assert!((0.0..=1.0).contains(&value("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")));
    let (kind, both) = page(&client, &url, accept, "\nDCGM_FI_DEV_GPU_TEMP{").await;
    assert!(
        kind.starts_with("text/plain; version=0.0.4") && both.contains("\ngpu_up{"),
        "{kind} {both}"
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_scrape_finds_the_latest_values() {
    let (folder, free) = (folder(), free_address());
    let nvml = simulated(folder.path(), "h100x2:healthy");
    let agent = Running::start(AgentConfig {
        nvml,
        metrics: listening(free),
        ..config(folder.path())
    });
    let mut last = None;
    let deadline = Instant::now() + WAIT_MAX;
    while !last
        .as_ref()
        .is_some_and(|(_, body): &(String, String)| body.contains("gpu_power_watts{gpu=\"1\""))
    {
        assert!(Instant::now() < deadline, "no GPU in {last:?}");
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
    until("the listener ends", || std::net::TcpListener::bind(free).is_ok()).await;
}

/// A response without a length is sent in chunks, each preceded by its size.
fn is_chunk_size(line: &str) -> bool {
    line.is_empty() || line.chars().all(|c| c.is_ascii_hexdigit())
}

#[tokio::test]
async fn an_address_in_use_stops_only_an_agent_that_requires_it() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config_with = |required| AgentConfig {
        metrics: MetricsConfig {
            required,
            ..listening(taken.local_addr().unwrap())
        },
        ..config(folder.path())
    };
    let refused = agent::run(config_with(true), tokio_util::sync::CancellationToken::new()).await;
    assert!(
        refused.unwrap_err().to_string().contains("--metrics-listen"),
        "the message says what to do"
    );
    let agent = Running::start(config_with(false));
    let deadline = Instant::now() + WAIT_MAX;
    while agent::lock_holder(&folder.path().join("data")).is_none() {
        assert!(Instant::now() < deadline, "the agent does not run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    agent.stop().await;
}
