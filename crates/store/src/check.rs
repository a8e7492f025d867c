//! Checks the files on disk: SQLite's own structure, every chunk and batch, and the rows that describe them.
//!
//! ```text
//! lockstep.db   quick_check │ integrity_check → series and groups → every chunk decoded and compared with its row
//! wal-*.db      every batch decoded
//! state.db      quick_check │ integrity_check, foreign keys
//! ```
//! The check only reads, a few chunks at a time, on its own connections. The report contains each problem with its meaning and
//! what to do. An error that stops one part does not stop the others. Beside a running collector, the check pauses as long as
//! it works, so that it uses at most half a core.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::api::store::{CheckProblem, CheckProgress, CheckReport, PROBLEMS_MAX};
use domain::series::Labels;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::Mutex;

use crate::series::{ChunkContent, batch_samples, chunk_content, wal_files};
use crate::{OpenError, Store, backup, sqlite};

/// The maximum number of chunks in memory at once: some megabytes.
const CHUNKS_AT_ONCE: i64 = 32;
/// The maximum number of batches in memory at once.
const BATCHES_AT_ONCE: i64 = 8;
/// The number of series read in one statement.
const SERIES_AT_ONCE: i64 = 10_000;
/// The minimum interval between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The callback for progress.
pub type OnProgress<'a> = &'a (dyn Fn(CheckProgress) + Send + Sync);

/// The reason why a check could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The path is not a data folder.
    #[error("there is no store in {path}; use the collector's data folder", path = path.display())]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is in use or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Damaged chunks could not be set aside.
    #[error("damaged chunks in {path} cannot be set aside; nothing was removed", path = path.display())]
    SetAside {
        /// The folder.
        path: PathBuf,
        /// The error of SQLite or the operating system.
        #[source]
        source: sqlx::Error,
    },
}

impl Store {
    /// Checks the files while the store is in use.
    pub async fn check(&self, full: bool, on_progress: OnProgress<'_>) -> CheckReport {
        let folder = self.series.data_dir().to_owned();
        let check = Check::new(&folder, full, on_progress);
        let unlinking = Some(self.series.unlinking());
        Check { unlinking, ..check }.run().await
    }
}

/// Checks a data folder that is not in use.
///
/// # Errors
/// Fails if it is not a data folder, or if it is in use.
pub async fn check_folder(
    data: &Path,
    full: bool,
    on_progress: OnProgress<'_>,
) -> Result<CheckReport, CheckError> {
    let _lock = lock(data).await?;
    check_files(data, full, on_progress).await
}

/// Checks a data folder that is not in use, and removes the chunks that cannot be decoded, so that queries over their time work
/// again. Their bytes are kept in the folder `damaged-chunks` beside the database.
///
/// # Errors
/// Fails if it is not a data folder, if it is in use, or if the chunks cannot be moved.
pub async fn set_damaged_aside(
    data: &Path,
    full: bool,
    on_progress: OnProgress<'_>,
) -> Result<CheckReport, CheckError> {
    let _lock = lock(data).await?;
    let mut check = Check::new(data, full, on_progress);
    check.unreadable = Some(Vec::new());
    let mut report = check.look().await;
    let ids = check.unreadable.take().unwrap_or_default();
    let moved = aside::take_out(data, &ids).await;
    report.set_aside = moved.map_err(|source| CheckError::SetAside {
        path: data.to_owned(),
        source,
    })?;
    Ok(report)
}

async fn lock(data: &Path) -> Result<std::fs::File, CheckError> {
    if !data.join(backup::FILES[0]).exists() {
        return Err(CheckError::NoStore {
            path: data.to_owned(),
        });
    }
    Ok(crate::lock_folder(data).await?)
}

/// Checks a folder that the caller has already locked.
pub(crate) async fn check_files(
    folder: &Path,
    full: bool,
    on_progress: OnProgress<'_>,
) -> Result<CheckReport, CheckError> {
    Ok(Check::new(folder, full, on_progress).run().await)
}

struct Check<'a> {
    folder: &'a Path,
    on_progress: OnProgress<'a>,
    /// Held while a write-ahead file is read, so that it is not removed at the same time. Only beside a running store.
    unlinking: Option<&'a Mutex<()>>,
    last_progress: Option<Instant>,
    /// The chunks that cannot be decoded; `None` if the caller does not need them.
    unreadable: Option<Vec<i64>>,
    report: CheckReport,
}

