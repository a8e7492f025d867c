//! The disk guard: stops ingest while there is still enough free space for everything else.
//!
//! ```text
//!            free < floor                       a write failed for lack of space
//!  open ───────────────────▶ disk full      open ───────────────────────────────▶ write failed
//!    ▲                          │              ▲                                      │
//!    └─ free ≥ floor + 20 % ────┘              └── after a pause, when free ≥ floor ──┘
//! ```
//! The space below the floor is reserved for the chunks that the head will become, for the journals that SQLite copies into
//! their files when it closes them, and for the state: runs, alerts and tokens can still be written. Samples wait at their
//! sources, in the agents' spools and in the queues of remote write. Acknowledged samples are kept. Queries need no space.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::api::store::{Blocked, DiskSpace};
use domain::bytes::DisplayBytes;

use super::{AppendError, lock};

/// The minimum of the default floor. A write-ahead file that is closed is copied into itself, and is this large.
const FLOOR_BYTES_MIN: u64 = 64 << 20;
/// The maximum of the default floor: several times the chunks of a full head of 250,000 series.
const FLOOR_BYTES_MAX: u64 = 1 << 30;
/// Between these bounds, the default floor is the size of the disk divided by this.
const FLOOR_PART: u64 = 100;
/// The minimum of a configured floor. With less, not even the state can be written, and agents cannot connect.
const FLOOR_BYTES_LEAST: u64 = 1 << 20;
/// Ingest resumes when the free space exceeds the floor by this part of it (1/5). Otherwise a disk that is filled and emptied
/// by a few bytes would switch ingest on and off every second.
const RESUME_PART: u64 = 5;
/// The maximum age of the last reading. Within this time 1,000 nodes write a few megabytes.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// SQLite's error code for a full disk.
const SQLITE_FULL: &str = "13";

/// Reads the free space and remembers the result.
#[derive(Debug)]
pub(crate) struct DiskGuard {
    folder: PathBuf,
    floor: Option<u64>,
    pause: Duration,
    state: Mutex<State>,
}

/// The last reading, and the decision based on it.
#[derive(Debug, Default)]
struct State {
    last_read: Option<Instant>,
    space: DiskSpace,
    failed: Option<Instant>,
}

impl DiskGuard {
    /// `floor` is the number of free bytes below which no samples are accepted; `None` derives it from the size of the disk.
    /// `pause` is how long nothing is written after a write failed for lack of space although the disk reports free space.
    pub(crate) fn new(folder: &Path, floor: Option<u64>, pause: Duration) -> Self {
        Self {
            folder: folder.to_owned(),
            floor,
            pause,
            state: Mutex::default(),
        }
    }

    /// Fails if there is too little free space.
    pub(crate) fn check(&self) -> Result<(), AppendError> {
        let space = self.disk_space();
        match space.blocked {
            None => Ok(()),
            Some(_) => Err(AppendError::DiskFull {
                free: space.free_bytes,
                floor: space.floor_bytes,
            }),
        }
    }

    /// Returns the free space, at most one second old.
    pub(crate) fn disk_space(&self) -> DiskSpace {
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.last_read.is_some_and(|at| now - at < READ_INTERVAL) {
            return state.space;
        }
        state.last_read = Some(now);
        match rustix::fs::statvfs(&self.folder) {
            Ok(stat) => {
                let before = state.space.blocked;
                let total = stat.f_blocks.saturating_mul(stat.f_frsize);
                let floor = self
                    .floor
                    .map_or_else(|| floor_of(total), |floor| floor.max(FLOOR_BYTES_LEAST));
                let paused = state.failed.is_some_and(|failed| now - failed < self.pause);
                state.note(stat.f_bavail.saturating_mul(stat.f_frsize), total, floor, paused);
                self.log_change(before, state.space);
            }
            // If the folder cannot be read, its writes fail as well, and those are reported.
            Err(error) => tracing::debug!(%error, "cannot read the free space of the disk"),
        }
        state.space
    }

    /// Records that a write failed. Returns true if the cause was lack of space.
    pub(crate) fn note_failure(&self, error: &sqlx::Error) -> bool {
        if !is_full(error) {
            return false;
        }
        let mut state = lock(&self.state);
        let before = state.space.blocked;
        (state.failed, state.last_read) = (Some(Instant::now()), None);
        state.space.blocked.get_or_insert(Blocked::WriteFailed);
        self.log_change(before, state.space);
        true
    }

