//! Room on the disk: ingest stops while there is still enough left for everything else.
//!
//! ```text
//!            free < floor                       a write failed for want of space
//!  open ───────────────────▶ disk full      open ───────────────────────────────▶ write failed
//!    ▲                          │              ▲                                      │
//!    └─ free ≥ floor + a fifth ─┘              └── after a pause, when free ≥ floor ──┘
//! ```
//! What is left below the floor is for the chunks that the head still becomes, for the journals that SQLite copies into
//! their files when it closes them, and for the state: runs, alerts and tokens go on being written. Samples wait where they
//! come from, in the agents' spools and in the queues of remote write, and nothing acknowledged is touched. Queries need no
//! room.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::api::store::{Blocked, DiskSpace};
use domain::bytes::DisplayBytes;

use super::{AppendError, lock};

/// The smallest default floor: a closing write-ahead file is copied into itself, and is this large.
const FLOOR_BYTES_MIN: u64 = 64 << 20;
/// The largest default floor: the chunks of a full head of a quarter of a million series, several times over.
const FLOOR_BYTES_MAX: u64 = 1 << 30;
/// Between those, the default floor is this part of the disk.
const FLOOR_PART: u64 = 100;
/// However little is asked for: with less, not even the state can be written, and agents are not let in.
const FLOOR_BYTES_LEAST: u64 = 1 << 20;
/// Ingest begins again when the free space is this part of the floor above it: a disk that is filled and emptied by a few
/// bytes must not turn ingest on and off each second.
const RESUME_PART: u64 = 5;
/// How old the last look may be. Within that time a thousand nodes write some megabytes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// SQLite's code for a write that found no room.
const SQLITE_FULL: &str = "13";

/// Looks at the disk, and remembers.
#[derive(Debug)]
pub(crate) struct Space {
    folder: PathBuf,
    floor: Option<u64>,
    pause: Duration,
    state: Mutex<State>,
}

/// What was seen last, and what follows from it.
#[derive(Debug, Default)]
struct State {
    looked: Option<Instant>,
    space: DiskSpace,
    failed: Option<Instant>,
}

impl Space {
    /// `floor`: free bytes below which nothing is taken; by the size of the disk when none is given. `pause`: how long nothing
    /// is written after a write that failed for want of space, when the free space does not explain it.
    pub(crate) fn new(folder: &Path, floor: Option<u64>, pause: Duration) -> Self {
        Self {
            folder: folder.to_owned(),
            floor,
            pause,
            state: Mutex::default(),
        }
    }

    /// Refuses when there is no room.
    pub(crate) fn check(&self) -> Result<(), AppendError> {
        let space = self.look();
        match space.blocked {
            None => Ok(()),
            Some(_) => Err(AppendError::DiskFull {
                free: space.free_bytes,
                floor: space.floor_bytes,
            }),
        }
    }

    /// The room as of a second ago at most.
    pub(crate) fn look(&self) -> DiskSpace {
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.looked.is_some_and(|looked| now - looked < LOOK_EVERY) {
            return state.space;
        }
        state.looked = Some(now);
        match rustix::fs::statvfs(&self.folder) {
            Ok(stat) => {
                let before = state.space.blocked;
                let total = stat.f_blocks.saturating_mul(stat.f_frsize);
                let floor = self
                    .floor
                    .map_or_else(|| floor_of(total), |floor| floor.max(FLOOR_BYTES_LEAST));
                let paused = state.failed.is_some_and(|failed| now - failed < self.pause);
                state.note(stat.f_bavail.saturating_mul(stat.f_frsize), total, floor, paused);
                self.tell(before, state.space);
            }
            // A folder that cannot be looked at fails its writes too, and those are told.
            Err(error) => tracing::debug!(%error, "the free space cannot be looked at"),
        }
        state.space
    }

    /// A write failed. Returns whether for want of space.
    pub(crate) fn note_failure(&self, error: &sqlx::Error) -> bool {
        if !is_full(error) {
            return false;
        }
        let mut state = lock(&self.state);
        let before = state.space.blocked;
        (state.failed, state.looked) = (Some(Instant::now()), None);
        state.space.blocked.get_or_insert(Blocked::WriteFailed);
        self.tell(before, state.space);
        true
    }

    /// Once at the beginning and once at the end.
    fn tell(&self, before: Option<Blocked>, now: DiskSpace) {
        let (folder, free) = (self.folder.display(), DisplayBytes(now.free_bytes));
        let floor = DisplayBytes(now.floor_bytes);
        match (before, now.blocked) {
            (None, Some(_)) => {
                tracing::error!(%folder, %free, %floor, "the disk is full: no samples are taken, queries go on; senders keep theirs. Free some space, or lower --min-free-space");
            }
            (Some(_), None) => {
                tracing::info!(%folder, %free, %floor, "there is room on the disk again: samples are taken");
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

/// Whether an error says that there is no room.
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
        let space = Space::new(folder.path(), Some(u64::MAX), Duration::ZERO);
        let Err(AppendError::DiskFull { free, floor }) = space.check() else {
            panic!("there is not that much room anywhere");
        };
        assert!(free > 0 && floor == u64::MAX);
        assert!(Space::new(folder.path(), Some(0), Duration::ZERO).check().is_ok());
    }

    #[tokio::test]
    async fn sqlite_says_full_in_its_own_words() {
        use sqlx::Connection;
        let mut connection = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
        sqlx::raw_sql("CREATE TABLE t (x); PRAGMA max_page_count = 3")
            .execute(&mut connection)
            .await
            .unwrap();
        let insert = sqlx::query("INSERT INTO t VALUES (zeroblob(100000))").execute(&mut connection);
        let error = insert.await.unwrap_err();
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(folder.path(), Some(0), Duration::from_secs(5));
        assert!(space.note_failure(&error), "{error}");
        assert!(matches!(space.check(), Err(AppendError::DiskFull { .. })));
        assert!(!space.note_failure(&sqlx::Error::RowNotFound));
    }
}
