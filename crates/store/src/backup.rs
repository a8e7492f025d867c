//! Backups: one archive of everything that is acknowledged so far. The store stays in use.
//!
//! ```text
//! read the sessions' numbers → seal memory into chunks → VACUUM INTO a private folder in DATA → compute SHA-256 → archive
//!
//! backup.json   BackupHead: format, version, time, and of each file its size and SHA-256
//! lockstep.db   series
//! state.db      runs, events, alerts, tokens (as hashes), webhooks (with their secrets)
//! ```
//! The archive is a tar file: `tar tf` lists it and `sqlite3` reads its files. It does not contain the write-ahead log, because
//! the chunks have its samples. The sessions' numbers are those from before the sealing. Otherwise, after a restore, a sender
//! that repeats what it sent in between would be told that it is already stored.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use domain::api::store::{BACKUP_FORMAT, BackupFile, BackupHead};
use domain::bytes::DisplayBytes;
use domain::time::TimestampMs;
use sha2::{Digest, Sha256};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::{Store, sqlite};

/// The name of the archive's first entry.
const HEAD: &str = "backup.json";
/// The files of a backup. Other names are never unpacked.
pub(crate) const FILES: [&str; 2] = ["lockstep.db", "state.db"];
/// The maximum size of the head, which describes two files.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// The folder of the copy in the data folder, until it is sent.
const FOLDER: &str = "backup-in-progress";
/// The number of bytes read at once: large enough for the disk, small compared with other buffers.
const PIECE_BYTES: usize = 256 << 10;

/// The reason why a backup cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Another backup is being made.
    #[error("another backup is being made; wait until it ends, or stop it")]
    Busy,
    /// The disk has no room for the copy.
    #[error(
        "a backup needs {} for a copy beside the data, and {} are free, of which {} stay free for the store itself; \
         free some space, or stop the collector and copy the data folder as it is",
        DisplayBytes(*needed), DisplayBytes(*free), DisplayBytes(*floor)
    )]
    NoRoom {
        /// The size of the copy in bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
        /// Bytes that must stay free.
        floor: u64,
    },
    /// The samples in memory could not be sealed.
    #[error("samples in memory cannot be written to the store's files")]
    Seal(#[source] crate::series::AppendError),
    /// A database could not be copied.
    #[error("{file} cannot be copied; run `lockstep store check` to check it for damage")]
    Copy {
        /// The name of the database file.
        file: &'static str,
        /// The error of SQLite.
        #[source]
        source: sqlx::Error,
    },
    /// The private folder cannot be written or read.
    #[error("cannot write or read the copy in {path}", path = path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A consistent copy. It is on disk until this is dropped.
#[derive(Debug)]
pub struct Snapshot {
    folder: PrivateFolder,
    head: BackupHead,
}

impl Store {
    /// Makes a copy of everything that was acknowledged before this call.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn snapshot(&self, version: &str, now_ms: TimestampMs) -> Result<Snapshot, BackupError> {
        let data = self.series.data_dir().to_owned();
        let folder = PrivateFolder::create(data.join(FOLDER))?;
        let sessions = self.series.session_numbers();
        self.series.seal_now().await.map_err(BackupError::Seal)?;
        self.check_room(&data).await?;
        for file in FILES {
            let copy = copy(&data.join(file), &folder.0.join(file)).await;
            copy.map_err(|source| BackupError::Copy { file, source })?;
        }
        let series = set_sessions(&folder.0.join(FILES[0]), &sessions).await;
        series.map_err(|source| BackupError::Copy {
            file: FILES[0],
            source,
        })?;
        let files = sums(folder.0.clone()).await?;
        let head = BackupHead {
            format: BACKUP_FORMAT,
            version: version.to_owned(),
            created_ms: now_ms,
            files,
        };
        Ok(Snapshot { folder, head })
    }

    /// Checks that the copy does not itself fill the disk and stop ingest.
    async fn check_room(&self, data: &Path) -> Result<(), BackupError> {
        let mut needed = 0;
        for file in FILES {
            let bytes = used_bytes(&data.join(file)).await;
            needed += bytes.map_err(|source| BackupError::Copy { file, source })?;
        }
        let space = self.series.disk_space();
        if space.free_bytes.saturating_sub(space.floor_bytes) >= needed {
            return Ok(());
        }
        Err(BackupError::NoRoom {
            needed,
            free: space.free_bytes,
            floor: space.floor_bytes,
        })
    }
}

