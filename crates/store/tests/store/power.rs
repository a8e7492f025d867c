//! Simulates power losses: acknowledged samples are stored, whatever part of the rest the disk had written.
//!
//! ```text
//! round   open what the last round left → check → send, seal, compact, drop old samples → lose power at a random call
//!         → synchronised data stays; the rest is random
//! ```
//! `LOCKSTEP_SOAK_POWER_ROUNDS` sets the number of rounds, `LOCKSTEP_SOAK_SEED` the seed.

use std::path::Path;
use std::time::Duration;

use store::{Store, StoreConfig};

use crate::harness::{chain, from_environment, print_line, without_roll_ups};
use crate::life::{RETENTION_MS, Senders, check, check_at_rest, latest_ms, send_all};
use crate::vfs::{Disk, Rng};

/// The default number of rounds; takes a few seconds.
const ROUNDS: u64 = 24;
/// After this many rounds a new folder is used, so that its creation is interrupted as well.
const ROUNDS_PER_FOLDER: u64 = 8;
/// The maximum number of changing calls before the power loss: about as many as opening and a dozen appends and seals make.
const CHANGES_MAX: u64 = 500;

/// The parameters of the rounds.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    rounds: u64,
    lazy_journals: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_loses_nothing_that_was_acknowledged() {
    let plan = Plan {
        seed: from_environment("LOCKSTEP_SOAK_SEED", 1),
        rounds: from_environment("LOCKSTEP_SOAK_POWER_ROUNDS", ROUNDS),
        lazy_journals: false,
    };
    let survived = lose_power(plan).await.unwrap();
    print_line(&format!(
        "power losses {} appends acknowledged {survived}",
        plan.rounds
    ));
    assert!(
        survived > plan.rounds * 3,
        "too few appends to show anything: {survived}"
    );
}

/// The test above can fail: with `synchronous=NORMAL`, which does not synchronise journals, it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_full_synchronisation_a_power_loss_loses_acknowledged_samples() {
    let plan = Plan {
        seed: 1,
        rounds: 2 * ROUNDS_PER_FOLDER,
        lazy_journals: true,
    };
    let lost = lose_power(plan).await.unwrap_err();
    assert!(lost.contains("lost"), "{lost}");
}

/// Runs the rounds. Returns how many appends were acknowledged; the error says what is wrong.
async fn lose_power(plan: Plan) -> Result<u64, String> {
    let mut rng = Rng::new(plan.seed);
    let mut folder = tempfile::tempdir().unwrap();
    let mut senders = Senders::default();
    let mut acknowledged = 0;
    for round in 0..plan.rounds {
        let disk = Disk::new(folder.path(), rng.next());
        if plan.lazy_journals {
            disk.make_journals_lazy();
        }
        disk.cut_power_after(1 + rng.below(CHANGES_MAX));
        let lived = live(folder.path(), disk, &mut senders, &mut rng).await;
        lived.map_err(|wrong| format!("round {round}, seed {}: {wrong}", plan.seed))?;
        let left = tempfile::tempdir().unwrap();
        disk.leave(left.path());
        folder = left;
        if round % ROUNDS_PER_FOLDER == ROUNDS_PER_FOLDER - 1 {
            let last = check_at_rest(folder.path(), &senders).await;
            last.map_err(|wrong| format!("after round {round}, seed {}: {wrong}", plan.seed))?;
            acknowledged += senders.iter().map(|sender| sender.acknowledged).sum::<u64>();
            senders = Senders::default();
            folder = tempfile::tempdir().unwrap();
        }
    }
    check_at_rest(folder.path(), &senders).await?;
    Ok(acknowledged + senders.iter().map(|sender| sender.acknowledged).sum::<u64>())
}

fn on(folder: &Path, disk: &Disk) -> StoreConfig {
    StoreConfig {
        vfs: Some(disk.name()),
        // Several files per round.
        wal_file_bytes: 60_000,
        ..without_roll_ups(RETENTION_MS, folder)
    }
}

/// Runs a store until the power is lost. Errors before that are failures.
async fn live(
    folder: &Path,
    disk: &'static Disk,
    senders: &mut Senders,
    rng: &mut Rng,
) -> Result<(), String> {
    let store = match Store::open(on(folder, disk)).await {
        Ok(store) => store,
        Err(_) if disk.is_off() => return Ok(()),
        Err(error) => return Err(format!("cannot be opened: {}", chain(&error))),
    };
    let result = work(&store, disk, senders, rng).await;
    // Its tasks notice that the disk is gone, and end.
    let closed = tokio::time::timeout(Duration::from_secs(60), store.close()).await;
    closed.map_err(|_| "a store without power does not close".to_owned())?;
    result
}

async fn work(store: &Store, disk: &Disk, senders: &mut Senders, rng: &mut Rng) -> Result<(), String> {
    if let Some(wrong) = read_back(store, disk, senders).await {
        return Err(wrong);
    }
    while !disk.is_off() {
        let step = step(store, senders, rng).await;
        if let Err(error) = step
            && !disk.is_off()
        {
            return Err(format!("failed on a healthy disk: {error}"));
        }
    }
    Ok(())
}

/// Returns what is wrong with the samples in the store, if there is power to read them.
async fn read_back(store: &Store, disk: &Disk, senders: &Senders) -> Option<String> {
    let from_ms = latest_ms(senders) - RETENTION_MS;
    match check(store, senders, from_ms).await {
        Err(wrong) if !disk.is_off() => Some(wrong),
        _ => None,
    }
}

async fn step(store: &Store, senders: &mut Senders, rng: &mut Rng) -> Result<(), String> {
    let late = latest_ms(senders);
    let passed = match rng.below(13) {
        0..6 => {
            return send_all(store, senders, rng)
                .await
                .map_or(Ok(()), |error| Err(chain(&error)));
        }
        6..8 => {
            let (failed, sealed) = tokio::join!(send_all(store, senders, rng), store.series.seal_now());
            failed.map_or(sealed, Err)
        }
        8..10 => store.series.seal_now().await,
        10..12 => store.series.compact_now(late).await,
        _ => store.series.retain_now(late).await,
    };
    passed.map_err(|error| chain(&error))
}
