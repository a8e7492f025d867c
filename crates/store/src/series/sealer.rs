//! The sealer: the only task that writes, merges, deletes and drops chunks, so that these operations never overlap.

use std::sync::Arc;
use std::time::Instant;

use domain::time::TimestampMs;
use tokio::sync::mpsc;

use super::maintenance::Maintenance;
use super::request::Request;
use super::retention::Pass;
use super::seal::{SEAL_INTERVAL, due, seal, seal_all, seal_if_due};
use super::{AppendError, Shared, compact};

/// Runs until all senders are dropped.
pub(crate) async fn run(shared: Arc<Shared>, mut requests: mpsc::Receiver<Request>) {
    let mut tick = tokio::time::interval(SEAL_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut maintenance = Maintenance::new();
    loop {
        let request = tokio::select! {
            request = requests.recv() => match request {
                Some(request) => Some(request),
                None => return,
            },
            _ = tick.tick() => None,
            () = shared.memory.full.notified() => None,
        };
        match request {
            Some(Request::Seal { reply }) => {
                let _ = reply.send(failed(seal_all(&shared).await));
            }
            Some(Request::Retain { now_ms, reply }) => {
                let _ = reply.send(failed(retain(&shared, now_ms).await));
            }
            Some(Request::Compact { now_ms, reply }) => {
                let _ = reply.send(failed(compact::everything_step(&shared, now_ms).await));
            }
            Some(Request::Delete(deletion)) => {
                let deleted = deletion.run(&shared).await;
                let _ = deletion.reply.send(deleted);
            }
            None => {
                log_failure(
                    &shared,
                    seal(&shared, due(&shared)).await,
                    "sealing samples into chunks",
                );
                log_failure(
                    &shared,
                    maintenance.round(&shared).await,
                    "merging chunks and dropping old ones",
                );
            }
        }
    }
}

/// Runs a whole retention pass. Seals what becomes due in between.
async fn retain(shared: &Arc<Shared>, now_ms: TimestampMs) -> Result<(), sqlx::Error> {
    let mut pass = Pass::new(shared, now_ms, true);
    let mut sealed = Instant::now();
    while pass.step(shared).await? {
        seal_if_due(shared, &mut sealed).await?;
    }
    Ok(())
}

fn failed<T>(result: Result<T, sqlx::Error>) -> Result<T, AppendError> {
    result.map_err(|error| AppendError::Write(Arc::new(error)))
}

fn log_failure(shared: &Shared, result: Result<(), sqlx::Error>, what: &str) {
    if let Err(error) = result {
        // A full disk is reported once, not at each attempt.
        if shared.disk_guard.note_failure(&error) {
            return;
        }
        tracing::error!(%error, "{what} failed and will be tried again; check the free space and health of the disk");
    }
}
