//! `promtool query` cannot distinguish this collector from a Prometheus: with the same samples, the same queries have the same output.
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

use std::path::PathBuf;
use std::process::Stdio;

use reqwest::StatusCode;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::harness::{ADMIN, Server, client, until};
use crate::remote_write::{TimeSeries, body, push, series};

/// A program of Debian's package `prometheus`: named by the environment variable, otherwise from the PATH.
fn program(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(name), PathBuf::from)
}

/// A Prometheus that accepts remote write and scrapes nothing.
struct Prometheus {
    url: String,
    _process: Child,
    _folder: TempDir,
}

impl Prometheus {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        std::fs::write(&config, "global: {}\n").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let process = Command::new(program("LOCKSTEP_TEST_PROMETHEUS", "prometheus"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--web.enable-remote-write-receiver")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus runs; `cargo xtask test --only rust` installs it, or `apt-get install prometheus`");
        let url = format!("http://{address}");
        until("Prometheus to be ready", async || {
            let ready = client().get(format!("{url}/-/ready")).send().await.ok()?;
            ready.status().is_success().then_some(())
        })
        .await;
        Self {
            url,
            _process: process,
            _folder: folder,
        }
    }

    async fn push(&self, series: &[TimeSeries]) {
        let request = client()
            .post(format!("{}/api/v1/write", self.url))
            .header("content-encoding", "snappy")
            .header("content-type", "application/x-protobuf")
            .header("x-prometheus-remote-write-version", "0.1.0")
            .body(body(series));
        let response = request.send().await.unwrap();
        assert!(
            response.status().is_success(),
            "{}",
            response.text().await.unwrap()
        );
    }
}