/// What to do about each kind of problem.
mod advice {
    pub(super) const FILE: &str = "stop the collector, copy the data folder elsewhere, and check the disk's health; then restore the latest \
         backup, or use `sqlite3 FILE .recover` to save what can be read";
    pub(super) const CHUNK: &str = "queries over this time fail: stop the collector and run `lockstep store check --data DIR --set-damaged-aside`, \
         then only these samples are missing. The latest backup, restored into another folder, may have them. Check the disk's health";
    pub(super) const ROW: &str =
        "queries may miss these samples; restore the latest backup, and report this: it should not happen";
    pub(super) const BATCH: &str = "its samples are lost if the collector restarts now; seal the samples in memory with `lockstep store compact`, \
         and check the disk's health";
}

type Rows<T> = Result<Vec<T>, sqlx::Error>;

impl<'a> Check<'a> {
    fn new(folder: &'a Path, full: bool, on_progress: OnProgress<'a>) -> Self {
        Self {
            folder,
            on_progress,
            unlinking: None,
            last_progress: None,
            unreadable: None,
            report: CheckReport {
                full,
                ..CheckReport::default()
            },
        }
    }

    async fn run(mut self) -> CheckReport {
        self.look().await
    }

    async fn look(&mut self) -> CheckReport {
        let began = Instant::now();
        for file in backup::FILES {
            if let Err(error) = self.database(file).await {
                self.add(file, "the whole file".into(), &error.to_string(), advice::FILE);
            }
        }
        if let Err(error) = self.series().await {
            self.add("lockstep.db", "series".into(), &error.to_string(), advice::FILE);
        }
        if let Err(error) = self.chunks().await {
            self.add("lockstep.db", "chunks".into(), &error.to_string(), advice::FILE);
        }
        self.write_ahead().await;
        self.report.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        std::mem::take(&mut self.report)
    }

    async fn connect(&self, file: &str) -> Result<SqliteConnection, sqlx::Error> {
        let options = sqlite::options(&self.folder.join(file), None).pragma("query_only", "ON");
        options.connect().await
    }

    fn add(&mut self, file: &str, place: String, what: &str, advice: &str) {
        tracing::error!(file, place, what, "the store is damaged");
        self.report.add(CheckProblem {
            file: file.into(),
            place,
            what: what.into(),
            advice: advice.into(),
        });
    }

    /// Reports the progress, at most every [`PROGRESS_INTERVAL`] and at the end of a part.
    fn report_progress(&mut self, part: &str, done: u64, of: u64) {
        if done < of
            && self
                .last_progress
                .is_some_and(|at| at.elapsed() < PROGRESS_INTERVAL)
        {
            return;
        }
        self.last_progress = Some(Instant::now());
        (self.on_progress)(CheckProgress {
            part: part.into(),
            done,
            of,
        });
    }

    /// Pauses as long as it has worked, if the store is in use.
    async fn rest(&self, since: Instant) {
        if self.unlinking.is_some() {
            tokio::time::sleep(since.elapsed()).await;
        }
    }