    /// Logs once at the beginning and once at the end.
    fn log_change(&self, before: Option<Blocked>, now: DiskSpace) {
        let (folder, free) = (self.folder.display(), DisplayBytes(now.free_bytes));
        let floor = DisplayBytes(now.floor_bytes);
        match (before, now.blocked) {
            (None, Some(_)) => {
                tracing::error!(%folder, %free, %floor, "the disk is full: no samples are accepted, senders keep them, queries still work; free some space, or lower --min-free-space");
            }
            (Some(_), None) => {
                tracing::info!(%folder, %free, %floor, "the disk has free space again: samples are accepted");
            }
            _ => {}
        }
    }
}

impl State {
    fn note(&mut self, free: u64, total: u64, floor: u64, paused: bool) {
        let blocked = match self.space.blocked {
            _ if free < floor => Some(Blocked::DiskFull),
            Some(Blocked::DiskFull) if free < floor.saturating_add(floor / RESUME_PART) => {
                Some(Blocked::DiskFull)
            }
            _ if paused => Some(Blocked::WriteFailed),
            _ => None,
        };
        self.space = DiskSpace {
            free_bytes: free,
            total_bytes: total,
            floor_bytes: floor,
            blocked,
        };
    }
}

fn floor_of(total: u64) -> u64 {
    (total / FLOOR_PART).clamp(FLOOR_BYTES_MIN, FLOOR_BYTES_MAX)
}

/// Returns true if the error means that the disk is full.
pub(crate) fn is_full(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().as_deref() == Some(SQLITE_FULL),
        sqlx::Error::Io(error) => matches!(
            error.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const FLOOR: u64 = 1_000;

    fn blocked(state: &mut State, free: u64, paused: bool) -> Option<Blocked> {
        state.note(free, 1_000_000, FLOOR, paused);
        state.space.blocked
    }

    #[test]
    fn ingest_stops_below_the_floor_and_begins_a_little_above_it() {
        let mut state = State::default();
        assert_eq!(blocked(&mut state, FLOOR, false), None);
        assert_eq!(blocked(&mut state, FLOOR - 1, false), Some(Blocked::DiskFull));
        assert_eq!(blocked(&mut state, FLOOR + 199, false), Some(Blocked::DiskFull));
        assert_eq!(blocked(&mut state, FLOOR + 200, false), None);
        assert_eq!(blocked(&mut state, FLOOR + 1, false), None);
    }

    #[test]
    fn after_a_failed_write_it_is_tried_again_after_a_pause() {
        let mut state = State::default();
        assert_eq!(blocked(&mut state, 1 << 40, true), Some(Blocked::WriteFailed));
        assert_eq!(blocked(&mut state, 1 << 40, false), None);
    }

    #[test]
    fn the_default_floor_grows_with_the_disk_within_bounds() {
        for (total, floor) in [
            (1 << 20, FLOOR_BYTES_MIN),
            (10 << 30, (10 << 30) / 100),
            (10 << 40, FLOOR_BYTES_MAX),
        ] {
            assert_eq!(floor_of(total), floor, "{total}");
        }
    }

    #[test]
    fn a_disk_below_the_floor_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let guard = DiskGuard::new(folder.path(), Some(u64::MAX), Duration::ZERO);
        let Err(AppendError::DiskFull { free, floor }) = guard.check() else {
            panic!("there is not that much room anywhere");
        };
        assert!(free > 0 && floor == u64::MAX);
        assert!(
            DiskGuard::new(folder.path(), Some(0), Duration::ZERO)
                .check()
                .is_ok()
        );
    }

    #[tokio::test]
    async fn sqlites_error_for_a_full_disk_is_recognised() {
        use sqlx::Connection;
        let mut connection = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
        sqlx::raw_sql("CREATE TABLE t (x); PRAGMA max_page_count = 3")
            .execute(&mut connection)
            .await
            .unwrap();
        let insert = sqlx::query("INSERT INTO t VALUES (zeroblob(100000))").execute(&mut connection);
        let error = insert.await.unwrap_err();
        let folder = tempfile::tempdir().unwrap();
        let guard = DiskGuard::new(folder.path(), Some(0), Duration::from_secs(5));
        assert!(guard.note_failure(&error), "{error}");
        assert!(matches!(guard.check(), Err(AppendError::DiskFull { .. })));
        assert!(!guard.note_failure(&sqlx::Error::RowNotFound));
    }
}
