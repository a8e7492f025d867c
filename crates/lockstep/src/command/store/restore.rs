//! `lockstep store restore FILE --data DIR`

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use clap::Args;
use domain::api::store::CheckProgress;

use super::progress::Progress;
use crate::failure::Failure;

/// Restore a backup into a data folder that no collector uses.
#[derive(Args)]
#[command(
    after_help = "All or nothing: the backup is unpacked beside the data, its checksums are compared, all of it is checked, and only then
is it put in place. What happens to existing files of the folder:
  lockstep.db, state.db, wal-*.db   with --force moved to DIR/before-restore-N; nothing is deleted
  admin.token, logs, agent          are not changed; without an admin.token the next start creates one
Tokens created after the backup are not valid afterwards: agents that joined since then need a new join token.
Attempts of runs that started after the backup continue: the collector shows them as unknown, does not change them, and gives their
nodes no other run until they end or `lockstep run stop RUN` stops them."
)]
pub(super) struct Restore {
    /// Archive written by `lockstep store backup`; - for stdin.
    file: PathBuf,
    /// Data folder; created if it does not exist. Its collector must not be running.
    #[arg(long, env = "LOCKSTEP_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Restore even if the folder is not empty. Its series and state are moved aside.
    #[arg(long)]
    force: bool,
}

impl Restore {
    pub(super) async fn execute(self) -> Result<(), Failure> {
        let archive: Box<dyn Read + Send> = if self.file == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(&self.file);
            Box::new(file.with_context(|| format!("cannot read {}", self.file.display()))?)
        };
        let progress = Mutex::new(Progress::new());
        let tell = |CheckProgress { part, done, of }| {
            let mut line = progress.lock().expect("nothing panics while holding it");
            line.things(&format!("checking {part}"), done, of);
        };
        let restored =
            store::restore::restore(archive, &self.data, self.force, collector::clock::now_ms(), &tell).await;
        drop(progress);
        let restored = restored
            .map_err(anyhow::Error::new)
            .context("nothing was restored")?;
        let created = jiff::Timestamp::from_millisecond(restored.head.created_ms).unwrap_or_default();
        say!(
            "restored into {}: {} samples of {} series in {} chunks, as of {created}",
            self.data.display(),
            restored.report.samples,
            restored.report.series,
            restored.report.chunks
        );
        if let Some(aside) = restored.aside {
            say!("the previous data is in {}", aside.display());
        }
        say!(
            "attempts of runs that started after the backup are not changed; once the collector runs, `lockstep run list` shows them"
        );
        Ok(())
    }
}