    async fn database(&mut self, file: &str) -> Result<(), sqlx::Error> {
        self.report_progress(file, 0, 1);
        let mut connection = self.connect(file).await?;
        let check = if self.report.full {
            "PRAGMA integrity_check"
        } else {
            "PRAGMA quick_check"
        };
        let said: Vec<String> = sqlx::query_scalar(check).fetch_all(&mut connection).await?;
        for line in said.iter().filter(|line| *line != "ok") {
            self.add(file, "SQLite's structure".into(), line, advice::FILE);
        }
        let dangling: Vec<(String, Option<i64>, String)> =
            sqlx::query_as(r#"SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT ?"#)
                .bind(PROBLEMS_MAX as i64)
                .fetch_all(&mut connection)
                .await?;
        for (table, row, parent) in dangling {
            let place = format!("{table}, row {}", row.unwrap_or_default());
            self.add(
                file,
                place,
                &format!("the row that it refers to is not in {parent}"),
                advice::ROW,
            );
        }
        self.report_progress(file, 1, 1);
        connection.close().await
    }

    async fn series(&mut self) -> Result<(), sqlx::Error> {
        let mut connection = self.connect(backup::FILES[0]).await?;
        self.report.groups = count(&mut connection, "SELECT count(*) FROM groups").await?;
        let all = count(&mut connection, "SELECT count(*) FROM series").await?;
        let mut last = 0;
        loop {
            let began = Instant::now();
            let rows: Vec<(i64, String)> =
                sqlx::query_as("SELECT id, labels FROM series WHERE id > ? ORDER BY id LIMIT ?")
                    .bind(last)
                    .bind(SERIES_AT_ONCE)
                    .fetch_all(&mut connection)
                    .await?;
            let Some((id, _)) = rows.last() else { break };
            last = *id;
            self.report.series += rows.len() as u64;
            for (id, labels) in rows {
                if let Err(error) = serde_json::from_str::<Labels>(&labels) {
                    let what = format!("its labels cannot be decoded: {error}");
                    self.add("lockstep.db", format!("series {id}"), &what, advice::FILE);
                }
            }
            self.report_progress("series", self.report.series, all.max(self.report.series));
            self.rest(began).await;
        }
        self.check_group_ends(&mut connection).await?;
        connection.close().await
    }

    /// A group whose stored end is before its last chunk hides that chunk from queries.
    async fn check_group_ends(&mut self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let wrong: Vec<(i64, String, String)> = sqlx::query_as(
            "SELECT groups.id, node, metric FROM groups
             JOIN (SELECT group_id, max(max_ms) AS last_ms FROM chunks WHERE resolution_ms = 0 GROUP BY group_id) ON group_id = groups.id
             WHERE sealed_max_ms IS NULL OR sealed_max_ms < last_ms LIMIT ?",
        )
        .bind(PROBLEMS_MAX as i64)
        .fetch_all(connection)
        .await?;
        for (id, node, metric) in wrong {
            let place = format!("group {id} ({metric} of {node:?})");
            self.add("lockstep.db", place, "it ends before its last chunk", advice::ROW);
        }
        Ok(())
    }

    async fn chunks(&mut self) -> Result<(), sqlx::Error> {
        let mut connection = self.connect(backup::FILES[0]).await?;
        let all = count(&mut connection, "SELECT count(*) FROM chunks").await?;
        let mut last = i64::MIN;
        loop {
            let began = Instant::now();
            let rows: Vec<ChunkRow> = some_chunks(&mut connection, last).await?;
            let Some(row) = rows.last() else { break };
            last = row.id;
            let looked = tokio::task::spawn_blocking(move || {
                rows.into_iter()
                    .map(|row| (row.look(), row.without_data()))
                    .collect::<Vec<_>>()
            });
            for (found, row) in looked.await.map_err(std::io::Error::other)? {
                self.chunk(&row, found);
            }
            self.report_progress("chunks", self.report.chunks, all.max(self.report.chunks));
            self.rest(began).await;
        }
        connection.close().await
    }

    fn chunk(&mut self, row: &ChunkRow, found: Result<(), Wrong>) {
        self.report.chunks += 1;
        self.report.samples += row.samples.unsigned_abs();
        self.report.chunk_bytes += row.bytes;
        match found {
            Ok(()) => {}
            Err(Wrong::Bytes(what)) => {
                self.unreadable.iter_mut().for_each(|ids| ids.push(row.id));
                self.add("lockstep.db", row.place(), &what, advice::CHUNK);
            }
            Err(Wrong::Row(what)) => self.add("lockstep.db", row.place(), &what, advice::ROW),
        }
    }

    async fn write_ahead(&mut self) {
        let files = match wal_files(self.folder) {
            Ok(files) => files,
            Err(error) => {
                return self.add("wal-*.db", "the folder".into(), &error.to_string(), advice::FILE);
            }
        };
        let all = files.len() as u64;
        for (n, path) in files.iter().enumerate() {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let began = Instant::now();
            let result = {
                let _stays = match self.unlinking {
                    Some(unlinking) => Some(unlinking.lock().await),
                    None => None,
                };
                if path.exists() {
                    self.write_ahead_file(&name).await
                } else {
                    Ok(())
                }
            };
            if let Err(error) = result {
                self.add(&name, "the whole file".into(), &error.to_string(), advice::BATCH);
            }
            self.report_progress("write-ahead", n as u64 + 1, all);
            self.rest(began).await;
        }
    }

    async fn write_ahead_file(&mut self, name: &str) -> Result<(), sqlx::Error> {
        let mut connection = self.connect(name).await?;
        let mut last = 0_i64;
        loop {
            let rows: Rows<(i64, Vec<u8>)> =
                sqlx::query_as("SELECT id, data FROM batches WHERE id > ? ORDER BY id LIMIT ?")
                    .bind(last)
                    .bind(BATCHES_AT_ONCE)
                    .fetch_all(&mut connection)
                    .await;
            let rows = rows?;
            let Some((id, _)) = rows.last() else { break };
            last = *id;
            let looked = tokio::task::spawn_blocking(move || {
                let look = |(id, data): (i64, Vec<u8>)| (id, batch_samples(&data));
                rows.into_iter().map(look).collect::<Vec<_>>()
            });
            for (id, found) in looked.await.map_err(std::io::Error::other)? {
                match found {
                    Ok(samples) => {
                        self.report.batches += 1;
                        self.report.batch_samples += samples;
                    }
                    Err(error) => self.add(name, format!("batch {id}"), &error, advice::BATCH),
                }
            }
        }
        connection.close().await
    }
}

async fn count(connection: &mut SqliteConnection, sql: &'static str) -> Result<u64, sqlx::Error> {
    let count: i64 = sqlx::query_scalar(sql).fetch_one(connection).await?;
    Ok(count.unsigned_abs())
}

/// Removal of chunks that cannot be decoded.
mod aside {
    use super::*;

