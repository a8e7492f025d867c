//! Backups, checks and full disks, from the operator's view.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::api::session::Role;
use domain::api::store::{CheckLine, CheckReport, StoreStats};
use reqwest::{Method, StatusCode};
use store::restore::{RestoreError, restore};
use tempfile::TempDir;
use wire::proto::telemetry_down;

use crate::harness::{ADMIN, Agent, Server, answer, config, until};
use crate::remote_write::{push, series};

const POWER: &str = "gpu_power_watts";

fn now_ms() -> i64 {
    collector::clock::now_ms()
}

pub(crate) async fn backup(server: &Server) -> Vec<u8> {
    let response = server
        .request(Method::GET, "/api/store/backup")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let said: usize = response.headers()["content-length"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let archive = response.bytes().await.unwrap().to_vec();
    assert_eq!(archive.len(), said, "the length is told before");
    archive
}

async fn restored(archive: Vec<u8>) -> Server {
    let folder = tempfile::tempdir().unwrap();
    restore(Cursor::new(archive), folder.path(), false, now_ms(), &|_| ())
        .await
        .unwrap();
    Server::start_in(folder).await
}

/// Returns all samples of a series, as the API prints them.
async fn samples(server: &Server, selector: &str, at_ms: i64) -> Vec<serde_json::Value> {
    let request = server.request(Method::GET, "/api/v1/query").query(&[
        ("query", selector.to_owned()),
        ("time", format!("{}", at_ms as f64 / 1_000.0)),
    ]);
    let (status, body) = answer(request).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let values = &body["data"]["result"][0]["values"];
    values.as_array().cloned().unwrap_or_default()
}

// === backup ===

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_during_ingest_holds_every_sample_acknowledged_before() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    agent.define("live", 0, &[(POWER, "0"), (POWER, "1")]).await;
    let start_ms = now_ms() - 600_000;
    let time_ms = |seq: u64| start_ms + seq as i64 * 100;
    for seq in 1..=200 {
        agent
            .sample("live", seq, time_ms(seq), &[seq as f64 * 0.25, -1.0])
            .await;
    }
    agent.acked("live", 200).await;
    // More samples arrive while the archive is written and sent.
    let outgoing = async {
        for seq in 201..=600 {
            agent
                .sample("live", seq, time_ms(seq), &[seq as f64 * 0.25, -1.0])
                .await;
        }
    };
    let (archive, ()) = tokio::join!(backup(&server), outgoing);
    agent.acked("live", 600).await;

    let copy = restored(archive).await;
    let selector = format!("{POWER}{{gpu=\"0\"}}[2m]");
    let (all, there) = (
        samples(&server, &selector, time_ms(600)).await,
        samples(&copy, &selector, time_ms(600)).await,
    );
    assert_eq!(all.len(), 600);
    assert!(there.len() >= 200, "{} samples", there.len());
    assert_eq!(
        there,
        all[..there.len()],
        "what is there is what was sent, without a hole"
    );

    // An agent that did not receive its last acknowledgements sends the batches again, and nothing is lost or duplicated.
    let mut again = Agent::connect(&copy, ADMIN, "n1").await.unwrap();
    again.define("live", 0, &[(POWER, "0"), (POWER, "1")]).await;
    for seq in 150..=600 {
        again
            .sample("live", seq, time_ms(seq), &[seq as f64 * 0.25, -1.0])
            .await;
    }
    again.acked("live", 600).await;
    assert_eq!(samples(&copy, &selector, time_ms(600)).await, all);
    assert!(
        !server.folder.path().join("backup-in-progress").exists(),
        "the copy is gone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_keeps_tokens_and_events_and_is_for_the_admin_only() {
    let server = Server::start().await;
    let viewer = server.token(Role::Viewer, None).await.token;
    let operator = server.token(Role::Operator, None).await.token;
    for token in [&viewer, &operator] {
        let request = server
            .anonymous(Method::GET, "/api/store/backup")
            .bearer_auth(token);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    }
    let archive = backup(&server).await;
    let (_, audit) = server.get("/api/audit").await;
    assert_eq!(audit[0]["what"], "store_backup", "{audit}");
    assert!(
        !archive
            .windows(ADMIN.len())
            .any(|window| window == ADMIN.as_bytes()),
        "no token in clear"
    );

    let copy = restored(archive).await;
    let request = copy.anonymous(Method::GET, "/api/nodes").bearer_auth(&viewer);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_archive_restores_nothing_and_a_used_folder_is_left_alone() {
    let server = Server::start().await;
    let good = backup(&server).await;
    let refused = async |archive: &[u8], folder: &Path, force: bool| {
        let archive = Cursor::new(archive.to_vec());
        restore(archive, folder, force, now_ms(), &|_| ())
            .await
            .err()
            .unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let error = refused(&good[..good.len() / 2], folder.path(), false)
        .await
        .to_string();
    assert!(error.contains("ends in the middle"), "{error}");
    let mut bad = good.clone();
    *bad.iter_mut().rev().nth(20_000).unwrap() ^= 1;
    let error = refused(&bad, folder.path(), false).await.to_string();
    assert!(error.contains("SHA-256 differs"), "{error}");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["lock"], "nothing is left behind");

    let error = refused(&good, server.folder.path(), true).await;
    assert!(matches!(error, RestoreError::Open(_)), "{error}");

    std::fs::write(folder.path().join("lockstep.db"), "mine").unwrap();
    std::fs::write(folder.path().join("admin.token"), "mine").unwrap();
    let error = refused(&good, folder.path(), false).await;
    assert!(matches!(error, RestoreError::NotEmpty { .. }), "{error}");
    let done = restore(Cursor::new(good), folder.path(), true, now_ms(), &|_| ())
        .await
        .unwrap();
    let aside = done.aside.unwrap().join("lockstep.db");
    assert_eq!(
        std::fs::read_to_string(aside).unwrap(),
        "mine",
        "moved, not deleted"
    );
    let token = folder.path().join("admin.token");
    assert_eq!(std::fs::read_to_string(token).unwrap(), "mine", "not touched");
}

// === check ===

async fn check(server: &Server, query: &str) -> CheckReport {
    let response = server
        .request(Method::GET, &format!("/api/store/check{query}"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.unwrap();
    let last = text.lines().last().unwrap();
    match serde_json::from_str(last).unwrap() {
        CheckLine::Report(report) => report,
        other => panic!("the report comes last, not {other:?}"),
    }
}

/// A collector with 300 samples of one series, half of them sealed. They are written without an agent, because a node would add its own
/// series.
async fn filled() -> Server {
    let server = Server::start().await;
    let start_ms = now_ms() - 600_000;
    let labels = [("__name__", POWER), ("node", "n1"), ("gpu", "0")];
    let points = |seqs: std::ops::RangeInclusive<i64>| {
        seqs.map(|seq| (start_ms + seq * 1_000, (seq as f64).sin()))
            .collect::<Vec<_>>()
    };
    let (status, body) = push(&server, &[series(&labels, &points(1..=150))]).await;
    assert!(status.is_success(), "{body}");
    let compact = server.request(Method::POST, "/api/store/compact");
    assert_eq!(compact.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let (status, body) = push(&server, &[series(&labels, &points(151..=300))]).await;
    assert!(status.is_success(), "{body}");
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_reads_everything_and_finds_a_flipped_bit() {
    let server = filled().await;
    let report = check(&server, "?full=true").await;
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(report.full);
    // The collector's own `node_up` may already exist.
    assert!(
        report.series >= 1 && report.groups >= 1 && report.samples >= 150,
        "{report:?}"
    );
    assert!(report.batch_samples >= 150, "{report:?}");

    let viewer = server.token(Role::Viewer, None).await.token;
    let request = server
        .anonymous(Method::GET, "/api/store/check")
        .bearer_auth(viewer);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN);

    let Server { running, folder, .. } = server;
    running.shutdown().await;
    flip_a_bit_of_a_chunk(folder.path());
    let offline = store::check::check_folder(folder.path(), false, &|_| ())
        .await
        .unwrap();
    let server = Server::start_in(folder).await;
    for report in [offline, check(&server, "").await] {
        assert_eq!(report.problems_total, 1, "{:?}", report.problems);
        let problem = &report.problems[0];
        assert!(
            problem.place.contains("gpu_power_watts") && problem.place.contains("n1"),
            "{problem:?}"
        );
        assert!(
            problem.what.contains("damaged") && !problem.advice.is_empty(),
            "{problem:?}"
        );
    }
    // Everything else works.
    let (status, _) = server.get("/api/nodes").await;
    assert_eq!(status, StatusCode::OK);
}

/// A chunk begins with its magic number; the rest is covered by its checksum.
fn flip_a_bit_of_a_chunk(folder: &Path) {
    let path = folder.join("lockstep.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let chunk = bytes.windows(3).position(|window| window == b"LCK").unwrap();
    bytes[chunk + 12] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_deletes_series_and_the_audit_log_records_it() {
    let server = filled().await;
    let mut agent = Agent::connect(&server, ADMIN, "n2").await.unwrap();
    agent.define("live", 0, &[(POWER, "0")]).await;
    agent.sample("live", 1, now_ms(), &[7.0]).await;
    agent.acked("live", 1).await;
    let delete = |token: &str, query: &[(&str, &str)]| {
        let request = server.anonymous(Method::POST, "/api/v1/admin/tsdb/delete_series");
        answer(request.bearer_auth(token).query(query))
    };
    let operator = server.token(Role::Operator, None).await.token;
    let n1 = [("match[]", "gpu_power_watts{node=\"n1\"}")];
    assert_eq!(delete(&operator, &n1).await.0, StatusCode::FORBIDDEN);
    for wrong in [&[][..], &[("match[]", "{")], &[("match[]", "{x=~\".*\"}")]] {
        let (status, body) = delete(ADMIN, wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    }
    let all = format!("count by (node) (count_over_time({POWER}[20m]))");
    assert_eq!(server.query(&all, now_ms()).await.len(), 2);

    assert_eq!(delete(ADMIN, &n1).await.0, StatusCode::NO_CONTENT);
    let left = server.query(&all, now_ms()).await;
    assert_eq!((left.len(), &left[0].0["node"]), (1, &serde_json::json!("n2")));
    let (_, audit) = server.get("/api/audit").await;
    assert_eq!(audit[0]["what"], "store_delete", "{audit}");
    assert!(
        audit[0]["target"].as_str().unwrap().contains("node=\"n1\""),
        "{audit}"
    );
    let report = check(&server, "").await;
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_count_what_is_stored() {
    let server = filled().await;
    let (status, body) = server.get("/api/store/stats").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let stats: StoreStats = serde_json::from_value(body).unwrap();
    assert_eq!((stats.series, stats.chunk_samples), (1, 150));
    assert!(stats.head_bytes >= 150 * 8, "{stats:?}");
    assert!(stats.bytes_per_sample.unwrap() > 0.5 && stats.file_bytes > stats.chunk_bytes);
    assert_eq!(stats.newest_ms.unwrap() - stats.oldest_ms.unwrap(), 299_000);
    assert!(stats.disk.free_bytes > stats.disk.floor_bytes && stats.disk.blocked.is_none());
    let text = server
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    for metric in [
        "lockstep_store_head_bytes ",
        "lockstep_store_free_bytes ",
        "lockstep_store_ingest_blocked{reason=\"disk_full\"} 0",
        "process_resident_memory_bytes ",
    ] {
        assert!(text.contains(metric), "{metric} in {text}");
    }
}

// === a full disk ===

async fn ready(server: &Server) -> (StatusCode, String) {
    let response = server.anonymous(Method::GET, "/-/ready").send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// Returns the error that a sender of one more sample gets, or `None` if it is acknowledged.
async fn rejection(server: &Server, seq: u64, time_ms: i64) -> Option<String> {
    let mut agent = match Agent::connect(server, ADMIN, "n1").await {
        Ok(agent) => agent,
        Err(status) => return Some(status.message().to_owned()),
    };
    agent.define("live", 0, &[(POWER, "0")]).await;
    agent.sample("live", seq, time_ms, &[seq as f64]).await;
    match agent.receiving.next().await {
        Ok(Some(telemetry_down::Message::Ack(_))) => None,
        Ok(Some(other)) => panic!("an answer to the sample, not {other:?}"),
        Ok(None) => Some("the stream ended".into()),
        Err(status) => Some(status.message().to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_floor_samples_are_refused_and_the_reason_is_shown_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let mut starved = config(folder.path());
    starved.store.min_free_bytes = Some(1 << 60);
    let server = Server::start_with(folder, starved).await;

    let said = rejection(&server, 1, now_ms()).await.unwrap();
    assert!(said.contains("disk is full") && said.contains("needed"), "{said}");
    let (status, text) = ready(&server).await;
    assert_eq!(status, StatusCode::OK, "queries are answered, so it is ready");
    assert!(text.contains("accepts no samples"), "{text}");
    let (_, stats) = server.get("/api/store/stats").await;
    assert_eq!(stats["disk"]["blocked"], "disk_full", "{stats}");

    until("the alert", async || {
        let (_, alerts) = server.get("/api/alerts").await;
        let found = alerts
            .as_array()?
            .iter()
            .find(|alert| alert["rule"] == "LockstepStorageFull")?;
        (found["state"] == "firing").then_some(())
    })
    .await;
    let (_, events) = server.get("/api/events?kind=storage_full").await;
    assert_eq!(events.as_array().unwrap().len(), 1, "{events}");
    let blocked = server.query("lockstep_store_ingest_blocked == 1", now_ms()).await;
    assert_eq!(blocked[0].0["reason"], "disk_full");

    let Server { running, folder, .. } = server;
    running.shutdown().await;
    let server = Server::start_in(folder).await;
    assert_eq!(
        rejection(&server, 1, now_ms()).await,
        None,
        "with room it is taken"
    );
    assert_eq!(ready(&server).await.1, "ready\n");
}

/// A small file system, unmounted at the end.
struct SmallDisk(TempDir);

impl SmallDisk {
    const BYTES: u64 = 48 << 20;

    /// Returns `None`, with a message, where mounting is not permitted.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={}", Self::BYTES);
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        eprintln!("SKIPPED: a tmpfs cannot be mounted here, so no disk was really full");
        None
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    /// Leaves about this many bytes free.
    fn fill(&self, leave: u64) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.path().join("filler")).unwrap();
        let free = |path: &Path| {
            let df = Command::new("df")
                .args(["--output=avail", "-B1"])
                .arg(path)
                .output()
                .unwrap();
            let text = String::from_utf8(df.stdout).unwrap();
            text.lines().nth(1).unwrap().trim().parse::<u64>().unwrap()
        };
        let zeros = vec![0; 4_096];
        while free(self.0.path()) > leave {
            let pieces = (free(self.0.path()) - leave).div_ceil(4_096);
            for _ in 0..pieces {
                if file.write_all(&zeros).is_err() {
                    return;
                }
            }
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _stays = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

async fn fill_and_empty(disk: &SmallDisk, floor: u64, leave: u64) {
    let mut small = config(&disk.data());
    small.store.min_free_bytes = Some(floor);
    let server = Server::start_with(tempfile::tempdir().unwrap(), small).await;
    let start_ms = now_ms();
    assert_eq!(rejection(&server, 1, start_ms).await, None);

    disk.fill(leave);
    let said = until("a refusal", async || rejection(&server, 2, start_ms + 1).await).await;
    eprintln!("with {leave} bytes free, floor {floor}: {said}");
    until("the state", async || {
        ready(&server)
            .await
            .1
            .contains("accepts no samples")
            .then_some(())
    })
    .await;
    let before = server.query(POWER, start_ms).await;
    assert_eq!(before[0].1, "1", "queries go on");
    // Writing state may fail, with an error, but must never stop the collector.
    let request = serde_json::json!({ "role": "viewer", "note": "full" });
    let (status, _) = server.post("/api/tokens", request).await;
    assert!(
        status == StatusCode::CREATED || status == StatusCode::INTERNAL_SERVER_ERROR,
        "{status}"
    );

    disk.empty();
    until("samples to be taken again", async || {
        rejection(&server, 2, start_ms + 1).await.is_none().then_some(())
    })
    .await;
    let all = samples(&server, &format!("{POWER}[1m]"), start_ms + 1).await;
    assert_eq!(all.len(), 2, "{all:?}");
    let report = check(&server, "").await;
    assert!(report.is_clean(), "{:?}", report.problems);
    server.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_really_full_disk_stops_ingest_above_the_floor_and_recovers() {
    let Some(disk) = SmallDisk::mount() else { return };
    fill_and_empty(&disk, 8 << 20, 4 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_floor_the_last_byte_stops_ingest_and_it_recovers() {
    let Some(disk) = SmallDisk::mount() else { return };
    fill_and_empty(&disk, 0, 0).await;
}
