//! `lockstep demo` as a new user runs it: it is ready at once, the collector finds the faults, and nothing is left behind.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::product::api::Api;
use crate::product::environment::program;
use crate::product::process::signal;

/// Time until the address is printed. In a release build on an idle machine it is two seconds; another test runs beside this one.
const READY_WITHIN: Duration = Duration::from_secs(40);
/// The last fault begins 45 s after the first step and is found within a few seconds. This only ends a test that waits in vain.
const FOUND_WITHIN: Duration = Duration::from_secs(240);

struct Demo {
    child: Child,
    url: String,
}

impl Demo {
    fn start(folder: &std::path::Path) -> Self {
        let mut child = Command::new(program())
            .args(["demo", "--listen", "127.0.0.1:0"])
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let url = lines.find_map(|line| {
            line.trim()
                .strip_prefix("Dashboard")
                .map(|url| url.trim().to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            url: url.expect("the demo says where its dashboard is"),
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

#[test]
fn the_demo_shows_each_culprit_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut demo = Demo::start(folder.path());
    assert!(begun.elapsed() < READY_WITHIN, "{:?}", begun.elapsed());
    let left = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let [data] = &left()[..] else {
        panic!("one data folder: {:?}", left());
    };
    let api = Api::new(demo.url.clone(), data);

    let expected = [
        ("StragglerRank", "17"),
        ("RankStuck", "3"),
        ("GpuFault", ""),
        ("RunRestarted", ""),
    ];
    let mut found = Value::Null;
    let is_found = |found: &Value, (rule, rank): (&str, &str)| {
        let all = found.as_array().into_iter().flatten();
        let mut of_rule = all.filter(|one| one["rule"] == rule).peekable();
        of_rule.peek().is_some()
            && of_rule.all(|one| one["labels"]["rank"].as_str().unwrap_or_default() == rank)
    };
    while !expected.iter().all(|one| is_found(&found, *one)) {
        assert!(begun.elapsed() < FOUND_WITHIN, "{found:#}");
        std::thread::sleep(Duration::from_millis(500));
        found = api.get("/api/diagnoses");
    }
    let gpus = api.get("/api/gpus");
    let gpus = gpus.as_array().unwrap();
    assert_eq!(gpus.len(), 64);
    assert!(
        gpus.iter().all(|gpu| gpu["simulated"] == true),
        "marked as simulated"
    );

    signal(i32::try_from(demo.child.id()).unwrap(), "TERM");
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert_eq!(left(), Vec::<PathBuf>::new());
}

#[test]
fn the_demo_refuses_to_be_public() {
    let refused = Command::new(program())
        .args(["demo", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("loopback"), "{text}");
}