    /// The folder for their bytes, for a later recovery.
    const FOLDER: &str = "damaged-chunks";

    /// Writes the bytes first and then deletes the rows, so that nothing is lost if this fails.
    pub(super) async fn take_out(data: &Path, ids: &[i64]) -> Result<u64, sqlx::Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let folder = data.join(FOLDER);
        std::fs::create_dir_all(&folder)?;
        let mut connection = sqlite::options(&data.join(backup::FILES[0]), None)
            .connect()
            .await?;
        let mut transaction = connection.begin().await?;
        for id in ids {
            let bytes: Vec<u8> = sqlx::query_scalar("SELECT data FROM chunks WHERE id = ?")
                .bind(id)
                .fetch_one(&mut *transaction)
                .await?;
            let path = folder.join(format!("chunk-{id}"));
            sqlite::create_private(&path)?;
            std::fs::write(path, bytes)?;
            sqlx::query("DELETE FROM chunks WHERE id = ?")
                .bind(id)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        connection.close().await?;
        Ok(ids.len() as u64)
    }
}

// === one chunk ===

/// A chunk's row with the names of its group.
#[derive(Debug, sqlx::FromRow)]
struct ChunkRow {
    id: i64,
    group_id: i64,
    node: Option<String>,
    metric: Option<String>,
    min_ms: i64,
    max_ms: i64,
    series: i64,
    samples: i64,
    resolution_ms: i64,
    data: Vec<u8>,
    #[sqlx(skip)]
    bytes: u64,
}

/// What is wrong with a chunk: its bytes, or what the row says about them.
enum Wrong {
    Bytes(String),
    Row(String),
}

async fn some_chunks(connection: &mut SqliteConnection, after: i64) -> Rows<ChunkRow> {
    sqlx::query_as(
        "SELECT chunks.id, group_id, node, metric, min_ms, max_ms, series, samples, resolution_ms, data
         FROM chunks LEFT JOIN groups ON groups.id = group_id WHERE chunks.id > ? ORDER BY chunks.id LIMIT ?",
    )
    .bind(after)
    .bind(CHUNKS_AT_ONCE)
    .fetch_all(connection)
    .await
}

impl ChunkRow {
    fn look(&self) -> Result<(), Wrong> {
        let found = chunk_content(&self.data).map_err(Wrong::Bytes)?;
        if self.node.is_none() {
            return Err(Wrong::Row(format!("its group {} does not exist", self.group_id)));
        }
        let series = self.series.unsigned_abs();
        let said = ChunkContent {
            series: (series, series),
            samples: self.samples.unsigned_abs(),
            span: Some((self.min_ms, self.max_ms)),
            resolution_ms: self.resolution_ms,
        };
        let fits = (found.series.0..=found.series.1).contains(&series)
            && (found.samples, found.span, found.resolution_ms)
                == (said.samples, said.span, said.resolution_ms);
        if fits {
            return Ok(());
        }
        Err(Wrong::Row(format!(
            "the row says {said}, but the chunk has {found}"
        )))
    }

    fn without_data(self) -> Self {
        Self {
            bytes: self.data.len() as u64,
            data: Vec::new(),
            ..self
        }
    }

