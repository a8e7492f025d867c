//! Putting the parts of an agent together, and taking them apart again in order.
//!
//! ```text
//! thread "nvml" ── thread "xid"      tasks: ticker (schedule, watchdog, own figures), exporter,
//! thread "host"                             telemetry session, control session with its runs
//! thread "filesystems"
//! thread "errors"  Xid errors, from NVML and the kernel's log
//! thread "spool"  drains the samples a little after each tick
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use domain::topology::Inventory;
use rustix::fs::FlockOperation;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::AgentConfig;
use crate::exporter::{Exporter, Server, ServerError};
use crate::launch::{Setting, Supervisor, unmanaged};
use crate::lock::LOCK_FILE;
use crate::program_pages;
use crate::release::Release;
use crate::sample::footprint::Footprint;
use crate::sample::host::{self, Filesystems, HostReader};
use crate::sample::nvml::burst::Burst;
use crate::sample::nvml::library::Library;
use crate::sample::nvml::meter::Meter;
use crate::sample::nvml::reader::{NvmlReader, SETTLES_WITHIN};
use crate::sample::nvml::watchdog::Watchdog;
use crate::sample::own::OwnReader;
use crate::sample::schedule::{Tick, Waiting, Worker};
use crate::sample::sink::Sample;
use crate::sample::xid::{self, Ending, XidReader};
use crate::sample::{LibraryError, Samples};
use crate::uplink::clock::Clock;
use crate::uplink::link::{LinkError, now_ms};
use crate::uplink::spool::Spool;
use crate::uplink::{Events, Link, control, session};

/// How long after a tick its samples are gathered: readers need about a tenth of this on a healthy node.
const GATHER_AFTER: Duration = Duration::from_millis(200);
/// The tick after which what only start-up needed is let go of: the collector is connected then, and every reader has read in each
/// of its tiers but the slowest.
const RELEASE_AT: u64 = 15;
/// How often again: reconnecting and the like bring it back.
const RELEASE_EVERY: u64 = 600;
/// How long threads may take to end.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);
/// How far apart the two readings of [`once`] are: what is a rate needs two, and GPM 100 ms between them.
const ONCE_APART: Duration = Duration::from_millis(500);
/// How long [`once`] waits for readings that do not come.
const ONCE_PATIENCE: Duration = Duration::from_secs(20);

/// Why an agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data folder.
    #[error("cannot use the agent's data folder {path:?}; choose another with --data")]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Two agents on one folder would send each other's data.
    #[error(
        "another agent runs with the data folder {path:?}; stop it, or choose another folder with --data"
    )]
    Running {
        /// The folder.
        path: PathBuf,
    },
    /// The metrics listener.
    #[error(transparent)]
    Metrics(#[from] ServerError),
    /// A thread.
    #[error("cannot start the thread {name:?}; the system is out of threads or memory")]
    Thread {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A simulation that cannot be had.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The way to the collector.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What every part of a running agent may use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    /// As it was told.
    pub config: Arc<AgentConfig>,
    /// Where samples go.
    pub samples: Samples,
    /// Where node events go.
    pub events: Events,
    /// The way to the collector, when there is one.
    pub link: Option<Arc<Link>>,
    /// Cancelled when the agent is to end.
    pub shutdown: CancellationToken,
}

/// Runs an agent until `shutdown` is cancelled.
///
/// # Errors
/// When it cannot start. Trouble afterwards (no collector, no GPU, a full disk) is reported, waited out and survived.
pub async fn run(config: AgentConfig, shutdown: CancellationToken) -> Result<(), AgentError> {
    let lock = take_data_dir(&config.data_dir)?;
    let (samples, events) = (Samples::new(), Events::default());
    let sampler = Sampler::prepare(&config, &samples, &events)?;
    let link = Link::new(&config, sampler.inventory.subscribe())?;
    let spool = link.as_ref().map(|_| open_spool(&config)).transpose()?;
    let server = Server::bind(&config.metrics)?;
    let exporter = Exporter::new(samples.clone(), &config.node, config.metrics.dcgm_names);
    let node = Node {
        config: Arc::new(config),
        samples,
        events,
        link,
        shutdown,
    };

    let tasks = TaskTracker::new();
    if let Some(server) = server {
        tasks.spawn(server.serve(exporter, node.shutdown.clone()));
    }
    let setting = Setting::from(&*node.config);
    let inventory = sampler.inventory.subscribe();
    let mut settled = sampler.settled.subscribe();
    let supervisor = Supervisor::start(
        setting,
        node.samples.clone(),
        inventory,
        settled.clone(),
        node.shutdown.clone(),
    );
    let jobs = unmanaged::Setting {
        node: node.config.node.clone(),
        data_dir: node.config.data_dir.clone(),
        wish: node.config.watch_jobs,
        inventory: sampler.inventory.subscribe(),
        settled: sampler.settled.subscribe(),
    };
    tasks.spawn(unmanaged::watch(jobs, node.shutdown.clone()));
    let stopping = Arc::clone(&supervisor);
    let heard = Heard {
        memory: Some(node.config.data_dir.join("kernel_log")),
        ending: Arc::new(move |run| stopping.is_stopping(run)),
    };
    let clock = node.link.as_ref().map(|link| link.clock().clone());
    let ticker = sampler.start(spool.clone(), heard, clock)?;
    tasks.spawn(ticker.run(node.shutdown.clone()));
    let known = settled.wait_for(|settled| *settled);
    let known = tokio::time::timeout(SETTLES_WITHIN, known);
    tokio::select! {
        // Whether known or not, it is time to say hello.
        _ = known => start_uplink(&tasks, &node, spool, &supervisor),
        () = node.shutdown.cancelled() => {}
    }
    tasks.close();
    node.shutdown.cancelled().await;
    tasks.wait().await;
    supervisor.stopped().await;
    drop(lock);
    Ok(())
}

fn start_uplink(tasks: &TaskTracker, node: &Node, spool: Option<Spool>, supervisor: &Arc<Supervisor>) {
    if let (Some(link), Some(spool)) = (&node.link, spool) {
        tasks.spawn(session::run(
            Arc::clone(link),
            spool,
            node.events.clone(),
            node.shutdown.clone(),
        ));
        tasks.spawn(control::run(
            Arc::clone(link),
            Arc::clone(supervisor),
            node.events.clone(),
            node.shutdown.clone(),
        ));
    }
}

/// Reads everything once and returns it as Prometheus text. Rates need two readings, so this takes half a second.
///
/// # Errors
/// When it cannot start.
pub async fn once(config: AgentConfig) -> Result<String, AgentError> {
    look(config).await.map(|seen| seen.metrics)
}

/// What one look at this machine brings.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What it is made of, and why there are no GPUs when there are none.
    pub inventory: Arc<Inventory>,
    /// Every value that was read, as Prometheus text.
    pub metrics: String,
}

