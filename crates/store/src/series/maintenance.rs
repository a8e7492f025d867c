//! Maintenance of chunks on disk between two rounds of sealing, in bounded steps.
//!
//! Merge candidates are searched every minute; retention runs every ten minutes. After an error the remaining work is dropped
//! and searched again later. Each step is one transaction, so an interruption loses nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::chunk_rows::Target;
use super::compact;
use super::retention::Pass;

/// How long maintenance may take between two rounds of sealing.
const ROUND_TIME_MAX: Duration = Duration::from_secs(2);
/// How often groups to merge are searched. With 30,000 groups one search takes a reader about 0.1 s.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);
/// How often retention runs.
const RETENTION_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// The number of groups merged in one step.
const GROUPS_PER_STEP: usize = 24;

/// The pending work.
pub(crate) struct Maintenance {
    merges: Vec<Target>,
    pass: Option<Pass>,
    last_search: Instant,
    last_retention: Instant,
}

impl Maintenance {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            merges: Vec::new(),
            pass: None,
            last_search: now,
            last_retention: now,
        }
    }

    /// Does the work that is due, for at most [`ROUND_TIME_MAX`].
    pub(crate) async fn round(&mut self, shared: &Arc<Shared>) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        while began.elapsed() < ROUND_TIME_MAX && !shared.memory.is_full() {
            match self.step(shared).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    (self.merges, self.pass) = (Vec::new(), None);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn step(&mut self, shared: &Arc<Shared>) -> Result<bool, sqlx::Error> {
        let now_ms = shared.now_ms.load(Ordering::Relaxed);
        if let Some(pass) = &mut self.pass {
            if !pass.step(shared).await? {
                self.pass = None;
            }
        } else if !self.merges.is_empty() {
            let some = self
                .merges
                .split_off(self.merges.len().saturating_sub(GROUPS_PER_STEP));
            self.merges
                .extend(compact::step(shared, &some, now_ms, false).await?);
        } else if self.last_search.elapsed() >= SEARCH_INTERVAL {
            self.last_search = Instant::now();
            self.merges = compact::candidates(shared, now_ms).await?;
        } else if self.last_retention.elapsed() >= RETENTION_INTERVAL {
            self.last_retention = Instant::now();
            self.pass = Some(Pass::new(shared, now_ms, false));
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Labels;

    use super::*;
    use crate::series::{Append, Block};
    use crate::{Store, StoreConfig};

    #[tokio::test]
    async fn complete_hours_are_merged_by_themselves_and_what_is_old_is_rolled_up() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
        let names =
            (0..8).map(|n| Labels::new([("__name__", "x".to_owned()), ("gpu", n.to_string())]).unwrap());
        let ids = names
            .map(|labels| store.series.resolve(&labels).unwrap())
            .collect();
        let shape = store.series.shape(ids).unwrap();
        let send = async |start_s: i64| {
            let times_ms: Vec<i64> = (start_s..start_s + 300).map(|n| n * 1_000).collect();
            let values = vec![1.0; 8 * 300];
            let (now_ms, shape) = (times_ms[299], Arc::clone(&shape));
            let block = Block {
                shape,
                times_ms,
                values,
            };
            store
                .series
                .append(
                    Append {
                        source: None,
                        blocks: vec![block],
                    },
                    now_ms,
                )
                .await
                .unwrap();
            store.series.seal_now().await.unwrap();
        };
        for start_s in (0..2 * 3_600).step_by(300) {
            send(start_s).await;
        }
        let shared = &store.series.shared;
        let maintenance = || Maintenance {
            last_search: Instant::now().checked_sub(SEARCH_INTERVAL).unwrap(),
            last_retention: Instant::now().checked_sub(RETENTION_INTERVAL).unwrap(),
            ..Maintenance::new()
        };
        let rows = async || -> Vec<(i64, i64, i64)> {
            let rows = "SELECT resolution_ms, level, count(*) FROM chunks GROUP BY 1, 2 ORDER BY 1, 2";
            sqlx::query_as(rows)
                .fetch_all(&shared.database.readers)
                .await
                .unwrap()
        };
        maintenance().round(shared).await.unwrap();
        assert_eq!(
            rows().await,
            [(0, 0, 12), (0, 1, 1)],
            "one hour; the last ten minutes may still get company"
        );
        // Sixteen days later: no one sent more samples in between, so the rest of the hour is complete.
        send(16 * 24 * 3_600).await;
        maintenance().round(shared).await.unwrap();
        let left = rows().await;
        assert_eq!(
            left.iter().filter(|row| row.0 == 0).map(|row| row.2).sum::<i64>(),
            1,
            "{left:?}"
        );
        assert!(left.iter().any(|row| row.0 > 0), "{left:?}");
    }
}