impl Snapshot {
    /// Returns the description that the archive will contain.
    #[must_use]
    pub fn head(&self) -> &BackupHead {
        &self.head
    }

    /// Returns the size of the archive: blocks of 512 bytes, one before each file and two at the end.
    #[must_use]
    pub fn archive_bytes(&self) -> u64 {
        let head = serde_json::to_vec_pretty(&self.head).map_or(0, |head| head.len() as u64);
        let files = self.head.files.iter().map(|file| file.bytes);
        let entries = files.chain([head]).map(|bytes| 512 + bytes.div_ceil(512) * 512);
        entries.sum::<u64>() + 1_024
    }

    /// Writes the archive. This takes as long as its reader needs.
    ///
    /// # Errors
    /// Fails if the copy cannot be read or the archive cannot be written.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(out);
        let head = serde_json::to_vec_pretty(&self.head)?;
        archive.append_data(&mut self.header(head.len() as u64), HEAD, head.as_slice())?;
        for file in &self.head.files {
            let content = File::open(self.folder.0.join(&file.name))?;
            let content = io::BufReader::with_capacity(PIECE_BYTES, content);
            archive.append_data(&mut self.header(file.bytes), &file.name, content)?;
        }
        archive.into_inner()?.flush()
    }

    fn header(&self, bytes: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(self.head.created_ms.unsigned_abs() / 1_000);
        header.set_entry_type(tar::EntryType::Regular);
        header
    }
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create(path: PathBuf) -> Result<Self, BackupError> {
        use std::os::unix::fs::DirBuilderExt;
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(BackupError::Busy),
            Err(source) => Err(BackupError::Io { path, source }),
        }
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "the copy of a backup could not be removed; the next start removes it");
        }
    }
}

/// Removes the copy of a process that ended during a backup.
pub(crate) fn remove_left_over(data: &Path) {
    let path = data.join(FOLDER);
    if path.exists() {
        tracing::info!(folder = %path.display(), "removed the copy of an unfinished backup");
        drop(PrivateFolder(path));
    }
}

async fn used_bytes(path: &Path) -> Result<u64, sqlx::Error> {
    let mut connection = sqlite::options(path, None).connect().await?;
    let mut number = async |sql: &'static str| {
        let number: Result<i64, _> = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        number.map(i64::unsigned_abs)
    };
    let pages = number("PRAGMA page_count").await?;
    let free = number("PRAGMA freelist_count").await?;
    let bytes = number("PRAGMA page_size").await?;
    connection.close().await?;
    Ok((pages - free.min(pages)) * bytes)
}

/// Copies a database as of one moment. Uses a separate connection, because it may take minutes.
async fn copy(from: &Path, to: &Path) -> Result<(), sqlx::Error> {
    sqlite::create_private(to)?;
    let mut connection = sqlite::options(from, None).connect().await?;
    sqlx::query("VACUUM INTO ?")
        .bind(to.to_string_lossy().into_owned())
        .execute(&mut connection)
        .await?;
    connection.close().await
}

async fn set_sessions(path: &Path, sessions: &[(String, u64, TimestampMs)]) -> Result<(), sqlx::Error> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let mut transaction = connection.begin().await?;
    sqlx::query("DELETE FROM sessions")
        .execute(&mut *transaction)
        .await?;
    let rows = sessions
        .iter()
        .map(|(session, seq, seen_ms)| serde_json::json!([session, seq, seen_ms]));
    sqlx::query(
        "INSERT INTO sessions (session, seq, seen_ms) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)",
    )
    .bind(serde_json::Value::Array(rows.collect()).to_string())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    connection.close().await
}

async fn sums(folder: PathBuf) -> Result<Vec<BackupFile>, BackupError> {
    let sum = {
        let folder = folder.clone();
        move || FILES.iter().map(|name| sum(&folder.join(name), name)).collect()
    };
    let summed = tokio::task::spawn_blocking(sum)
        .await
        .unwrap_or_else(|panic| Err(io::Error::other(panic)));
    summed.map_err(|source| BackupError::Io { path: folder, source })
}

