//! Writes an archive to its destination. It is checked while it is written, and gets its final name only when it is complete.
//!
//! ```text
//! bytes → Tee ─▶ FILE.partial (0600) │ stdout ─▶ synced, renamed to FILE
//!          └───▶ read_archive: compares sizes and SHA-256 with the archive's head
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use domain::api::store::BackupHead;
use store::backup::read_archive;

use super::progress::Progress;
use crate::failure::Failure;

/// The destination of an archive.
pub(super) enum Destination {
    Stdout,
    File { path: PathBuf, partial: PathBuf },
}

impl Destination {
    /// Returns the destination for a path; `-` means stdout. Fails if the file exists, unless `replace`.
    pub(super) fn new(path: &Path, replace: bool) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        if !replace && path.symlink_metadata().is_ok() {
            return Err(Failure::Usage(format!(
                "{} already exists; choose another name, or pass --force to replace it",
                path.display()
            )));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        Ok(Self::File {
            path: path.to_owned(),
            partial: partial.into(),
        })
    }

    /// Reads the whole archive. If it is not complete, the partial file is removed.
    pub(super) fn take(&self, pieces: impl Read, bytes: Option<u64>) -> Result<BackupHead, Failure> {
        match self {
            Self::Stdout => take(pieces, io::stdout().lock(), bytes),
            Self::File { path, partial } => {
                let result = take_file(pieces, path, partial, bytes);
                if result.is_err() {
                    let _not_even_begun = std::fs::remove_file(partial);
                }
                result
            }
        }
    }
}

fn take_file(
    pieces: impl Read,
    path: &Path,
    partial: &Path,
    bytes: Option<u64>,
) -> Result<BackupHead, Failure> {
    let cannot = || format!("cannot write {}", partial.display());
    let file = create(partial).with_context(cannot)?;
    let head = take(pieces, &file, bytes)?;
    file.sync_all().with_context(cannot)?;
    std::fs::rename(partial, path)
        .with_context(|| format!("cannot rename {} to {}", partial.display(), path.display()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(head)
}

/// Creates a file that only its owner can read. Replaces an existing file, because it may have other permissions.
fn create(path: &Path) -> io::Result<File> {
    shim::remove_if_exists(path)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn take(pieces: impl Read, out: impl Write, bytes: Option<u64>) -> Result<BackupHead, Failure> {
    let mut tee = Tee {
        pieces,
        out,
        taken: 0,
        of: bytes,
        progress: Progress::new(),
    };
    let head = read_archive(
        &mut tee,
        |_| Ok(()),
        |_, content| io::copy(content, &mut io::sink()).map(drop),
    )
    .context("the backup is incomplete and was not kept")?;
    // Read the end of the tar file too.
    io::copy(&mut tee, &mut io::sink()).context("the backup is incomplete and was not kept")?;
    tee.out.flush().context("the archive cannot be written")?;
    Ok(head)
}

/// A reader that also writes everything it reads to `out`.
struct Tee<R, W> {
    pieces: R,
    out: W,
    taken: u64,
    of: Option<u64>,
    progress: Progress,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.pieces.read(buffer)?;
        self.out.write_all(&buffer[..n])?;
        self.taken += n as u64;
        self.progress.bytes(self.taken, self.of);
        Ok(n)
    }
}
