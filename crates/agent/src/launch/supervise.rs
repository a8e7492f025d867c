//! The agent's side of the attempts on this node: takes commands, starts shims, follows what they write, adopts what an
//! agent before this one left.
//!
//! Everything that must survive lies in the attempt's folder; what is in memory can be made from it. A command is noted
//! before it is carried out, so the same command twice does nothing twice.

mod attempt;
mod burial;

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
use crate::launch::preflight::asked::Surroundings;
use crate::launch::probe::SharedInventory;
use crate::launch::scope::Scope;
use crate::sample::Samples;
use crate::sample::nvml::reader::SETTLES_WITHIN;

/// Attempts one node follows at once: far more than have room on it; beyond, new ones are refused.
const ATTEMPTS_MAX: usize = 64;
/// How often commands that are only watched are looked for.
const LOOK_FOR_WATCHED: Duration = Duration::from_secs(1);
/// Folders of attempts that are over are kept this long for people who want to look.
const KEEP_DONE: Duration = Duration::from_secs(24 * 3_600);
/// How often older ones are looked for.
const LOOK_FOR_OLD: Duration = Duration::from_secs(600);

/// What the supervisor needs to know of the agent.
#[derive(Debug, Clone)]
pub struct Setting {
    /// This node.
    pub node: NodeName,
    /// The agent's data folder.
    pub data_dir: PathBuf,
    /// The Python for runs that name none.
    pub python: Option<PathBuf>,
    /// The collector's URL.
    pub collector: Option<String>,
    /// Where the host's `/etc` hangs.
    pub root: PathBuf,
    /// The folder of the executable, where companions lie that it does not carry.
    pub beside: PathBuf,
    /// Whether runs may be started here.
    pub accepts_runs: bool,
    /// How to start a shim: a program and arguments, behind which the folder goes.
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

    /// This executable's own hidden subcommand: the program that runs, also when its file was replaced by a newer one.
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
    /// Whether the inventory names the GPUs, or that there are none.
    settled: watch::Receiver<bool>,
    attempts: Mutex<BTreeMap<(RunId, AttemptNo), Arc<Attempt>>>,
    taken_up: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    /// How scopes for shims are made, once that was needed.
    scope: OnceCell<Option<Scope>>,
}

