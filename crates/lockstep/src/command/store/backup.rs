//! `lockstep store backup FILE`

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use domain::api::store::BackupHead;
use domain::bytes::DisplayBytes;
use store::backup::Snapshot;
use tokio::sync::mpsc;

use super::Offline;
use super::archive::Destination;
use crate::client::Target;
use crate::failure::Failure;

/// The most pieces that wait to be written: how far the network may be ahead of the disk. Beyond it the download waits.
const PIECES_MAX: usize = 16;

/// Write all acknowledged data into one archive, while the collector runs.
#[derive(Args)]
#[command(
    after_help = "The collector seals the samples in memory, makes temporary copies of its files beside them (which need the same space
again for a while), and sends the copies. The archive is a tar file: `tar tf FILE` lists it. It is checked while it arrives.
Exit codes: 0 the backup is complete, 1 it is not and nothing was kept, 3 no collector answers."
)]
pub(super) struct Backup {
    /// File to write; - for stdout.
    file: PathBuf,
    /// Replace FILE if it exists.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    offline: Offline,
}

impl Backup {
    pub(super) async fn execute(self, target: &Target) -> Result<(), Failure> {
        let destination = Destination::new(&self.file, self.force)?;
        let head = match &self.offline.data {
            Some(data) => offline(data, destination).await?,
            None => online(target, destination).await?,
        };
        let bytes = head.files.iter().map(|file| file.bytes).sum();
        let created = jiff::Timestamp::from_millisecond(head.created_ms).unwrap_or_default();
        eprintln!(
            "backed up {} to {}: everything acknowledged before {created}",
            DisplayBytes(bytes),
            self.file.display()
        );
        Ok(())
    }
}

async fn online(target: &Target, destination: Destination) -> Result<BackupHead, Failure> {
    let mut response = target.client()?.stream("/api/store/backup", &[]).await?;
    let bytes = response.content_length();
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let writing = tokio::task::spawn_blocking(move || destination.take(ChannelReader::new(receiver), bytes));
    loop {
        let piece = match response.chunk().await {
            Ok(Some(piece)) => Ok(piece.to_vec()),
            Ok(None) => break,
            Err(error) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)),
        };
        let failed = piece.is_err();
        // The writer reports its own error.
        if sender.send(piece).await.is_err() || failed {
            break;
        }
    }
    drop(sender);
    writing.await.context("the archive could not be written")?
}

async fn offline(data: &Path, destination: Destination) -> Result<BackupHead, Failure> {
    if !data.join("lockstep.db").exists() {
        return Err(Failure::Usage(format!(
            "there is no store in {}; pass the collector's data folder",
            data.display()
        )));
    }
    let config = store::StoreConfig::new(data);
    let store = store::Store::open(config).await.map_err(anyhow::Error::new)?;
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let snapshot = store.snapshot(env!("CARGO_PKG_VERSION"), now_ms).await;
    store.close().await;
    let snapshot = snapshot.map_err(anyhow::Error::new)?;
    let taken = tokio::task::spawn_blocking(move || write(&snapshot, &destination));
    taken.await.context("the archive could not be written")?
}

/// Writes through a pipe into [`Destination::take`], so that a local archive is checked like one from the network.
fn write(snapshot: &Snapshot, destination: &Destination) -> Result<BackupHead, Failure> {
    let (reader, writer) = io::pipe()?;
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || snapshot.write(writer));
        let taken = destination.take(reader, Some(snapshot.archive_bytes()));
        let written = writing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the writer failed")));
        match (taken, written) {
            (Err(failure), _) => Err(failure),
            (Ok(_), Err(error)) => Err(error.into()),
            (Ok(head), Ok(())) => Ok(head),
        }
    })
}

/// Reads the pieces from a channel like a file.
struct ChannelReader {
    receiver: mpsc::Receiver<io::Result<Vec<u8>>>,
    piece: io::Cursor<Vec<u8>>,
}

impl ChannelReader {
    fn new(receiver: mpsc::Receiver<io::Result<Vec<u8>>>) -> Self {
        Self {
            receiver,
            piece: io::Cursor::default(),
        }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.piece.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = io::Cursor::new(piece?),
                None => return Ok(0),
            }
        }
    }
}