fn sum(path: &Path, name: &str) -> io::Result<BackupFile> {
    let mut content = Summed::new(File::open(path)?);
    io::copy(
        &mut io::BufReader::with_capacity(PIECE_BYTES, &mut content),
        &mut io::sink(),
    )?;
    Ok(BackupFile {
        name: name.to_owned(),
        bytes: content.bytes,
        sha256: content.sha256(),
    })
}

/// A reader that counts and hashes what is read through it.
struct Summed<R> {
    inner: R,
    bytes: u64,
    hash: Sha256,
}

impl<R: Read> Summed<R> {
    fn new(inner: R) -> Self {
        Self {
            inner,
            bytes: 0,
            hash: Sha256::new(),
        }
    }

    fn sha256(self) -> String {
        hex::encode(self.hash.finalize())
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.bytes += n as u64;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

// === reading an archive ===

/// The reason why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is not a backup.
    #[error("this is not a backup made by `lockstep store backup`: {0}")]
    Foreign(String),
    /// A later version wrote it.
    #[error(
        "the backup was written by Lockstep {version} in format {format}, and this Lockstep reads up to {BACKUP_FORMAT}; \
         use that version or a later one"
    )]
    Newer {
        /// The version that wrote it.
        version: String,
        /// The format of the archive.
        format: u64,
    },
    /// The archive ends too early.
    #[error("the backup ends in the middle of {0}; it was not written or copied completely")]
    Truncated(String),
    /// The content of a file differs from what was written.
    #[error("{0} in the backup is damaged: its SHA-256 differs; use another copy of the backup")]
    Changed(String),
    /// The archive cannot be read, or its files cannot be written.
    #[error("the backup cannot be read, or its files cannot be written")]
    Io(#[from] io::Error),
}

/// Reads a whole archive, passes each file to `take`, and checks that it is as it was written. The files are valid only after
/// this has returned.
///
/// # Errors
/// See [`ArchiveError`].
pub fn read_archive(
    archive: impl Read,
    mut begin: impl FnMut(&BackupHead) -> io::Result<()>,
    mut take: impl FnMut(&BackupFile, &mut dyn Read) -> io::Result<()>,
) -> Result<BackupHead, ArchiveError> {
    let mut archive = tar::Archive::new(archive);
    let mut entries = archive.entries().map_err(foreign)?;
    let mut next = |name: &str| match entries.next() {
        Some(Ok(entry)) => Ok(entry),
        Some(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(ArchiveError::Truncated(name.to_owned()))
        }
        Some(Err(error)) => Err(foreign(error)),
        None => Err(ArchiveError::Truncated(name.to_owned())),
    };
    let head = read_head(next(HEAD).map_err(not_ours)?)?;
    begin(&head)?;
    for file in &head.files {
        let mut entry = next(&file.name)?;
        if entry.path_bytes() != file.name.as_bytes()
            || entry.size() != file.bytes
            || !entry.header().entry_type().is_file()
        {
            let found = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            return Err(ArchiveError::Foreign(format!(
                "found {found:?} instead of {}",
                file.name
            )));
        }
        let mut content = Summed::new(&mut entry);
        take(file, &mut content)?;
        io::copy(&mut content, &mut io::sink())?;
        if content.bytes < file.bytes {
            return Err(ArchiveError::Truncated(file.name.clone()));
        }
        if content.sha256() != file.sha256 {
            return Err(ArchiveError::Changed(file.name.clone()));
        }
    }
    match entries.next() {
        None => Ok(head),
        Some(_) => Err(ArchiveError::Foreign(
            "it has more files than its backup.json lists".into(),
        )),
    }
}

fn foreign(error: io::Error) -> ArchiveError {
    ArchiveError::Foreign(error.to_string())
}

/// Reports an archive without a head as foreign.
fn not_ours(error: ArchiveError) -> ArchiveError {
    match error {
        ArchiveError::Truncated(_) => ArchiveError::Foreign("it is empty or cut off".into()),
        other => other,
    }
}