impl Supervisor {
    /// Adopts what is there and follows it until `shutdown`, which leaves every shim alone.
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
            taken_up: Notify::new(),
            tasks: TaskTracker::new(),
            shutdown,
            scope: OnceCell::new(),
        });
        supervisor.adopt();
        let looking = supervisor.clone();
        supervisor.tasks.spawn(async move {
            tokio::select! {
                () = looking.shutdown.cancelled() => {}
                () = looking.look_for_watched() => {}
            }
        });
        supervisor
    }

    /// Waits until nobody follows anything any more; after `shutdown`.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Carries out a command, once. Returns what to tell the collector: the acceptance, also when it came before.
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
        let turns = matches!(command, Ok(NodeCommand::TurnLive { .. }));
        let prunes = matches!(command, Ok(NodeCommand::Remove(_) | NodeCommand::Checkpoints(_)));
        let followed = match self.attempt(run, attempt) {
            Some(followed) => followed,
            None => self.take_up(run, attempt, stops)?,
        };
        // What was started here before the agent was told to take no runs.
        let looked_after = (prunes || turns) && followed.folder().has(files::START);
        match command {
            _ if !(self.setting.accepts_runs || stops || looked_after) => followed.refuse(
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

    /// Waits until the node's GPUs are known, but not for a driver that hangs: it must not hold up a run on CPUs.
    pub(crate) async fn gpus_known(&self) {
        let mut settled = self.settled.clone();
        let _known_or_late = tokio::time::timeout(SETTLES_WITHIN, settled.wait_for(|settled| *settled)).await;
    }

    /// The scope that a shim gets around it, where the machine has systemd.
    pub(crate) async fn scope(&self) -> Option<&Scope> {
        self.scope.get_or_init(Scope::of_this_machine).await.as_ref()
    }

    /// What is followed.
    pub(crate) fn attempts(&self) -> Vec<Arc<Attempt>> {
        self.lock().values().cloned().collect()
    }

    /// Waits until an attempt is followed that was not before.
    pub(crate) async fn taken_up(&self) {
        self.taken_up.notified().await;
    }

    /// Whether nothing is followed.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().is_empty()
    }

    /// One attempt.
    pub(crate) fn attempt(&self, run: &RunId, attempt: AttemptNo) -> Option<Arc<Attempt>> {
        self.lock().get(&(run.clone(), attempt)).cloned()
    }

    /// The folder of an attempt, also of one that is over and not removed yet.
    pub(crate) fn folder(&self, run: &RunId, attempt: AttemptNo) -> Option<Folder> {
        Some(Folder::of(&self.setting.data_dir, run, attempt)).filter(|folder| folder.path().is_dir())
    }

    /// Whether a run was told to stop and has not ended yet.
    pub(crate) fn is_stopping(&self, run: &str) -> bool {
        let stopping =
            |attempt: &Arc<Attempt>| attempt.run().as_str() == run && attempt.folder().has(files::STOP);
        self.attempts().iter().any(stopping)
    }

    /// Checkpoints that attempts on this node went on from, whatever run they are of.
    pub(crate) fn resumed_from(&self) -> BTreeSet<String> {
        let from = |attempt: &Arc<Attempt>| attempt.folder().read::<Start>(files::START).ok()?.resume_from;
        self.attempts().iter().filter_map(from).collect()
    }

    /// The collector has everything: the attempt is closed and forgotten.
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
            tracing::error!(%error, "the attempts on this node cannot be listed; running ones go on unwatched");
            Vec::new()
        });
        for (run, attempt, folder) in folders {
            if folder.has(files::DONE) {
                remove_when_old(&folder);
                continue;
            }
            let owner = Owner::read(&folder);
            if owner.format > FORMAT {
                tracing::warn!(%run, %attempt, shim = owner.version, "a newer version started this attempt; what it notes beyond this version is not seen");
            }
            if let Err(error) = self.follow(&run, attempt, folder) {
                tracing::error!(%run, %attempt, %error, "an attempt cannot be adopted; look at its folder");
            } else {
                tracing::info!(%run, %attempt, "an attempt of an earlier agent is adopted");
            }
        }
    }

    /// Takes up what `lockstep exec` started meanwhile, and removes what is over since long.
    async fn look_for_watched(self: &Arc<Self>) {
        let mut looks = tokio::time::interval(LOOK_FOR_WATCHED);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Those that are old now are gone with the adoption.
        let mut looked_for_old = Instant::now();
        loop {
            looks.tick().await;
            let folders = Folder::all(&self.setting.data_dir).unwrap_or_default();
            if looked_for_old.elapsed() >= LOOK_FOR_OLD {
                looked_for_old = Instant::now();
                remove_old(folders.iter().map(|(.., folder)| folder.clone()).collect()).await;
            }
            for (run, attempt, folder) in folders {
                let fresh =
                    folder.is_watched() && !folder.has(files::DONE) && self.attempt(&run, attempt).is_none();
                if fresh && self.lock().len() < ATTEMPTS_MAX {
                    match self.follow(&run, attempt, folder) {
                        Ok(_) => tracing::info!(%run, %attempt, "a command of lockstep exec is watched"),
                        Err(error) => tracing::error!(%run, %attempt, %error, "a command cannot be watched"),
                    }
                }
            }
        }
    }

    fn take_up(self: &Arc<Self>, run: &RunId, attempt: AttemptNo, stops: bool) -> Option<Arc<Attempt>> {
        if self.lock().len() >= ATTEMPTS_MAX && !stops {
            tracing::error!(%run, "this node follows {ATTEMPTS_MAX} attempts already; the command waits");
            return None;
        }
        let folder = Folder::of(&self.setting.data_dir, run, attempt);
        let made = folder.create().and_then(|()| self.follow(run, attempt, folder));
        made.inspect_err(|error| tracing::error!(%run, %attempt, %error, "an attempt's folder cannot be made; the command waits")).ok()
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
        self.taken_up.notify_one();
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

    fn surroundings(&self) -> Result<Surroundings, companions::CompanionsError> {
        let inventory = self.inventory.borrow().clone();
        Ok(Surroundings {
            python: self.setting.python.clone(),
            companions: companions::unpack(&self.setting.data_dir)?,
            collector: self.setting.collector.clone(),
            driver: inventory.driver_version.clone(),
            has_gpus: !inventory.gpus.is_empty() && inventory.simulated.is_none(),
            // Its own: an agent in a container starts the ranks in it.
            root: PathBuf::from("/"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(RunId, AttemptNo), Arc<Attempt>>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Traces may be large, and take their time.
async fn remove_old(folders: Vec<Folder>) {
    let removed = tokio::task::spawn_blocking(move || {
        let done = folders.iter().filter(|folder| folder.has(files::DONE));
        done.for_each(remove_when_old);
    });
    if let Err(error) = removed.await {
        tracing::error!(%error, "old attempts could not be looked for");
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
