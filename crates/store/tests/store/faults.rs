//! Runs the store on a faulty disk: full, short writes, EIO on any call, an fsync that loses data.
//!
//! While the disk fails, appends may fail as well, but acknowledged samples are stored and readable. When the disk works again,
//! the store continues without a restart.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use store::series::AppendError;
use store::{Store, StoreConfig};

use crate::harness::{NOW_MS, append, chain, config, gpu, open, read_all, samples_in_chunks};
use crate::life::{Senders, check, latest_ms, samples_of, send, send_all};
use crate::vfs::{Call, Disk, Fault, Files, Plan, Rng, contents};

#[derive(Debug, Clone)]
enum Step {
    Send,
    /// Sends samples while sealing.
    SendAndSeal,
    Seal,
    Compact,
    Read,
    /// The disk starts to fail.
    Fail(Plan),
    /// The disk works again, and the store must work at once.
    Heal,
    /// The store is closed, or dropped without closing it.
    Restart {
        close: bool,
    },
    /// The power is lost and comes back.
    LosePower,
}

fn plan() -> impl Strategy<Value = Plan> {
    let ways = prop_oneof![
        3 => Just((Call::Write, Fault::Io)),
        3 => Just((Call::Write, Fault::Full)),
        3 => Just((Call::Write, Fault::Short)),
        2 => Just((Call::Truncate, Fault::Io)),
        2 => Just((Call::Sync, Fault::Io)),
        3 => Just((Call::Sync, Fault::Lost)),
        3 => Just((Call::Sync, Fault::LostAndEvicted)),
        2 => Just((Call::Read, Fault::Io)),
        1 => Just((Call::Open, Fault::Io)),
        1 => Just((Call::Delete, Fault::Io)),
    ];
    let files = prop_oneof![
        Just(Files::All),
        Just(Files::WriteAhead),
        Just(Files::Series),
        Just(Files::Journals)
    ];
    let times = prop_oneof![2 => 1..4_u32, 1 => Just(u32::MAX)];
    let per_mille = prop_oneof![Just(1_000_u64), Just(300), Just(50)];
    (ways, files, 0..12_u32, times, per_mille).prop_map(|((call, fault), files, skip, times, per_mille)| {
        Plan {
            call,
            files,
            fault,
            skip,
            times,
            per_mille,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Send),
        2 => Just(Step::SendAndSeal),
        2 => Just(Step::Seal),
        2 => Just(Step::Compact),
        2 => Just(Step::Read),
        4 => plan().prop_map(Step::Fail),
        2 => Just(Step::Heal),
        1 => any::<bool>().prop_map(|close| Step::Restart { close }),
        1 => Just(Step::LosePower),
    ]
}

/// A store, its disk, and its senders.
struct World {
    folder: tempfile::TempDir,
    disk: &'static Disk,
    store: Store,
    senders: Senders,
    rng: Rng,
    /// The calls that may fail now.
    failing: Vec<Call>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path(), seed);
        Self {
            store: Store::open(on(folder.path(), disk)).await.unwrap(),
            folder,
            disk,
            senders: Senders::default(),
            rng: Rng::new(seed),
            failing: Vec::new(),
        }
    }

    async fn take(mut self, step: &Step) -> Self {
        match step {
            Step::Send => {
                let failed = send_all(&self.store, &mut self.senders, &mut self.rng).await;
                self.may_fail(failed.map_or(Ok(()), Err));
            }
            Step::SendAndSeal => {
                let send = send_all(&self.store, &mut self.senders, &mut self.rng);
                let (failed, sealed) = tokio::join!(send, self.store.series.seal_now());
                self.may_fail(failed.map_or(Ok(()), Err));
                self.may_fail(sealed);
            }
            Step::Seal => self.may_fail(self.store.series.seal_now().await),
            Step::Compact => self.may_fail(self.store.series.compact_now(latest_ms(&self.senders)).await),
            Step::Read => self.read().await,
            Step::Fail(plan) => {
                self.failing.push(plan.call);
                self.disk.plan(plan.clone());
            }
            Step::Heal => self.heal().await,
            Step::Restart { close } => return self.restart(*close).await,
            Step::LosePower => return self.lose_power().await,
        }
        self
    }

    fn may_fail(&self, result: Result<(), AppendError>) {
        if let Err(error) = result
            && self.failing.is_empty()
        {
            panic!("failed on a healthy disk: {}", chain(&error));
        }
    }

    async fn read(&self) {
        let unreadable = [Call::Read, Call::Open]
            .iter()
            .any(|call| self.failing.contains(call));
        match check(&self.store, &self.senders, i64::MIN).await {
            Err(wrong) if !(unreadable && wrong.contains("cannot be read")) => panic!("{wrong}"),
            _ => {}
        }
    }

    async fn heal(&mut self) {
        self.disk.heal();
        self.failing.clear();
        if let Some(error) = send_all(&self.store, &mut self.senders, &mut self.rng).await {
            panic!(
                "the disk is healthy again, and an append fails: {}",
                chain(&error)
            );
        }
        if let Err(error) = self.store.series.seal_now().await {
            panic!("the disk is healthy again, and sealing fails: {}", chain(&error));
        }
        self.read().await;
    }

    async fn restart(mut self, close: bool) -> Self {
        if close {
            self.store.close().await;
        } else {
            drop(self.store);
        }
        self.store = opened(self.folder.path(), self.disk, &mut self.failing).await;
        self
    }

    async fn lose_power(mut self) -> Self {
        self.disk.cut_power_after(0);
        self.store.close().await;
        let before = self.disk.describe();
        let left = tempfile::tempdir().unwrap();
        self.disk.leave(left.path());
        let after = contents(left.path());
        self.disk = Disk::new(left.path(), self.rng.next());
        self.failing.clear();
        self.store = match Store::open(on(left.path(), self.disk)).await {
            Ok(store) => store,
            Err(error) => panic!(
                "cannot be opened after a power loss: {}\n{before}left\n{after}",
                chain(&error)
            ),
        };
        self.folder = left;
        self
    }

    /// Checks that all samples are stored exactly once.
    async fn end(mut self) {
        self.heal().await;
        self.store.close().await;
        let store = open(self.folder.path()).await;
        let there = check(&store, &self.senders, i64::MIN).await.unwrap();
        store.series.seal_now().await.unwrap();
        assert_eq!(store.series.stats().wal_bytes, 0, "all is sealed");
        // Before the merge, a sample that was sent twice may be in two chunks.
        store.series.compact_now(latest_ms(&self.senders)).await.unwrap();
        assert_eq!(check(&store, &self.senders, i64::MIN).await, Ok(there));
        store.close().await;
        assert_eq!(
            samples_in_chunks(self.folder.path()).await,
            samples_of(there, i64::MIN)
        );
    }
}