/// Reads everything once. Rates need two readings, so this takes half a second.
///
/// # Errors
/// When it cannot start.
pub async fn look(config: AgentConfig) -> Result<Seen, AgentError> {
    let (samples, events) = (Samples::new(), Events::default());
    let sampler = Sampler::prepare(&config, &samples, &events)?;
    let (mut settled, inventory) = (sampler.settled.subscribe(), sampler.inventory.subscribe());
    let heard = Heard {
        memory: None,
        ending: Arc::new(|_| false),
    };
    let mut ticker = sampler.start(None, heard, None)?;
    ticker.tick(Tick::nth(0, now_ms()));
    // What does not come in time is missing from the text, and `lockstep_agent_nvml_up` says why.
    let _ = tokio::time::timeout(ONCE_PATIENCE, settled.wait_for(|settled| *settled)).await;
    tokio::time::sleep(ONCE_APART).await;
    ticker.tick(Tick::nth(0, now_ms()));
    ticker.finish(ONCE_PATIENCE).await;
    let exporter = Exporter::new(samples, &config.node, config.metrics.dcgm_names);
    let inventory = inventory.borrow().clone();
    Ok(Seen {
        inventory,
        metrics: exporter.text(),
    })
}

// === The data folder ===

/// Makes the folder and locks it until the result is dropped.
fn take_data_dir(path: &Path) -> Result<File, AgentError> {
    let failed = |source| AgentError::DataDir {
        path: path.to_owned(),
        source,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed)?;
    let mut lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join(LOCK_FILE))
        .map_err(failed)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            lock.set_len(0).map_err(failed)?;
            writeln!(lock, "{}", std::process::id()).map_err(failed)?;
            Ok(lock)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Err(AgentError::Running {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

fn open_spool(config: &AgentConfig) -> Result<Spool, AgentError> {
    let path = config.data_dir.join("spool");
    Spool::open(&path, config.spool_bytes_max).map_err(|source| AgentError::DataDir { path, source })
}

// === Sampling ===

/// What errors of GPUs are judged with beside themselves.
struct Heard {
    /// Where it is kept how far the kernel's log was heard.
    memory: Option<PathBuf>,
    ending: Ending,
}

/// All readers, ready to start.
struct Sampler {
    root: PathBuf,
    library: Library,
    release: Release,
    meter: Arc<Meter>,
    samples: Samples,
    events: Events,
    inventory: watch::Sender<Arc<Inventory>>,
    settled: watch::Sender<bool>,
}

impl Sampler {
    fn prepare(config: &AgentConfig, samples: &Samples, events: &Events) -> Result<Self, AgentError> {
        let inventory = host::describe(&config.root, config.collector.as_deref(), config.accepts_runs);
        Ok(Self {
            root: config.root.clone(),
            library: Library::find(&config.nvml)?,
            release: Release::new(&config.data_dir),
            meter: Arc::default(),
            samples: samples.clone(),
            events: events.clone(),
            inventory: watch::Sender::new(Arc::new(inventory)),
            settled: watch::Sender::new(false),
        })
    }

    fn start(self, spool: Option<Spool>, heard: Heard, clock: Option<Clock>) -> Result<Ticker, AgentError> {
        let to = self.samples.clone();
        let (errors, sightings) = XidReader::new(xid::Setting {
            root: &self.root,
            memory: heard.memory,
            inventory: self.inventory.subscribe(),
            settled: self.settled.subscribe(),
            ending: heard.ending,
            samples: self.samples.clone(),
            events: self.events.clone(),
        });
        let watchdog = Watchdog::new(Arc::clone(&self.meter), self.samples.clone(), self.events.clone());
        let footprint = Arc::<Footprint>::default();
        let own = OwnReader::new(
            Arc::clone(&self.meter),
            spool.clone(),
            self.samples.clone(),
            Arc::clone(&footprint),
        );
        let burst = Burst::default();
        let gatherer = Gatherer {
            samples: self.samples.clone(),
            events: self.events.clone(),
            burst: burst.clone(),
            spool,
        };
        let inventory = self.inventory.subscribe();
        let host = HostReader::new(&self.root, self.samples.clone());
        let filesystems = Filesystems::new(&self.root, self.samples.clone());
        let nvml = NvmlReader {
            library: self.library,
            root: self.root,
            meter: self.meter,
            samples: self.samples.clone(),
            events: self.events,
            sightings,
            inventory: self.inventory,
            settled: self.settled,
            release: self.release,
            burst,
            footprint,
        };
        Ok(Ticker {
            readers: vec![
                worker("nvml", move |ticks| nvml.run(&ticks))?,
                worker("host", move |ticks| host.run(&ticks))?,
                worker("filesystems", move |ticks| filesystems.run(&ticks))?.slow(),
                worker("errors", move |ticks| errors.run(&ticks))?,
            ],
            gatherer: worker("spool", move |ticks| gatherer.run(&ticks))?,
            watchdog,
            own,
            clock: clock.map(|clock| (clock, to)),
            inventory,
        })
    }
}

fn worker(
    name: &'static str,
    run: impl FnOnce(Receiver<Tick>) + Send + 'static,
) -> Result<Worker, AgentError> {
    Worker::spawn(name, run).map_err(|source| AgentError::Thread { name, source })
}

/// Empties the sink into the spool, at each tick and once more at the end; what the burst has to give goes with it.
struct Gatherer {
    samples: Samples,
    events: Events,
    burst: Burst,
    spool: Option<Spool>,
}

impl Gatherer {
    fn run(self, ticks: &Receiver<Tick>) {
        let mut samples = Vec::new();
        ticks.iter().for_each(|_| self.gather(&mut samples));
        self.gather(&mut samples);
    }

    fn gather(&self, samples: &mut Vec<Sample>) {
        self.samples.drain_into(samples);
        let Some(spool) = &self.spool else {
            self.samples.note_stored();
            return;
        };
        if let Some(at_ms) = self.events.alarmed_at() {
            self.burst.happened(at_ms);
            samples.extend(self.burst.due(now_ms()));
        }
        spool.append(samples);
        self.samples.note_stored();
    }
}

/// Tells readers when to read.
struct Ticker {
    readers: Vec<Worker>,
    gatherer: Worker,
    watchdog: Watchdog,
    own: OwnReader,
    /// How far the clock is off, and where that is written.
    clock: Option<(Clock, Samples)>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

impl Ticker {
    async fn run(mut self, shutdown: CancellationToken) {
        let (held, waiting) = Waiting::while_held();
        let ticking = tokio::task::spawn_blocking(move || {
            self.tick_on(&waiting);
            self
        });
        shutdown.cancelled().await;
        drop(held);
        if let Ok(ticker) = ticking.await {
            ticker.finish(FINISH_PATIENCE).await;
        }
    }

    fn tick_on(&mut self, waiting: &Waiting) {
        // The first reading is at once: a hello waits for it.
        let mut next = Some(now_ms());
        for n in 0.. {
            let Some(at_ms) = next else { return };
            let tick = Tick::nth(n, at_ms);
            self.tick(tick);
            if n % RELEASE_EVERY == RELEASE_AT {
                program_pages::release();
            }
            if !waiting.pass(GATHER_AFTER) {
                return;
            }
            self.gatherer.tick(tick);
            next = waiting.next_second();
        }
    }

    fn tick(&mut self, tick: Tick) {
        self.readers.iter_mut().for_each(|reader| reader.tick(tick));
        let inventory = self.inventory.borrow().clone();
        self.watchdog.look(tick.at_ms, inventory.gpus.len() as u32);
        let late = self.readers.iter().map(Worker::late).sum();
        self.own.read(&tick, late, inventory.simulated.as_deref());
        if let Some((clock, samples)) = &self.clock {
            clock.read(samples, tick.at_ms);
        }
    }

    /// Ends the readers, then the gatherer, so that the last readings reach the disk.
    async fn finish(self, patience: Duration) {
        for reader in self.readers {
            reader.finish(patience).await;
        }
        self.gatherer.finish(patience).await;
    }
}
