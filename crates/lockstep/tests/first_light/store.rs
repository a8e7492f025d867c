//! `lockstep store`: a backup while samples arrive, restored elsewhere; bad archives; checks; exit codes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;

const MEMORY: &str = "gpu_memory_used_bytes{gpu=\"0\"}[10m]";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lockstep(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(arguments)
        .env_remove("LOCKSTEP_TOKEN")
        .env_remove("LOCKSTEP_DATA")
        .output()
        .unwrap()
}

/// A collector without an agent.
struct Collector(Child, String);

impl Collector {
    fn start(data: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["collector", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env_remove("LOCKSTEP_ADMIN_TOKEN")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says where it is").unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let url = first.strip_prefix("Lockstep is at ").unwrap().to_owned();
        Self(child, url)
    }

    fn samples(&self, data: &Path, selector: &str) -> Vec<(i64, f64)> {
        let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["query", selector, "--format", "json", "--url", &self.1])
            .env("LOCKSTEP_DATA", data)
            .env_remove("LOCKSTEP_TOKEN")
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let values = answer["data"]["result"][0]["values"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let sample = |pair: &Value| {
            let time_ms = (pair[0].as_f64().unwrap() * 1_000.0).round() as i64;
            (time_ms, pair[1].as_str().unwrap().parse().unwrap())
        };
        values.iter().map(sample).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _gone_already = self.0.wait();
    }
}

#[test]
fn a_backup_during_ingest_is_a_complete_store() {
    let cluster = Cluster::start();
    cluster.wait_for("ten samples", || {
        (cluster.samples(MEMORY).len() >= 10).then_some(())
    });
    let before = cluster.samples(MEMORY);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.tar");
    let (file, data) = (file.to_str().unwrap(), folder.path().join("data"));
    let made = cluster.lockstep(&["store", "backup", file]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stderr).contains("everything acknowledged before"));

