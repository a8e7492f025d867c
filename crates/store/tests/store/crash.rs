//! kill -9 at random points: what was acknowledged is there, and nothing is there twice.
//!
//! The test starts its own binary again as a writer, reads the acknowledgements off its output, and kills it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use store::series::Append;
use store::{Store, StoreConfig};

use crate::harness::{NOW_MS, append, config, gpu, open, read_all, samples_in_chunks};

const ROUNDS: u64 = 20;
const SESSIONS: usize = 4;
const FOLDER: &str = "LOCKSTEP_TEST_CRASH_FOLDER";
const FIRST: &str = "LOCKSTEP_TEST_CRASH_FIRST";

/// Appends until it is killed. Does nothing unless the test below starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the writer that the next test starts and kills"]
async fn writer() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let first: Vec<u64> = std::env::var(FIRST)
        .unwrap()
        .split(',')
        .map(|n| n.parse().unwrap())
        .collect();
    let config = StoreConfig {
        gather_ms: 1,
        wal_file_bytes: 100_000,
        ..config(Path::new(&folder))
    };
    let store = Store::open(config).await.unwrap();
    let sealing = store.series.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(15)).await;
            sealing.seal_now().await.unwrap();
        }
    });
    let writers: Vec<_> = first
        .into_iter()
        .enumerate()
        .map(|(n, first)| write(store.series.clone(), n, first))
        .collect();
    let tasks: Vec<_> = writers.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write(series: store::SeriesStore, session: usize, first: u64) {
    for seq in first.. {
        let sent = numbered(&series, session, seq);
        series.append(sent, NOW_MS).await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {session} {seq}").unwrap();
        out.flush().unwrap();
    }
}

/// Append number `seq` of a session: one sample in each of three series, its value the number.
fn numbered(series: &store::SeriesStore, session: usize, seq: u64) -> Append {
    let ids: Vec<_> = (0..3)
        .map(|n| {
            series
                .resolve(&gpu("power", &format!("node-{session}"), n))
                .unwrap()
        })
        .collect();
    let append = append(series, &ids, &[NOW_MS + seq as i64], &[seq as f64; 3]);
    Append {
        source: Some((format!("session-{session}"), seq)),
        ..append
    }
}

#[tokio::test]
async fn kill_nine_loses_nothing_that_was_acknowledged_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = [0_u64; SESSIONS];
    for round in 0..ROUNDS {
        // Each life repeats the last few, as a sender does that did not hear.
        let first = acknowledged.map(|seq| seq.saturating_sub(3).max(1));
        let heard = run_and_kill(folder.path(), first, Duration::from_millis(5 + round * 37 % 250));
        for (session, seq) in heard {
            acknowledged[session] = acknowledged[session].max(seq);
        }
    }
    assert!(
        acknowledged.iter().all(|seq| *seq > 20),
        "too few appends to show anything: {acknowledged:?}"
    );
    let store = open(folder.path()).await;
    let mut samples = 0;
    let mut latest: BTreeMap<String, usize> = BTreeMap::new();
    for (labels, read) in read_all(&store.series).await {
        let session: usize = labels
            .get("node")
            .unwrap()
            .strip_prefix("node-")
            .unwrap()
            .parse()
            .unwrap();
        let seqs: Vec<u64> = read
            .iter()
            .map(|(time_ms, _)| (time_ms - NOW_MS) as u64)
            .collect();
        assert_eq!(
            seqs,
            (1..=seqs.len() as u64).collect::<Vec<_>>(),
            "without a gap: {labels}"
        );
        assert!(
            seqs.len() as u64 >= acknowledged[session],
            "{labels}: {} < {acknowledged:?}",
            seqs.len()
        );
        assert!(
            read.iter()
                .zip(&seqs)
                .all(|((_, bits), seq)| f64::from_bits(*bits) == *seq as f64)
        );
        // An append is stored as a whole: the series of a session end together.
        assert_eq!(
            *latest.entry(format!("{session}")).or_insert(seqs.len()),
            seqs.len()
        );
        samples += seqs.len() as i64;
    }
    assert_eq!(latest.len(), SESSIONS);
    store.series.seal_now().await.unwrap();
    assert_eq!(
        store.series.stats().wal_bytes,
        0,
        "all is sealed, so no write-ahead file is left"
    );
    store.close().await;
    assert_eq!(
        samples_in_chunks(folder.path()).await,
        samples,
        "each sample is in one chunk"
    );
}

/// Starts a writer, kills it some time after its first acknowledgement, and returns what it acknowledged.
fn run_and_kill(folder: &Path, first: [u64; SESSIONS], after: Duration) -> Vec<(usize, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crash::writer",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, folder)
        .env(FIRST, first.map(|n| n.to_string()).join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut heard = Vec::new();
    let mut kill_at: Option<Instant> = None;
    while kill_at.is_none_or(|at| Instant::now() < at) {
        let Some(line) = lines.next() else { break };
        let line = line.unwrap();
        heard.extend(parse(&line));
        if kill_at.is_none() && !heard.is_empty() {
            kill_at = Some(Instant::now() + after);
        }
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "it ran until it was killed"
    );
    // What it had said before it died counts too; the last line may be cut.
    heard.extend(lines.map_while(Result::ok).filter_map(|line| parse(&line)));
    heard
}

fn parse(line: &str) -> Option<(usize, u64)> {
    let mut words = line.strip_prefix("ack ")?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}
