//! The agent's side of the attempts on this node. It takes commands, starts shims, follows the files that they write, and adopts the
//! attempts of a previous agent.
//!
//! Everything that must survive a restart is in the attempt's folder; the state in memory can be rebuilt from it. A command is stored
//! before it is executed, so a repeated command has no further effect.

mod attempt;
mod shim_cleanup;

pub(crate) use attempt::Attempt;
use attempt::Follower;
use shim::{Entry, FORMAT, Folder, Owner, Secrets, files};

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::{NodeCommand, Start};
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::AgentConfig;
use crate::launch::companions;
use crate::launch::inspect::kineto;
use crate::launch::preflight::request::NodeContext;
use crate::launch::probe::SharedInventory;
use crate::launch::scope::Scope;
use crate::sample::Samples;
use crate::sample::nvml::reader::DETECTION_TIMEOUT;

/// Maximum number of attempts that one node follows at once: far more than fit on it. Beyond this, new attempts are refused.
const ATTEMPTS_MAX: usize = 64;
/// Interval between checks for watched commands.
const WATCHED_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// How long the folders of finished attempts are kept for people to read.
const KEEP_DONE: Duration = Duration::from_secs(24 * 3_600);
/// Interval between checks for older folders.
const OLD_FOLDER_SCAN_INTERVAL: Duration = Duration::from_secs(600);

/// The settings of the supervisor.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The name of this node.
    pub node: NodeName,
    /// The agent's data folder.
    pub data_dir: PathBuf,
    /// The Python for runs that specify none.
    pub python: Option<PathBuf>,
    /// The collector's URL.
    pub collector: Option<String>,
    /// Where the host's root folder is mounted, to read its `/etc`.
    pub root: PathBuf,
    /// The folder of the executable, with companions that are not embedded in it.
    pub beside: PathBuf,
    /// Whether runs may be started on this node.
    pub accepts_runs: bool,
    /// How to start a shim: a program and its arguments. The folder is appended.
    pub shim: Vec<OsString>,
}

impl From<&AgentConfig> for Setting {
    fn from(config: &AgentConfig) -> Self {
        Self {
            node: config.node.clone(),
            data_dir: config.data_dir.clone(),
            python: config.python.clone(),
            collector: config.collector.clone(),
            root: config.root.clone(),
            beside: Self::own_folder(),
            accepts_runs: config.accepts_runs,
            shim: Self::own_shim(),
        }
    }
}

impl Setting {
    fn own_folder() -> PathBuf {
        let executable = std::env::current_exe().unwrap_or_default();
        executable.parent().map(PathBuf::from).unwrap_or_default()
    }

    /// Returns the hidden subcommand of this executable: the running program, even if its file was replaced by a newer one.
    #[must_use]
    pub fn own_shim() -> Vec<OsString> {
        ["/proc/self/exe", "shim", "--dir"].map(OsString::from).into()
    }
}

/// All attempts on this node.
#[derive(Debug)]
pub struct Supervisor {
    setting: Setting,
    samples: Samples,
    inventory: SharedInventory,
    /// True once the GPUs are in the inventory, or it is certain that there are none.
    settled: watch::Receiver<bool>,
    attempts: Mutex<BTreeMap<(RunId, AttemptNo), Arc<Attempt>>>,
    attempt_added: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    /// How scopes for shims are created; determined at the first use.
    scope: OnceCell<Option<Scope>>,
}

impl Supervisor {
    /// Adopts the existing attempts and follows them until `shutdown`. The shims continue to run after it.
    #[must_use]
    pub fn start(
        setting: Setting,
        samples: Samples,
        inventory: SharedInventory,
        settled: watch::Receiver<bool>,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let supervisor = Arc::new(Self {
            setting,
            samples,
            inventory,
            settled,
            attempts: Mutex::default(),
            attempt_added: Notify::new(),
            tasks: TaskTracker::new(),
            shutdown,
            scope: OnceCell::new(),
        });
        supervisor.adopt();
        let scanning = supervisor.clone();
        supervisor.tasks.spawn(async move {
            tokio::select! {
                () = scanning.shutdown.cancelled() => {}
                () = scanning.scan_for_watched() => {}
            }
        });
        supervisor
    }

