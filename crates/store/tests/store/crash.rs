//! Kills the store with SIGKILL at random points: what was acknowledged is stored, and nothing is stored twice.
//!
//! The test starts its own binary again as a writer, reads the acknowledgements from its output, and kills it while it opens
//! and replays, appends, seals, compacts or drops old samples. `LOCKSTEP_SOAK_KILL_ROUNDS` sets the number of rounds.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use store::{SeriesStore, Store, StoreConfig};

use crate::harness::{from_environment, print_line, without_roll_ups};
use crate::life::{RETENTION_MS, SENDERS, Sender, Senders, check, check_at_rest, latest_ms, send};
use crate::vfs::Rng;

/// The default number of kills; takes a few seconds.
const ROUNDS: u64 = 24;
/// After this many rounds a new folder is used, so that its creation is interrupted as well.
const ROUNDS_PER_FOLDER: u64 = 12;
const FOLDER: &str = "LOCKSTEP_TEST_CRASH_FOLDER";
const SENT: &str = "LOCKSTEP_TEST_CRASH_SENT";
/// The time within which a writer writes its first line.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Checks what earlier writers left, then appends until it is killed. Does nothing unless the test below starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the writer that the next test starts and kills"]
async fn writer() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let senders = parse_senders(&std::env::var(SENT).unwrap());
    print_line("opening");
    let config = StoreConfig {
        gather_ms: 1,
        wal_file_bytes: 100_000,
        ..without_roll_ups(RETENTION_MS, Path::new(&folder))
    };
    let store = Store::open(config).await.unwrap();
    let from_ms = latest_ms(&senders) - RETENTION_MS;
    if let Err(wrong) = check(&store, &senders, from_ms).await {
        panic!("{wrong}");
    }
    let writers = (0..SENDERS).map(|n| write(store.series.clone(), n, senders[n]));
    let mut tasks: Vec<_> = writers.map(tokio::spawn).collect();
    tasks.push(tokio::spawn(tidy(store.series.clone(), latest_ms(&senders))));
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write(series: SeriesStore, number: usize, mut sender: Sender) {
    let mut rng = Rng::new(sender.sent);
    loop {
        let more = 1 + rng.below(3);
        print_line(&format!(
            "sent {number} {}",
            sender.sent.max(sender.acknowledged + more)
        ));
        if let Some(error) = send(&series, number, &mut sender, more).await {
            panic!("{error}");
        }
        print_line(&format!("ack {number} {}", sender.acknowledged));
    }
}

/// Does continuously all that a store does periodically.
async fn tidy(series: SeriesStore, from_ms: i64) {
    for round in 0.. {
        tokio::time::sleep(Duration::from_millis(10)).await;
        series.seal_now().await.unwrap();
        match round % 6 {
            3 => series.retain_now(from_ms).await.unwrap(),
            5 => series.compact_now(from_ms).await.unwrap(),
            _ => {}
        }
    }
}

#[tokio::test]
async fn kill_nine_loses_nothing_that_was_acknowledged_and_doubles_nothing() {
    let rounds = from_environment("LOCKSTEP_SOAK_KILL_ROUNDS", ROUNDS);
    let mut rng = Rng::new(from_environment("LOCKSTEP_SOAK_SEED", 1));
    let mut folder = tempfile::tempdir().unwrap();
    let mut senders = Senders::default();
    let mut acknowledged = 0;
    for round in 1..=rounds {
        run_and_kill(folder.path(), &mut senders, &mut rng);
        if round % ROUNDS_PER_FOLDER == 0 || round == rounds {
            check_at_rest(folder.path(), &senders).await.unwrap();
            acknowledged += senders.iter().map(|sender| sender.acknowledged).sum::<u64>();
            (folder, senders) = (tempfile::tempdir().unwrap(), Senders::default());
        }
    }
    print_line(&format!("kills {rounds} appends acknowledged {acknowledged}"));
    assert!(
        acknowledged > rounds * 10,
        "too few appends to show anything: {acknowledged}"
    );
}

/// Starts a writer, kills it some time after its start or its first acknowledgement, and records its output.
fn run_and_kill(folder: &Path, senders: &mut Senders, rng: &mut Rng) {
    let mut child = start(folder, senders);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // One in three is killed while it opens and replays.
    let (waits_for, after_ms) = match rng.below(3) {
        0 => ("opening", rng.below(40)),
        _ => ("ack", rng.below(250)),
    };
    let mut kill_at: Option<Instant> = None;
    let began = Instant::now();
    while kill_at.is_none_or(|at| Instant::now() < at) {
        assert!(
            began.elapsed() < TIMEOUT,
            "the writer does not come to `{waits_for}`"
        );
        // A writer that is opening writes nothing, so do not wait for its output.
        if kill_at.is_some() && waits_for == "opening" {
            std::thread::sleep(Duration::from_millis(after_ms));
            break;
        }
        let Some(line) = lines.next() else { break };
        let line = line.unwrap();
        note(&line, senders);
        if kill_at.is_none() && line.contains(waits_for) {
            kill_at = Some(Instant::now() + Duration::from_millis(after_ms));
        }
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    // What it wrote before it was killed counts as well. The last line may be incomplete.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(
        signal,
        Some(9),
        "it ran until it was killed; its last words: {rest:?}"
    );
    rest.iter().for_each(|line| note(line, senders));
}

fn start(folder: &Path, senders: &Senders) -> Child {
    let sent = senders
        .map(|sender| format!("{}:{}", sender.acknowledged, sender.sent))
        .join(",");
    let arguments = [
        "--exact",
        "crash::writer",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env(FOLDER, folder)
        .env(SENT, sent)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn parse_senders(text: &str) -> Senders {
    let parse = |sender: &str| {
        let (acknowledged, sent) = sender.split_once(':').unwrap();
        Sender {
            acknowledged: acknowledged.parse().unwrap(),
            sent: sent.parse().unwrap(),
        }
    };
    let senders: Vec<Sender> = text.split(',').map(parse).collect();
    senders.try_into().unwrap()
}

fn note(line: &str, senders: &mut Senders) {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let (Some(kind), Some(Ok(number)), Some(Ok(seq))) = (
        next(),
        next().map(str::parse::<usize>),
        next().map(str::parse::<u64>),
    ) else {
        return;
    };
    let Some(sender) = senders.get_mut(number) else {
        return;
    };
    match kind {
        "ack" => sender.acknowledged = sender.acknowledged.max(seq),
        "sent" => sender.sent = sender.sent.max(seq),
        _ => {}
    }
}