    // A second backup does not replace the first without --force. A backup can also go to stdout.
    let refused = cluster.lockstep(&["store", "backup", file]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    let piped = cluster.lockstep(&["store", "backup", "-"]);
    assert!(
        piped.status.success() && piped.stdout.len() > 8_192,
        "{}",
        text(&piped.stderr)
    );
    let names = Command::new("tar").args(["tf", file]).output().unwrap();
    assert_eq!(text(&names.stdout), "backup.json\nlockstep.db\nstate.db\n");

    let restored = lockstep(&["store", "restore", file, "--data", data.to_str().unwrap()]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    let elsewhere = Collector::start(&data);
    let there = elsewhere.samples(&data, MEMORY);
    let lost: Vec<_> = before.iter().filter(|sample| !there.contains(sample)).collect();
    assert!(
        lost.is_empty(),
        "{lost:?} of {} were there before the backup",
        before.len()
    );

    // The folder is in use now.
    let in_use = lockstep(&[
        "store",
        "restore",
        file,
        "--force",
        "--data",
        data.to_str().unwrap(),
    ]);
    assert_eq!(in_use.status.code(), Some(1));
    assert!(
        text(&in_use.stderr).contains("used by another process"),
        "{}",
        text(&in_use.stderr)
    );
}

#[test]
fn damaged_archives_and_damaged_stores_are_reported() {
    let cluster = Cluster::start();
    cluster.wait_for("a sample", || (!cluster.samples(MEMORY).is_empty()).then_some(()));
    assert!(cluster.lockstep(&["store", "compact"]).status.success());
    let checked = cluster.lockstep(&["store", "check"]);
    assert!(
        checked.status.success(),
        "{}{}",
        text(&checked.stdout),
        text(&checked.stderr)
    );
    assert!(text(&checked.stdout).contains("no damage found"));
    let stats = cluster.lockstep(&["store", "stats"]);
    assert!(
        text(&stats.stdout).contains("samples in chunks"),
        "{}",
        text(&stats.stdout)
    );

    // Without a terminal there is no confirmation, so the command fails without --yes.
    let asked = cluster.lockstep(&["store", "delete", "gpu_memory_used_bytes"]);
    assert_eq!(asked.status.code(), Some(2), "{}", text(&asked.stderr));
    assert!(
        text(&asked.stderr).contains("2 series match"),
        "{}",
        text(&asked.stderr)
    );
    let before_ms = cluster.samples(MEMORY).last().unwrap().0;
    let end = format!("{}.{:03}", before_ms / 1_000, before_ms % 1_000);
    let deleted = cluster.lockstep(&["store", "delete", "gpu_memory_used_bytes", "--end", &end, "--yes"]);
    assert!(deleted.status.success(), "{}", text(&deleted.stderr));
    assert!(
        cluster
            .samples(MEMORY)
            .iter()
            .all(|(time_ms, _)| *time_ms > before_ms)
    );

    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("b.tar"), folder.path().join("data"));
    let data_text = data.to_str().unwrap();
    assert!(
        cluster
            .lockstep(&["store", "backup", file.to_str().unwrap()])
            .status
            .success()
    );
    let good = std::fs::read(&file).unwrap();
    let chunk = good.windows(3).position(|window| window == b"LCK").unwrap();
    let mut tampered = good.clone();
    tampered[chunk + 12] ^= 1;
    for (bytes, message) in [
        (&good[..good.len() / 2], "ends in the middle"),
        (&tampered, "SHA-256 differs"),
        (b"something else", "not a backup"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let output = lockstep(&["store", "restore", file.to_str().unwrap(), "--data", data_text]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
        assert!(!data.join("lockstep.db").exists(), "nothing was restored");
    }

    std::fs::write(&file, &good).unwrap();
    assert!(
        lockstep(&["store", "restore", file.to_str().unwrap(), "--data", data_text])
            .status
            .success()
    );
    let database = data.join("lockstep.db");
    let mut bytes = std::fs::read(&database).unwrap();
    // Damage all copies: SQLite leaves copies where rows have moved.
    for at in 0..bytes.len() - 12 {
        if &bytes[at..at + 3] == b"LCK" {
            bytes[at + 12] ^= 1;
        }
    }
    std::fs::write(&database, bytes).unwrap();
    let output = lockstep(&["store", "check", "--data", data_text]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("chunk") && stdout.contains("What to do:"),
        "{stdout}"
    );
    let json = lockstep(&["store", "check", "--data", data_text, "--format", "json"]);
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(report["chunks"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["problems_total"], report["chunks"], "{report}");
    let aside = lockstep(&["store", "check", "--data", data_text, "--set-damaged-aside"]);
    assert_eq!(
        aside.status.code(),
        Some(1),
        "it was damaged: {}",
        text(&aside.stdout)
    );
    let output = lockstep(&["store", "check", "--data", data_text]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn absurd_settings_and_absent_collectors_have_their_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    for (flags, message) in [
        (
            ["--retention", "1d", "--out-of-order", "2d"],
            "--out-of-order 2d is longer",
        ),
        (
            ["--retention", "1m", "--series-max", "5"],
            "--retention 1m is shorter",
        ),
        (
            ["--retention-size", "1MiB", "--retention", "1d"],
            "nothing useful fits",
        ),
        (
            ["--retention", "30d", "--retention-1m", "20d"],
            "not longer than --retention 30d",
        ),
        (["--min-free-space", "lots", "--retention", "1d"], "not a size"),
    ] {
        let output = lockstep(
            &[
                &["collector", "--listen", "127.0.0.1:0", "--data", data],
                &flags[..],
            ]
            .concat(),
        );
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    let nobody = [
        "--url",
        "http://127.0.0.1:9",
        "--token",
        "a-token-of-nobody-at-all",
    ];
    for command in [
        &["store", "check"][..],
        &["store", "backup", "-"],
        &["store", "stats"],
    ] {
        let output = lockstep(&[command, &nobody[..]].concat());
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    }
    let output = lockstep(&["store", "check", "--data", data]);
    assert_eq!(
        output.status.code(),
        Some(2),
        "an empty folder is no store: {}",
        text(&output.stderr)
    );
}