    /// Waits until all followers have ended. Call it after `shutdown`.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Executes a command once. Returns the report for the collector: the acceptance, also for a repeated command.
    pub fn command(
        self: &Arc<Self>,
        run: &RunId,
        attempt: AttemptNo,
        id: u64,
        command: Result<NodeCommand, String>,
    ) -> Option<Entry> {
        let stops = matches!(
            command,
            Ok(NodeCommand::Stop { .. } | NodeCommand::StopAfter { .. })
        );
        let changes_knobs = matches!(command, Ok(NodeCommand::TurnLive { .. }));
        let prunes = matches!(command, Ok(NodeCommand::Remove(_) | NodeCommand::Checkpoints(_)));
        let followed = match self.attempt(run, attempt) {
            Some(followed) => followed,
            None => self.open_attempt(run, attempt, stops)?,
        };
        // These commands also apply to attempts that started before the agent was told to accept no runs.
        let already_started = (prunes || changes_knobs) && followed.folder().has(files::START);
        match command {
            _ if !(self.setting.accepts_runs || stops || already_started) => followed.refuse(
                id,
                "this node does not accept runs: its agent was started with --no-runs",
            ),
            Ok(command) => followed.accept(id, command),
            Err(error) => followed.refuse(
                id,
                &format!(
                    "this agent does not understand the command, it may be older than the collector: {error}"
                ),
            ),
        }
    }

    /// Waits until the node's GPUs are known, but only for a limited time: a driver that hangs must not delay a run on CPUs.
    pub(crate) async fn gpus_known(&self) {
        let mut settled = self.settled.clone();
        let _known_or_late =
            tokio::time::timeout(DETECTION_TIMEOUT, settled.wait_for(|settled| *settled)).await;
    }

    /// Returns the kind of scope for shims, or `None` if the machine has no usable systemd.
    pub(crate) async fn scope(&self) -> Option<&Scope> {
        self.scope.get_or_init(Scope::of_this_machine).await.as_ref()
    }

    /// Returns all attempts that are followed.
    pub(crate) fn attempts(&self) -> Vec<Arc<Attempt>> {
        self.lock().values().cloned().collect()
    }

    /// Waits until a new attempt is followed.
    pub(crate) async fn attempt_added(&self) {
        self.attempt_added.notified().await;
    }

    /// Returns true if no attempt is followed.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns one attempt, if it is followed.
    pub(crate) fn attempt(&self, run: &RunId, attempt: AttemptNo) -> Option<Arc<Attempt>> {
        self.lock().get(&(run.clone(), attempt)).cloned()
    }

    /// Returns the folder of an attempt, also of one that is over and not removed yet.
    pub(crate) fn folder(&self, run: &RunId, attempt: AttemptNo) -> Option<Folder> {
        Some(Folder::of(&self.setting.data_dir, run, attempt)).filter(|folder| folder.path().is_dir())
    }

    /// Returns true if the run was told to stop and has not ended yet.
    pub(crate) fn is_stopping(&self, run: &str) -> bool {
        let stopping =
            |attempt: &Arc<Attempt>| attempt.run().as_str() == run && attempt.folder().has(files::STOP);
        self.attempts().iter().any(stopping)
    }

    /// Returns the checkpoints from which attempts on this node resumed, of any run.
    pub(crate) fn resumed_from(&self) -> BTreeSet<String> {
        let from = |attempt: &Arc<Attempt>| attempt.folder().read::<Start>(files::START).ok()?.resume_from;
        self.attempts().iter().filter_map(from).collect()
    }

    /// Closes an attempt and stops following it: the collector has all reports.
    pub(crate) fn forget(&self, attempt: &Attempt) {
        Secrets::remove(attempt.folder());
        kineto::remove(attempt.folder());
        if let Err(error) = attempt.folder().write(files::DONE, b"") {
            tracing::warn!(run = %attempt.run(), %error, "a finished attempt could not be closed; it will be reported again");
        }
        self.lock().remove(&(attempt.run().clone(), attempt.number()));
    }

    fn adopt(self: &Arc<Self>) {
        let folders = Folder::all(&self.setting.data_dir).unwrap_or_else(|error| {
            tracing::error!(%error, "the attempts on this node cannot be listed; running ones continue without being watched");
            Vec::new()
        });
        for (run, attempt, folder) in folders {
            if folder.has(files::DONE) {
                remove_when_old(&folder);
                continue;
            }
            let owner = Owner::read(&folder);
            if owner.format > FORMAT {
                tracing::warn!(%run, %attempt, shim = owner.version, "a newer version started this attempt; data that this version does not know is ignored");
            }
            if let Err(error) = self.follow(&run, attempt, folder) {
                tracing::error!(%run, %attempt, %error, "an attempt cannot be adopted; check its folder");
            } else {
                tracing::info!(%run, %attempt, "adopted an attempt of an earlier agent");
            }
        }
    }

