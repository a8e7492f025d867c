//! Queries and clients that are malicious or faulty: each gets a clear error or a normal answer, memory stays bounded, and samples are
//! still ingested.
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{ADMIN, Server, answer, until};
use crate::remote_write::{TimeSeries, push, series};

/// Number of hosts, and of samples per host, one per second.
const HOSTS: usize = 200;
const SAMPLES: i64 = 600;
/// With sub-queries of 950,400 steps, these are 10⁹ samples.
const MANY_HOSTS: usize = 1_100;
/// No single query here may use more memory than this, in bytes.
const RESIDENT_BYTES_MAX: u64 = 900 << 20;
/// Number of clients that disconnect early.
const CLIENTS: usize = 200;

async fn loaded(hosts: usize, samples: i64) -> (Arc<Server>, i64) {
    let server = Arc::new(Server::start().await);
    let end_ms = collector::clock::now_ms() / 1_000 * 1_000;
    let points: Vec<(i64, f64)> = (0..samples)
        .map(|n| (end_ms - (samples - 1 - n) * 1_000, n as f64))
        .collect();
    let hosts: Vec<TimeSeries> = (0..hosts)
        .map(|n| {
            series(
                &[("__name__", "load"), ("host", &format!("host-{n:04}"))],
                &points,
            )
        })
        .collect();
    assert_eq!(push(&server, &hosts).await.0, StatusCode::NO_CONTENT);
    (server, end_ms)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim()
        .strip_suffix("kB")
        .unwrap()
        .trim()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// Samples that are ingested all the time, how long each push took, and the highest memory use.
struct Ingest {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(Vec<Duration>, u64)>,
}

impl Ingest {
    fn begin(server: &Arc<Server>) -> Self {
        let (server, stop) = (Arc::clone(server), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut took, mut resident) = (Vec::new(), 0);
            while !stopped.load(Ordering::Relaxed) {
                let now_ms = collector::clock::now_ms();
                let one = series(&[("__name__", "heartbeat")], &[(now_ms, 1.0)]);
                let begin = Instant::now();
                assert_eq!(push(&server, &[one]).await.0, StatusCode::NO_CONTENT);
                took.push(begin.elapsed());
                resident = resident.max(resident_bytes());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (took, resident)
        });
        Self { stop, task }
    }

    /// Checks that acknowledgements were fast and memory was bounded.
    async fn was_undisturbed(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut took, resident) = self.task.await.unwrap();
        took.sort();
        let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
        println!(
            "{} pushes: median {median:?}, worst {worst:?}; {} MiB resident at most",
            took.len(),
            resident >> 20
        );
        assert!(median < Duration::from_millis(800), "{median:?}");
        assert!(worst < Duration::from_secs(8), "{worst:?}");
        assert!(resident < RESIDENT_BYTES_MAX, "{resident}");
    }
}