    fn place(&self) -> String {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".into());
        format!(
            "chunk {} ({} of {:?}, {} to {} ms)",
            self.id,
            name(&self.metric),
            name(&self.node),
            self.min_ms,
            self.max_ms
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::StoreConfig;

    async fn execute(folder: &Path, sql: &'static str) {
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.join("lockstep.db"))
            .foreign_keys(false);
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    async fn store() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        Store::open(StoreConfig::new(folder.path()))
            .await
            .unwrap()
            .close()
            .await;
        folder
    }

    #[tokio::test]
    async fn an_empty_store_is_sound_and_no_store_is_none() {
        let folder = store().await;
        let report = check_folder(folder.path(), true, &|_| ()).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        let nothing = tempfile::tempdir().unwrap();
        let error = check_folder(nothing.path(), false, &|_| ()).await.unwrap_err();
        assert!(matches!(error, CheckError::NoStore { .. }));
        assert_eq!(std::fs::read_dir(nothing.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn each_kind_of_damage_is_found_where_it_is() {
        let folder = store().await;
        execute(
            folder.path(),
            "INSERT INTO groups (id, node, metric) VALUES (1, 'n1', 'up');
             INSERT INTO series (id, group_id, labels) VALUES (1, 1, 'not labels'), (2, 77, '{}');
             INSERT INTO chunks (id, group_id, min_ms, max_ms, series, samples, data) VALUES (5, 1, 0, 9, 1, 2, x'00')",
        )
        .await;
        let report = check_folder(folder.path(), false, &|_| ()).await.unwrap();
        let found = |place: &str, what: &str| {
            let fits = |problem: &&CheckProblem| problem.place.contains(place) && problem.what.contains(what);
            assert!(
                report.problems.iter().any(|problem| fits(&problem)),
                "{place}: {:?}",
                report.problems
            );
        };
        found("series 1", "labels");
        found("series, row 2", "groups");
        found("chunk 5 (up of \"n1\"", "damaged");
        found("group 1", "ends before");
        assert_eq!(report.problems_total, 4);

        let report = set_damaged_aside(folder.path(), false, &|_| ()).await.unwrap();
        assert_eq!((report.problems_total, report.set_aside), (4, 1));
        let kept = std::fs::read(folder.path().join("damaged-chunks/chunk-5")).unwrap();
        assert_eq!(kept, [0]);
        let report = check_folder(folder.path(), false, &|_| ()).await.unwrap();
        assert_eq!(
            (report.problems_total, report.chunks),
            (2, 0),
            "{:?}",
            report.problems
        );
    }

    #[tokio::test]
    async fn merged_and_rolled_up_chunks_are_sound_and_a_wrong_row_is_not() {
        const HOUR_MS: i64 = 3_600_000;
        const START_MS: i64 = 1_790_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            gather_ms: 0,
            retention_ms: 2 * HOUR_MS,
            ..StoreConfig::new(folder.path())
        };
        let store = Store::open(config).await.unwrap();
        let labels = Labels::new([("__name__", "up"), ("node", "n1")]).unwrap();
        let id = store.series.resolve(&labels).unwrap();
        // Eight hours of samples, one chunk per hour. The last ones are too young for a roll-up.
        for hour in 0..8 {
            let times_ms: Vec<i64> = (0..240).map(|n| START_MS + hour * HOUR_MS + n * 15_000).collect();
            let now_ms = *times_ms.last().unwrap();
            let block = crate::series::Block {
                shape: store.series.shape(vec![id]).unwrap(),
                values: times_ms.iter().map(|time_ms| (time_ms % 7_001) as f64).collect(),
                times_ms,
            };
            let append = crate::series::Append {
                source: None,
                blocks: vec![block],
            };
            store.series.append(append, now_ms).await.unwrap();
            store.series.seal_now().await.unwrap();
        }
        let now_ms = START_MS + 8 * HOUR_MS;
        store.series.retain_now(now_ms).await.unwrap();
        store.series.compact_now(now_ms).await.unwrap();
        let totals = store.series.totals().await.unwrap();
        assert!(
            totals.rollup_buckets > 200 && totals.chunk_samples > 200,
            "{totals:?}"
        );
        let beside = store.check(true, &|_| ()).await;
        assert!(beside.is_clean(), "{:?}", beside.problems);
        store.close().await;

        execute(
            folder.path(),
            "UPDATE chunks SET samples = samples + 1; UPDATE chunks SET max_ms = max_ms - 1 WHERE resolution_ms > 0",
        )
        .await;
        let report = check_folder(folder.path(), false, &|_| ()).await.unwrap();
        assert_eq!(report.problems_total, report.chunks, "{:?}", report.problems);
        assert!(
            report
                .problems
                .iter()
                .all(|problem| problem.what.contains("the row says"))
        );
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_does_not_stop_the_rest() {
        let folder = store().await;
        std::fs::write(folder.path().join("state.db"), [7; 8_192]).unwrap();
        let report = check_folder(folder.path(), false, &|_| ()).await.unwrap();
        assert_eq!(report.problems_total, 1, "{:?}", report.problems);
        assert_eq!(report.problems[0].file, "state.db");
    }
}