    /// Adopts new attempts of `lockstep exec`, and removes the folders of attempts that ended long ago.
    async fn scan_for_watched(self: &Arc<Self>) {
        let mut interval = tokio::time::interval(WATCHED_SCAN_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The adoption has already removed the old ones.
        let mut old_removed_at = Instant::now();
        loop {
            interval.tick().await;
            let folders = Folder::all(&self.setting.data_dir).unwrap_or_default();
            if old_removed_at.elapsed() >= OLD_FOLDER_SCAN_INTERVAL {
                old_removed_at = Instant::now();
                remove_old(folders.iter().map(|(.., folder)| folder.clone()).collect()).await;
            }
            for (run, attempt, folder) in folders {
                let fresh =
                    folder.is_watched() && !folder.has(files::DONE) && self.attempt(&run, attempt).is_none();
                if fresh && self.lock().len() < ATTEMPTS_MAX {
                    match self.follow(&run, attempt, folder) {
                        Ok(_) => tracing::info!(%run, %attempt, "watching a command of lockstep exec"),
                        Err(error) => tracing::error!(%run, %attempt, %error, "a command cannot be watched"),
                    }
                }
            }
        }
    }

    fn open_attempt(self: &Arc<Self>, run: &RunId, attempt: AttemptNo, stops: bool) -> Option<Arc<Attempt>> {
        if self.lock().len() >= ATTEMPTS_MAX && !stops {
            tracing::error!(%run, "this node follows {ATTEMPTS_MAX} attempts already; the command waits");
            return None;
        }
        let folder = Folder::of(&self.setting.data_dir, run, attempt);
        let made = folder.create().and_then(|()| self.follow(run, attempt, folder));
        made.inspect_err(|error| tracing::error!(%run, %attempt, %error, "an attempt's folder cannot be created; the command waits")).ok()
    }

    fn follow(
        self: &Arc<Self>,
        run: &RunId,
        number: AttemptNo,
        folder: Folder,
    ) -> std::io::Result<Arc<Attempt>> {
        let (attempt, commands) = Attempt::open(run.clone(), number, folder)?;
        let attempt = Arc::new(attempt);
        self.lock().insert((run.clone(), number), attempt.clone());
        self.attempt_added.notify_one();
        let follower = Follower::new(attempt.clone(), self.clone(), commands);
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = follower.follow() => {}
            }
        });
        Ok(attempt)
    }

    fn node_context(&self) -> Result<NodeContext, companions::CompanionsError> {
        let inventory = self.inventory.borrow().clone();
        Ok(NodeContext {
            python: self.setting.python.clone(),
            companions: companions::unpack(&self.setting.data_dir)?,
            collector: self.setting.collector.clone(),
            driver: inventory.driver_version.clone(),
            has_gpus: !inventory.gpus.is_empty() && inventory.simulated.is_none(),
            // The agent's own root folder: an agent in a container starts the ranks in the same container.
            root: PathBuf::from("/"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(RunId, AttemptNo), Arc<Attempt>>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes old folders on another thread: traces may be large and take long to delete.
async fn remove_old(folders: Vec<Folder>) {
    let removed = tokio::task::spawn_blocking(move || {
        let done = folders.iter().filter(|folder| folder.has(files::DONE));
        done.for_each(remove_when_old);
    });
    if let Err(error) = removed.await {
        tracing::error!(%error, "the search for old attempts failed");
    }
}

fn remove_when_old(folder: &Folder) {
    let modified = std::fs::metadata(folder.file(files::DONE)).and_then(|meta| meta.modified());
    let age = modified
        .ok()
        .and_then(|at| SystemTime::now().duration_since(at).ok());
    if age.is_some_and(|age| age > KEEP_DONE)
        && let Err(error) = std::fs::remove_dir_all(folder.path())
    {
        tracing::warn!(folder = %folder.path().display(), %error, "the folder of an old attempt cannot be removed");
    }
}

#[cfg(test)]
mod tests;