/// Returns promtool's output, whether it succeeded, and its error output.
async fn promtool(kind: &str, flags: &[&str], url: &str, query: &[&str]) -> (bool, String, String) {
    let output = Command::new(program("LOCKSTEP_TEST_PROMTOOL", "promtool"))
        .args(["query", kind])
        .args(flags)
        .arg(url)
        .args(query)
        .output()
        .await
        .expect("promtool runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Ten minutes with a sample every 10 s, half a second off the steps, in the order of labels: gauges with odd values, a counter with a
/// reset, a histogram, a series that ends.
fn everything(end_ms: i64) -> Vec<TimeSeries> {
    let times: Vec<i64> = (0..60).map(|n| end_ms - (59 - n) * 10_000 - 500).collect();
    let of = |value: &dyn Fn(usize) -> f64| -> Vec<(i64, f64)> {
        times.iter().enumerate().map(|(n, at)| (*at, value(n))).collect()
    };
    let mut all = Vec::new();
    for (le, share) in [("+Inf", 1.0), ("0.1", 0.25), ("0.5", 0.5), ("1", 0.9)] {
        let points = of(&|n| (n as f64 * 20.0 * share).floor());
        all.push(series(
            &[("__name__", "latency_seconds_bucket"), ("le", le)],
            &points,
        ));
    }
    for (host, scale) in [("a", 1.0), ("b", 0.125), ("c\"d\\e \u{3c0}", 2.0_f64.powi(-30))] {
        let points = of(&|n| (n as f64).mul_add(scale, 0.25));
        all.push(series(
            &[("__name__", "load"), ("host", host), ("rack", "r1")],
            &points,
        ));
    }
    for (kind, value) in [
        ("inf", f64::INFINITY),
        ("large", 1.5e22),
        ("nan", f64::NAN),
        ("small", -2.5e-9),
    ] {
        all.push(series(&[("__name__", "odd"), ("kind", kind)], &of(&|_| value)));
    }
    all.push(series(
        &[("__name__", "requests_total"), ("host", "a")],
        &of(&|n| (n % 37) as f64 * 3.0),
    ));
    all.push(series(&[("__name__", "short_lived")], &of(&|n| n as f64)[..10]));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_gets_the_same_text_from_both() {
    let (server, prometheus) = (Server::start().await, Prometheus::start().await);
    let end_ms = collector::clock::now_ms() / 1_000 * 1_000;
    let all = everything(end_ms);
    assert_eq!(push(&server, &all).await.0, StatusCode::NO_CONTENT);
    prometheus.push(&all).await;
    let ours = server
        .running
        .url()
        .replacen("http://", &format!("http://me:{ADMIN}@"), 1);
    let (start, end) = ((end_ms / 1_000 - 600).to_string(), (end_ms / 1_000).to_string());
    let at = format!("--time={end}");
    let (from, to) = (format!("--start={start}"), format!("--end={end}"));

    let mut asked: Vec<(&str, Vec<&str>, Vec<&str>)> = Vec::new();
    for query in [
        "load",
        "odd",
        "{__name__=~\"load|requests_total\",host=\"a\"}",
        "sum by (rack) (load)",
        "rate(requests_total[1m])",
        "increase(requests_total[5m])",
        "load[35s]",
        "histogram_quantile(0.9, rate(latency_seconds_bucket[2m]))",
        "topk(2, load)",
        "sort_desc(load)",
        "load / on(host) group_left() requests_total",
        "absent(nothing)",
        "short_lived",
        "short_lived offset 5m",
        "nothing",
        "1+1",
        "1/0",
        "vector(time())",
        "label_replace(load, \"x\", \"$1-y\", \"host\", \"(a|b)\")",
    ] {
        asked.push(("instant", vec![&at], vec![query]));
        asked.push(("instant", vec![&at, "--format=json"], vec![query]));
    }
    for query in [
        "load",
        "odd",
        "rate(requests_total[1m])",
        "avg_over_time(load[45s])",
        "short_lived",
        "3",
        "nothing",
        "count(load) by (rack)",
    ] {
        asked.push(("range", vec![&from, &to, "--step=15s"], vec![query]));
        asked.push((
            "range",
            vec![&from, &to, "--step=1m", "--format=json"],
            vec![query],
        ));
    }
    for flags in [
        vec!["--match=load"],
        vec!["--match=load{host=\"a\"}", "--match=odd"],
        vec!["--match=nothing"],
        vec!["--match={host=~\".+\"}", "--format=json"],
    ] {
        asked.push(("series", flags.clone(), vec![]));
        asked.push(("series", [flags, vec![&from, &to]].concat(), vec![]));
    }
    for name in ["__name__", "host", "kind", "none"] {
        asked.push(("labels", vec![], vec![name]));
        asked.push((
            "labels",
            vec!["--match=load", &from, &to, "--format=json"],
            vec![name],
        ));
    }
    let (count, mut differ) = (asked.len(), Vec::new());
    for (kind, flags, query) in asked {
        let theirs = promtool(kind, &flags, &prometheus.url, &query).await;
        let mine = promtool(kind, &flags, &ours, &query).await;
        assert!(theirs.0, "{kind} {flags:?} {query:?}: {}", theirs.2);
        if mine != theirs {
            differ.push(format!(
                "{kind} {flags:?} {query:?}\ntheirs {theirs:?}\nours   {mine:?}"
            ));
        }
    }
    assert!(
        differ.is_empty(),
        "{} of {count} differ:\n{}",
        differ.len(),
        differ.join("\n")
    );
    println!("{count} questions had the same answers");

    // Errors have the same text, except for the position in the query.
    for (kind, flags, query) in [
        ("instant", vec![], vec!["sum("]),
        ("instant", vec![], vec!["load * on() load"]),
        (
            "range",
            vec![&*from, &to, "--step=1s", "--format=json"],
            vec!["load[5m]"],
        ),
        ("series", vec!["--match=sum(x)"], vec![]),
    ] {
        let theirs = promtool(kind, &flags, &prometheus.url, &query).await;
        let mine = promtool(kind, &flags, &ours, &query).await;
        println!("theirs: {}ours:   {}", theirs.2, mine.2);
        assert!(!theirs.0 && !mine.0, "{query:?}");
        let kind_of = |said: &str| {
            said.split(": ")
                .take(2)
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(kind_of(&mine.2), kind_of(&theirs.2), "{query:?}");
    }
}