fn read_head(entry: tar::Entry<'_, impl Read>) -> Result<BackupHead, ArchiveError> {
    let wrong = |what: &str| ArchiveError::Foreign(what.to_owned());
    if *entry.path_bytes() != *HEAD.as_bytes() || entry.size() > HEAD_BYTES_MAX {
        return Err(wrong("it does not begin with backup.json"));
    }
    let mut text = Vec::new();
    let size = entry.size();
    entry.take(HEAD_BYTES_MAX).read_to_end(&mut text)?;
    if (text.len() as u64) < size {
        return Err(ArchiveError::Truncated(HEAD.into()));
    }
    let loose: serde_json::Value =
        serde_json::from_slice(&text).map_err(|_| wrong("its backup.json is not JSON"))?;
    let format = loose["format"]
        .as_u64()
        .ok_or_else(|| wrong("its backup.json has no format"))?;
    if format > u64::from(BACKUP_FORMAT) {
        return Err(ArchiveError::Newer {
            version: loose["version"]
                .as_str()
                .unwrap_or("of an unknown version")
                .into(),
            format,
        });
    }
    let head: BackupHead = serde_json::from_value(loose)
        .map_err(|error| wrong(&format!("its backup.json cannot be decoded: {error}")))?;
    let names: Vec<&str> = head.files.iter().map(|file| file.name.as_str()).collect();
    if names != FILES {
        return Err(wrong("its files are not those of a store"));
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            // Invalid names as an attacker writes them. The library's own methods refuse some of them.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn head(format: u32, files: &[(&str, &[u8])]) -> Vec<u8> {
        let file = |(name, content): &(&str, &[u8])| BackupFile {
            name: (*name).to_owned(),
            bytes: content.len() as u64,
            sha256: hex::encode(Sha256::digest(content)),
        };
        let head = BackupHead {
            format,
            version: "9.9.9".into(),
            created_ms: 1,
            files: files.iter().map(file).collect(),
        };
        serde_json::to_vec(&head).unwrap()
    }

    fn read(archive: &[u8]) -> Result<Vec<(String, Vec<u8>)>, ArchiveError> {
        let mut files = Vec::new();
        read_archive(
            archive,
            |_| Ok(()),
            |file, content| {
                let mut bytes = Vec::new();
                content.read_to_end(&mut bytes)?;
                files.push((file.name.clone(), bytes));
                Ok(())
            },
        )?;
        Ok(files)
    }

    const GOOD: [(&str, &[u8]); 2] = [("lockstep.db", b"series"), ("state.db", b"state")];

    fn good() -> Vec<u8> {
        let head = head(1, &GOOD);
        archive(&[(HEAD, &head), GOOD[0], GOOD[1]])
    }

    #[test]
    fn a_good_archive_gives_its_files() {
        let files = read(&good()).unwrap();
        assert_eq!(files[1], ("state.db".into(), b"state".to_vec()));
    }

    #[test]
    fn a_truncated_archive_is_never_accepted() {
        let good = good();
        // After the block of the last file there are only the zeros at the end of a tar file.
        for length in 0..good.len() - 1_024 - 512 {
            assert!(read(&good[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_changed_byte_of_a_file_is_noticed() {
        let mut bad = good();
        let at = bad.windows(6).position(|window| window == b"series").unwrap();
        bad[at] ^= 1;
        let error = read(&bad).unwrap_err();
        assert!(
            matches!(&error, ArchiveError::Changed(name) if name == "lockstep.db"),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let later = head(2, &GOOD);
        let error = read(&archive(&[(HEAD, &later), GOOD[0], GOOD[1]])).unwrap_err();
        assert!(error.to_string().contains("9.9.9"), "{error}");

        let evil = [("../evil", b"x".as_slice()), GOOD[1]];
        let error = read(&archive(&[(HEAD, &head(1, &evil)), evil[0], evil[1]])).unwrap_err();
        assert!(matches!(error, ArchiveError::Foreign(_)), "{error}");

        // The head has good names, but the entries have others.
        let error = read(&archive(&[
            (HEAD, &head(1, &GOOD)),
            ("/etc/x", b"series"),
            GOOD[1],
        ]))
        .unwrap_err();
        assert!(matches!(error, ArchiveError::Foreign(_)), "{error}");

        let extra = archive(&[(HEAD, &head(1, &GOOD)), GOOD[0], GOOD[1], ("more", b"x")]);
        assert!(matches!(read(&extra), Err(ArchiveError::Foreign(_))));
        for junk in [b"".as_slice(), b"hello", &[0; 4_096], &[0xff; 4_096]] {
            assert!(matches!(read(junk), Err(ArchiveError::Foreign(_))));
        }
    }
}