fn on(folder: &Path, disk: &Disk) -> StoreConfig {
    StoreConfig {
        vfs: Some(disk.name()),
        wal_file_bytes: 60_000,
        ..config(folder)
    }
}

/// Opens the store in the folder. If the disk still fails, heals it first.
async fn opened(folder: &Path, disk: &'static Disk, failing: &mut Vec<Call>) -> Store {
    match Store::open(on(folder, disk)).await {
        Ok(store) => store,
        Err(error) if failing.is_empty() => panic!("a healthy disk: {}", chain(&error)),
        Err(_) => {
            disk.heal();
            failing.clear();
            Store::open(on(folder, disk)).await.unwrap()
        }
    }
}

async fn run(seed: u64, steps: Vec<Step>) {
    let mut world = World::new(seed).await;
    for step in &steps {
        world = world.take(step).await;
    }
    world.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: u32::try_from(crate::harness::from_environment("LOCKSTEP_SOAK_FAULT_CASES", 40)).unwrap(),
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_failing_disk_loses_nothing_that_was_acknowledged(seed: u64, steps in proptest::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(seed, steps));
    }
}

/// SQLite rolls back by itself when the disk fails. sqlx then treated the connection as in a transaction, and nothing could be
/// written to the database until a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_failed_does_not_end_all_later_ones() {
    for (call, fault) in [(Call::Write, Fault::Full), (Call::Sync, Fault::Lost)] {
        let mut world = World::new(1).await;
        let once = Plan {
            times: 1,
            ..Plan::always(call, Files::Series, fault)
        };
        let sent = send_all(&world.store, &mut world.senders, &mut Rng::new(2)).await;
        assert!(sent.is_none(), "{sent:?}");
        world = world.take(&Step::Fail(once)).await;
        let failed = world.store.series.seal_now().await;
        assert!(matches!(failed, Err(AppendError::Write(_))), "{failed:?}");
        world.end().await;
    }
}

