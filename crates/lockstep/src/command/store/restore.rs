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

/// Put a backup into a data folder that no collector uses.
#[derive(Args)]
#[command(
    after_help = "All or nothing: the backup is unpacked beside the data, its sums compared, everything in it checked, and only then
put in place. What happens to the folder's own things:
  lockstep.db, state.db, wal-*.db   with --force moved to DIR/before-restore-N; nothing is deleted
  admin.token, logs, agent          stay as they are; without an admin.token the next start makes one
Tokens made after the backup are unknown afterwards: agents that joined since then need a new join token.
Attempts of runs that began after the backup go on: the collector shows them as unknown, leaves them alone, and gives their nodes no
other run until they end or `lockstep run stop RUN` stops them."
)]
pub(super) struct Restore {
    /// The archive that `lockstep store backup` wrote; - for stdin.
    file: PathBuf,
    /// The data folder; made when missing. Its collector must not run.
    #[arg(long, env = "LOCKSTEP_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Restore although the folder is not empty; its series and state are moved aside.
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
            say!("what was there before is in {}", aside.display());
        }
        say!(
            "attempts of runs that began since then are left alone; once the collector runs, `lockstep run list` names them"
        );
        Ok(())
    }
}