async fn ask(server: &Server, query: &str) -> (StatusCode, Value) {
    answer(
        server
            .request(Method::POST, "/api/v1/query")
            .form(&[("query", query)]),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_queries_get_a_clear_word_or_a_fair_answer() {
    let (server, _) = loaded(MANY_HOSTS, 60).await;
    let ingest = Ingest::begin(&server);
    let many = |part: &str, between: &str, count: usize| vec![part; count].join(between);
    let bad = Err("bad_data");
    for (query, expected, says) in [
        // 10⁹ samples and more.
        (
            "sum_over_time((load > 0)[11d:1s])".into(),
            Err("execution"),
            "too many samples",
        ),
        (
            "count(rate(load[11d:1s]))".into(),
            Err("execution"),
            "too many samples",
        ),
        (
            "max_over_time(max_over_time(max_over_time(load[1d:1s])[1d:1s])[2d:1s])".into(),
            Err("execution"),
            "too many samples",
        ),
        // Nesting and length.
        (
            format!("{}1{}", "(".repeat(8_000), ")".repeat(8_000)),
            bad,
            "levels of brackets",
        ),
        (
            format!("{}load{}", "sum(".repeat(4_000), ")".repeat(4_000)),
            bad,
            "bytes",
        ),
        (many("load", "+", 2_000), bad, "operators"),
        (format!("{}1", "-".repeat(8_000)), bad, "operators"),
        ("x".repeat(1 << 19), bad, "bytes"),
        // Regular expressions.
        (
            r#"load{host=~"(((a{100}){100}){100}){100}"}"#.into(),
            bad,
            "once compiled",
        ),
        (
            r#"label_replace(load, "x", "$1", "host", "(((a{100}){100}){100}){100}")"#.into(),
            Err("execution"),
            "regular expression",
        ),
        (
            r#"count(load{host=~"(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*x"})"#.into(),
            Ok("vector"),
            "",
        ),
        (
            r#"count(load{host=~"(h+o*)+.*(-+[0-9]*)+"})"#.into(),
            Ok("vector"),
            "",
        ),
        (
            r#"count(label_replace(load, "x", "$1", "host", "((((h|ho)+)+s?t?)+-?[0-9]+)+"))"#.into(),
            Ok("vector"),
            "",
        ),
        (
            format!("load{{{}}}", many(r#"host=~"[a-z]{500}[0-9]{500}""#, ",", 50)),
            Ok("vector"),
            "",
        ),
        (
            format!("load{{{}}}", many(r#"host=~"a.*""#, ",", 51)),
            bad,
            "regular expressions",
        ),
        // Labels that grow.
        (
            format!(
                r#"label_replace(load, "x", "{}", "host", "(.*)")"#,
                "$1".repeat(5_000)
            ),
            Err("execution"),
            "longer than",
        ),
        (
            format!(r#"label_join(load, "x", "", {})"#, many(r#""host""#, ",", 1_500)),
            Err("execution"),
            "longer than",
        ),
        // Odd numbers.
        ("count(topk(1e18, load))".into(), Ok("vector"), ""),
        ("quantile(NaN, load)".into(), Ok("vector"), ""),
        ("load offset -290000000y".into(), bad, ""),
        (
            r#"{__name__=~".+"} * on() group_left() {__name__=~".+"}"#.into(),
            Err("execution"),
            "many",
        ),
    ] {
        let begin = Instant::now();
        let (status, body) = ask(&server, &query).await;
        let shown: String = query.chars().take(80).collect();
        println!("{:>8.1?} {status} {shown}", begin.elapsed());
        let got = match body["errorType"].as_str() {
            Some(kind) => Err(kind),
            None => Ok(body["data"]["resultType"].as_str().unwrap()),
        };
        assert_eq!(got, expected, "{shown}: {body}");
        let said = body["error"].as_str().unwrap_or_default();
        assert!(said.contains(says) && said.len() < 4_096, "{shown}: {said}");
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{shown}: {:?}",
            begin.elapsed()
        );
    }
    ingest.was_undisturbed().await;
}

/// Opens a client with its own socket, which can do what HTTP libraries do not.
async fn open(server: &Server, path: &str, form: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.running.local_addr).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: lockstep\r\nauthorization: Bearer {ADMIN}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
        form.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// Checks that no query is in progress and nothing is held.
async fn at_rest(server: &Server, rest: (usize, u64)) {
    let evaluator = &server.running.app.evaluator;
    until("every slot and sample to be given back", async || {
        (evaluator.free() == rest).then_some(())
    })
    .await;
}

/// Returns a query that takes some seconds on one core.
fn long_query(end_ms: i64) -> String {
    let (start, end) = (end_ms / 1_000 - SAMPLES, end_ms / 1_000);
    format!("query=sum(quantile_over_time(0.5,load[10m]))&start={start}&end={end}&step=0.1")
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_early_leave_nothing_behind() {
    let (server, end_ms) = loaded(HOSTS, SAMPLES).await;
    let evaluator = server.running.app.evaluator.clone();
    let rest = evaluator.free();
    let (_, before) = server.get("/metrics").await;
    assert!(before.as_str().is_some());
    at_rest(&server, rest).await;
    let ingest = Ingest::begin(&server);
    let form = long_query(end_ms);

    // Some clients leave while their query is evaluated, most while it waits for a slot; further ones are rejected at once.
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(open(&server, "/api/v1/query_range", &form).await);
    }
    until("every slot to be taken", async || {
        (evaluator.free().0 == 0).then_some(())
    })
    .await;
    let rejected = until("one client too many", async || {
        let request = server
            .request(Method::POST, "/api/v1/query")
            .form(&[("query", "1")]);
        let response = tokio::time::timeout(Duration::from_millis(500), request.send()).await;
        let response = response.ok()?.unwrap();
        (response.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(response)
    })
    .await;
    assert_eq!(rejected.headers()["retry-after"], "1");
    let body: Value = rejected.json().await.unwrap();
    assert_eq!(body["errorType"], json!("unavailable"), "{body}");
    assert_eq!(
        ask(&server, "sum(").await.0,
        StatusCode::BAD_REQUEST,
        "what needs no slot is answered"
    );

    let begin = Instant::now();
    drop(clients);
    at_rest(&server, rest).await;
    println!(
        "{CLIENTS} clients left: all was given back after {:?}",
        begin.elapsed()
    );
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

    // These leave before their request is read.
    for _ in 0..CLIENTS {
        drop(open(&server, "/api/v1/query_range", &form).await);
    }
    at_rest(&server, rest).await;
    assert_eq!(ask(&server, "count(load)").await.0, StatusCode::OK);
    ingest.was_undisturbed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_answer_is_kept_until_it_is_read_or_abandoned() {
    let (server, end_ms) = loaded(HOSTS, SAMPLES).await;
    let evaluator = server.running.app.evaluator.clone();
    let rest = evaluator.free();
    let ingest = Ingest::begin(&server);
    let (start, end) = (end_ms / 1_000 - SAMPLES, end_ms / 1_000);
    let form = format!("query=load&start={start}&end={end}&step=0.1");

    // Clients that read the beginning and then nothing: the slots are free again, the samples are not.
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = open(&server, "/api/v1/query_range", &form).await;
        let mut head = [0; 512];
        client.read_exact(&mut head).await.unwrap();
        assert!(
            head.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&head)
        );
        clients.push(client);
    }
    until("the slots", async || (evaluator.free().0 == rest.0).then_some(())).await;
    let held = rest.1 - evaluator.free().1;
    assert!(held > 4 * 1_000_000, "{held} samples are held");
    assert_eq!(
        ask(&server, "count(load)").await.1["data"]["result"][0]["value"][1],
        "200"
    );

    // One of them continues to read, and gets the complete answer.
    let mut text = Vec::new();
    let last = clients.pop().unwrap();
    let (mut reading, _kept) = last.into_split();
    until("the end of the answer", async || {
        let mut piece = vec![0; 1 << 20];
        let read = reading.read(&mut piece).await.unwrap();
        text.extend_from_slice(&piece[..read]);
        text.ends_with(b"\r\n0\r\n\r\n").then_some(())
    })
    .await;
    assert!(text.len() > 10 << 20, "{}", text.len());

    drop(clients);
    at_rest(&server, rest).await;
    ingest.was_undisturbed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_queries_at_once_hold_no_more_than_two() {
    let (server, _) = loaded(HOSTS, SAMPLES).await;
    let rest = server.running.app.evaluator.free();
    let ingest = Ingest::begin(&server);
    // 40 million samples each, of the 100 million for all queries: two find room, and four wait for it.
    let queries = (0..6).map(|n| {
        let server = Arc::clone(&server);
        let query = format!("count(sum_over_time(load[{}s:1s]))", 200_000 + n);
        tokio::spawn(async move {
            let form = [("query", query.as_str()), ("timeout", "20s")];
            answer(server.request(Method::POST, "/api/v1/query").form(&form)).await
        })
    });
    let queries: Vec<_> = queries.collect();
    let mut answered = 0;
    for query in queries {
        let (status, body) = query.await.unwrap();
        let kind = body["errorType"].as_str();
        // Queries that find no room wait for it. On a slow machine some wait until their time limit.
        assert!(
            status == StatusCode::OK || kind == Some("timeout"),
            "{status} {body}"
        );
        answered += usize::from(status == StatusCode::OK);
    }
    println!("{answered} were answered");
    assert!(answered > 0);
    at_rest(&server, rest).await;
    ingest.was_undisturbed().await;
}
