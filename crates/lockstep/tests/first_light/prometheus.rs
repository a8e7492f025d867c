//! Prometheus as a peer: it scrapes both `/metrics` without a warning, and its tools read Lockstep's output.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;

/// A program of Debian's package `prometheus`: the one that the variable names, or the one on the PATH.
fn program(variable: &str, name: &str) -> PathBuf {
    let found = std::env::var_os(variable).map_or_else(|| PathBuf::from(name), PathBuf::from);
    let runs = Command::new(&found)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        runs,
        "{name} does not run; `cargo xtask test --only rust` installs it, or `apt-get install prometheus`"
    );
    found
}

/// A Prometheus that scrapes a cluster's collector and the agent beside it every second. It ends when dropped.
pub(crate) struct Prometheus {
    process: Child,
    url: String,
    log: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _gone_already = self.process.wait();
    }
}

impl Prometheus {
    pub(crate) fn scraping(cluster: &Cluster) -> Self {
        let made = cluster.lockstep(&["token", "create", "--role", "scrape"]);
        let token = cluster.data_dir().join("scrape.token");
        std::fs::write(&token, made.stdout.trim_ascii()).unwrap();
        let agent = cluster.agent_metrics();
        let agent = agent
            .strip_prefix("http://")
            .and_then(|url| url.strip_suffix("/metrics"))
            .unwrap();
        let collector = cluster.url.strip_prefix("http://").unwrap();
        let config = cluster.data_dir().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n\
             - {{ job_name: collector, honor_labels: true, authorization: {{ credentials_file: {} }}, static_configs: [{{ targets: ['{collector}'] }}] }}\n\
             - {{ job_name: agent, honor_labels: true, static_configs: [{{ targets: ['{agent}'] }}] }}\n",
            token.display()
        );
        std::fs::write(&config, text).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let log = cluster.data_dir().join("prometheus.log");
        let process = Command::new(program("LOCKSTEP_TEST_PROMETHEUS", "prometheus"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                cluster.data_dir().join("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let url = format!("http://{address}");
        Self { process, url, log }
    }

    /// Returns the response to an instant query; `null` if Prometheus does not answer.
    pub(crate) fn answer(&self, query: &str) -> Value {
        let url = format!("{}/api/v1/query", self.url);
        let query = format!("query={query}");
        let output = Command::new("curl")
            .args(["-s", "-G", &url, "--data-urlencode", &query])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn ask(&self, query: &str) -> Vec<Value> {
        let answer = self.answer(query);
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

#[test]
fn prometheus_scrapes_collector_and_agent_without_a_warning() {
    let cluster = Cluster::start();
    let prometheus = Prometheus::scraping(&cluster);
    cluster.wait_for("Prometheus to have scraped both, several times", || {
        let good = prometheus.ask("sum_over_time(up[1m])");
        let often = |target: &Value| {
            target["value"][1]
                .as_str()
                .and_then(|n| n.parse::<f64>().ok())
                .unwrap_or(0.0)
                >= 4.0
        };
        (good.len() == 2 && good.iter().all(often)).then_some(())
    });
    for job in ["collector", "agent"] {
        assert_eq!(
            prometheus
                .ask(&format!("gpu_memory_total_bytes{{job=\"{job}\"}}"))
                .len(),
            2,
            "two simulated GPUs by {job}"
        );
    }
    let log = std::fs::read_to_string(&prometheus.log).unwrap();
    let complaints: Vec<_> = log
        .lines()
        .filter(|line| line.contains("level=warn") || line.contains("level=error"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn promtool_accepts_the_exposed_metrics() {
    let cluster = Cluster::start();
    let text = cluster.wait_for("the agent's samples on /metrics", || {
        let text = cluster.text("/metrics");
        text.contains("# TYPE gpu_memory_used_bytes gauge")
            .then_some(text)
    });
    check_metrics(&text);
    let agent = format!("{}?all=1", cluster.agent_metrics());
    check_metrics(&cluster.text_at(&agent));
}

fn check_metrics(text: &str) {
    let promtool = program("LOCKSTEP_TEST_PROMTOOL", "promtool");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