/// A write-ahead file was closed and treated as unused before its last batch was in the head.
#[test]
fn a_file_is_not_unlinked_before_its_last_batch_is_in_the_head() {
    // With only one blocking thread, a batch can be held back on its way to the head.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path(), 1);
        let config = StoreConfig {
            wal_file_bytes: 1,
            ..on(folder.path(), disk)
        };
        let store = Store::open(config).await.unwrap();
        let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
        let sent = |n: i64| append(&store.series, &[id], &[NOW_MS + n], &[n as f64]);
        store.series.append(sent(1), NOW_MS).await.unwrap();

        let before_the_chunk = disk.hold(Call::Sync, Files::Series);
        let sealing = store.series.clone();
        let sealing = tokio::spawn(async move { sealing.seal_now().await });
        wait(&before_the_chunk).await;
        let before_the_batch = disk.hold(Call::Sync, Files::WriteAhead);
        let (appending, second) = (store.series.clone(), sent(2));
        let appending = tokio::spawn(async move { appending.append(second, NOW_MS).await });
        let file = folder.path().join("wal-000002.db");
        until(|| file.exists(), Duration::from_secs(20)).await;
        let (go_on, held_up) = std::sync::mpsc::sync_channel::<()>(1);
        let busy = tokio::task::spawn_blocking(move || held_up.recv());
        drop(before_the_batch);
        // Long enough for the file to be closed, if it is closed now: its journal is then copied into it.
        let is_closed = || {
            let bytes = std::fs::metadata(&file).map_or(0, |file| file.len());
            bytes > 4_096 && !folder.path().join("wal-000002.db-wal").exists()
        };
        until(is_closed, Duration::from_secs(1)).await;
        drop(before_the_chunk);
        sealing.await.unwrap().unwrap();
        assert!(file.exists(), "it holds a batch that is nowhere else");
        go_on.send(()).unwrap();
        busy.await.unwrap().unwrap();
        appending.await.unwrap().unwrap();
        drop(store);
        assert_eq!(read_all(&open(folder.path()).await.series).await[0].1.len(), 2);
    });
}

/// SQLite kept the journal of a closed file, because the checkpoint failed in the middle. The store removed both when all was
/// sealed. After a power loss the half-written file was back without its journal, and the store could not be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_written_file_is_completed_before_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(folder.path(), 1);
    let store = one_batch_per_file(folder.path(), disk).await;
    // A checkpoint truncates the file after it has written all pages, and before it synchronises them.
    disk.plan(Plan {
        times: 1,
        ..Plan::always(Call::Truncate, Files::WriteAheadDatabases, Fault::Io)
    });
    append_one(&store, 1).await.unwrap();
    until(|| disk.struck() > 0, Duration::from_secs(20)).await;
    assert_eq!(disk.struck(), 1, "the checkpoint failed");
    seal_until_removed(&store, &folder.path().join("wal-000001.db")).await;

    let left = tempfile::tempdir().unwrap();
    disk.leave_without_journals(left.path(), |n, of| n < of / 2);
    store.close().await;
    let store = open(left.path()).await;
    assert_eq!(read_all(&store.series).await[0].1.len(), 1);
    store.close().await;
}

