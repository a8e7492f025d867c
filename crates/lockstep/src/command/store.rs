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

/// Back up, restore, check and clean up the store.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep store backup /backups/lockstep.tar             while the collector runs
  lockstep store backup - | ssh other 'cat > lockstep.tar'
  lockstep store restore lockstep.tar --data /var/lib/lockstep      with the collector stopped
  lockstep store check                                    check that everything is readable
  lockstep store check --data /var/lib/lockstep --full    the same with the collector stopped, more thorough

A backup contains series, runs, events, alerts, tokens (as hashes) and webhooks with their secrets: keep it as safe as the
collector itself. It does not contain admin.token, TLS keys, the logs of runs (DATA/logs), their secrets
(DATA/secrets) or the local agent's folder (DATA/agent).")]
pub(crate) struct Store {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Action {
    /// Write all acknowledged data into one archive, while the collector runs.
    Backup(backup::Backup),
    /// Restore a backup into a data folder that no collector uses.
    Restore(restore::Restore),
    /// Read all stored data and report damage. Exit code 1 if there is any.
    Check(check::Check),
    /// Show how much is stored, and how much disk space is free.
    Stats(stats::Stats),
    /// Delete samples permanently, by label matchers of their series.
    Delete(delete::Delete),
    /// Seal the samples in memory and merge chunks now. This also happens automatically over time.
    Compact,
}

/// The data folder of a collector that is not running.
#[derive(Args)]
struct Offline {
    /// Work directly on this data folder; its collector must not be running. Without this option, the command contacts a running collector.
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
