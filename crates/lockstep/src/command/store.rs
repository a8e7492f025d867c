//! `lockstep store backup|restore|check|stats|delete|compact`

mod archive;
mod backup;
mod check;
mod delete;
mod progress;
mod restore;
mod stats;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::client::Target;
use crate::failure::Failure;

/// Back up, restore, check and clean up what is stored.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep store backup /backups/lockstep.tar             while the collector runs
  lockstep store backup - | ssh other 'cat > lockstep.tar'
  lockstep store restore lockstep.tar --data /var/lib/lockstep      the collector stopped
  lockstep store check                                    is everything readable?
  lockstep store check --data /var/lib/lockstep --full    the same with the collector stopped, and more thorough

A backup holds series, runs, events, alerts, tokens (as hashes) and webhooks with their secrets: keep it as safe as the
collector itself. It does not hold admin.token, TLS keys, the logs of runs (DATA/logs), their secrets
(DATA/secrets) or the local agent's folder (DATA/agent).")]
pub(crate) struct Store {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Action {
    /// Write everything acknowledged so far into one archive; the collector goes on.
    Backup(backup::Backup),
    /// Put a backup into a data folder that no collector uses.
    Restore(restore::Restore),
    /// Read everything that is stored, and say what is damaged. Exit code 1 when something is.
    Check(check::Check),
    /// Say how much is stored, and how much room there is.
    Stats(stats::Stats),
    /// Delete samples for good, by what their series are called.
    Delete(delete::Delete),
    /// Seal what is in memory and merge chunks now, as happens by itself with time.
    Compact,
}

/// The data folder of a collector that does not run.
#[derive(Args)]
struct Offline {
    /// Work on this data folder itself, whose collector must not run. Without it, a running collector is asked.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Store {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        match self.action {
            Action::Backup(backup) => backup.execute(&self.target).await,
            Action::Restore(restore) => restore.execute().await,
            Action::Check(check) => check.execute(&self.target).await,
            Action::Stats(stats) => stats.execute(&self.target).await,
            Action::Delete(delete) => delete.execute(&self.target).await,
            Action::Compact => self.target.client()?.post_form("/api/store/compact", &[]).await,
        }
    }
}