/// SQLite could neither create a file nor roll back. The store removed the file and its journal. After a power loss a part of the
/// file was back without its journal, and the store could not be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_could_not_be_created_keeps_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(folder.path(), 1);
    let store = one_batch_per_file(folder.path(), disk).await;
    disk.plan(Plan::always(Call::Sync, Files::WriteAheadDatabases, Fault::Io));
    let failed = append_one(&store, 1).await;
    assert!(matches!(failed, Err(AppendError::Write(_))), "{failed:?}");

    let left = tempfile::tempdir().unwrap();
    // The first page without its first sector.
    disk.leave_without_journals(left.path(), |n, _| (1..32).contains(&n));
    store.close().await;
    let store = open(left.path()).await;
    let read = read_all(&store.series).await;
    assert!(read.iter().all(|(_, samples)| samples.is_empty()));
    append_one(&store, 1).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_could_not_be_created_is_removed_when_the_disk_works() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(folder.path(), 1);
    let store = one_batch_per_file(folder.path(), disk).await;
    disk.plan(Plan::always(Call::Sync, Files::WriteAheadDatabases, Fault::Io));
    append_one(&store, 1).await.unwrap_err();
    let file = folder.path().join("wal-000001.db");
    assert!(file.exists(), "it needs its journal");
    disk.heal();
    append_one(&store, 2).await.unwrap();
    seal_until_removed(&store, &file).await;
    store.close().await;
}

/// An fsync failed, and Linux dropped the pages of a batch but showed them to readers. The next process took the batch for
/// durable: it acknowledged the append when it was sent again, and a power loss then lost it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_only_the_cache_has_is_stored_again() {
    let mut world = World::new(1).await;
    let sent = send(&world.store.series, 0, &mut world.senders[0], 1).await;
    assert!(sent.is_none(), "{sent:?}");
    let lost = Plan::always(Call::Sync, Files::WriteAhead, Fault::Lost);
    world = world.take(&Step::Fail(lost)).await;
    let sent = send(&world.store.series, 0, &mut world.senders[0], 1).await;
    assert!(matches!(sent, Some(AppendError::Write(_))), "{sent:?}");
    // The commit, then the checkpoint when the file was closed.
    until(|| world.disk.struck() >= 2, Duration::from_secs(20)).await;
    assert_eq!(world.disk.struck(), 2);

    // The next process cannot complete the file either.
    world.disk.heal();
    let unsynchronised = Plan::always(Call::Sync, Files::WriteAheadDatabases, Fault::Io);
    world = world.take(&Step::Fail(unsynchronised)).await;
    world = world.take(&Step::Restart { close: true }).await;
    assert!(world.disk.struck() > 2, "the checkpoint failed again");
    world.disk.heal();
    let sent = send(&world.store.series, 0, &mut world.senders[0], 0).await;
    assert!(sent.is_none(), "{sent:?}");
    assert_eq!(world.senders[0].acknowledged, 2);

    let left = tempfile::tempdir().unwrap();
    world.disk.leave_without_journals(left.path(), |_, _| false);
    world.store.close().await;
    let store = open(left.path()).await;
    check(&store, &world.senders, i64::MIN).await.unwrap();
    store.close().await;
}

/// Opens a store that starts another write-ahead file for each batch.
async fn one_batch_per_file(folder: &Path, disk: &Disk) -> Store {
    let config = StoreConfig {
        wal_file_bytes: 1,
        ..on(folder, disk)
    };
    Store::open(config).await.unwrap()
}

async fn append_one(store: &Store, n: i64) -> Result<(), AppendError> {
    let id = store.series.resolve(&gpu("power", "a", 0)).unwrap();
    let sent = append(&store.series, &[id], &[NOW_MS + n], &[n as f64]);
    store.series.append(sent, NOW_MS).await.map(drop)
}

/// Seals until a write-ahead file is removed: it is closed in the background.
async fn seal_until_removed(store: &Store, file: &Path) {
    let began = Instant::now();
    while file.exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "it is still there");
        store.series.seal_now().await.unwrap();
    }
}

async fn wait(hold: &crate::vfs::Hold) {
    tokio::task::block_in_place(|| hold.wait());
}

/// Waits until a condition is true, at most for `patience`.
async fn until(is_so: impl Fn() -> bool, patience: Duration) {
    let began = Instant::now();
    while !is_so() && began.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
