//! Starts the parts of an agent and stops them in order.
//!
//! ```text
//! "nvml" → "xid"  (threads)    tasks: ticker (schedule, watchdog, the agent's own metrics), exporter,
//! "host"                              telemetry session, control session with its runs
//! "filesystems"
//! "errors"  Xid errors, from NVML and the kernel log
//! "spool"   drains the samples shortly after each tick
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use domain::topology::Inventory;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::AgentConfig;
use crate::exporter::{Exporter, Server, ServerError};
use crate::launch::{Setting, Supervisor, unmanaged};
use crate::lock::LOCK_FILE;
use crate::program_pages;
use crate::release::Release;
use crate::sample::agent_metrics::AgentMetricsReader;
use crate::sample::host::{self, Filesystems, HostReader};
use crate::sample::memory_limit::MemoryLimit;
use crate::sample::nvml::burst::Burst;
use crate::sample::nvml::library::Library;
use crate::sample::nvml::meter::Meter;
use crate::sample::nvml::reader::{DETECTION_TIMEOUT, NvmlReader};
use crate::sample::nvml::watchdog::Watchdog;
use crate::sample::schedule::{StopTimer, Tick, Worker};
use crate::sample::sink::Sample;
use crate::sample::xid::{self, IsStopping, XidReader};
use crate::sample::{LibraryError, Samples};
use crate::uplink::clock::Clock;
use crate::uplink::link::{LinkError, now_ms};
use crate::uplink::spool::Spool;
use crate::uplink::{Events, Link, control, session};

/// The delay between a tick and the gathering of its samples. On a healthy node the readers need about a tenth of it.
const GATHER_AFTER: Duration = Duration::from_millis(200);
/// The tick at which the agent releases the memory that only its start needed. By then the collector is connected, and every reader has
/// read in each of its tiers except the slowest.
const RELEASE_AT: u64 = 15;
/// The number of ticks between later releases. Reconnecting, for example, loads pages again.
const RELEASE_EVERY: u64 = 600;
/// How long threads may take to end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between the two readings of [`once`]. A rate needs two readings, and GPM needs 100 ms between them.
const ONCE_APART: Duration = Duration::from_millis(500);
/// How long [`once`] waits for readings that do not arrive.
const ONCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Errors that stop an agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data folder cannot be used.
    #[error("cannot use the agent's data folder {path:?}; choose another with --data")]
    DataDir {
        /// The data folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another agent uses the data folder. Two agents in one folder would send each other's data.
    #[error(
        "another agent runs with the data folder {path:?}; stop it, or choose another folder with --data"
    )]
    Running {
        /// The data folder.
        path: PathBuf,
    },
    /// The metrics server cannot start.
    #[error(transparent)]
    Metrics(#[from] ServerError),
    /// A thread cannot start.
    #[error("cannot start the thread {name:?}; the system is out of threads or memory")]
    Thread {
        /// The name of the thread.
        name: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The simulator is not available.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The connection to the collector cannot be configured.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The parts that all tasks of a running agent use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    /// The agent's configuration.
    pub config: Arc<AgentConfig>,
    /// The sink for samples.
    pub samples: Samples,
    /// The queue of node events.
    pub events: Events,
    /// The connection to the collector. `None` if no collector is configured.
    pub link: Option<Arc<Link>>,
    /// Cancelled when the agent should stop.
    pub shutdown: CancellationToken,
}

/// Runs an agent until `shutdown` is cancelled.
///
/// # Errors
/// Returns an error if the agent cannot start. Later problems (no collector, no GPU, a full disk) are reported, and the agent keeps
/// running.
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
        watch_jobs: node.config.watch_jobs,
        inventory: sampler.inventory.subscribe(),
        settled: sampler.settled.subscribe(),
    };
    tasks.spawn(unmanaged::watch(jobs, node.shutdown.clone()));
    let runs = Arc::clone(&supervisor);
    let xid_inputs = XidInputs {
        position_file: Some(node.config.data_dir.join("kernel_log")),
        is_stopping: Arc::new(move |run| runs.is_stopping(run)),
    };
    let clock = node.link.as_ref().map(|link| link.clock().clone());
    let ticker = sampler.start(spool.clone(), xid_inputs, clock)?;
    tasks.spawn(ticker.run(node.shutdown.clone()));
    let known = settled.wait_for(|settled| *settled);
    let known = tokio::time::timeout(DETECTION_TIMEOUT, known);
    tokio::select! {
        // Start the connection when the reader has settled or the wait has timed out.
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

/// Reads all values once and returns them as Prometheus text. Rates need two readings, so this takes half a second.
///
/// # Errors
/// Returns an error if the readers cannot start.
pub async fn once(config: AgentConfig) -> Result<String, AgentError> {
    snapshot(config).await.map(|snapshot| snapshot.metrics)
}

/// What one reading of this machine found.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    /// The inventory of the node. If it contains no GPUs, it also gives the reason.
    pub inventory: Arc<Inventory>,
    /// All values that were read, as Prometheus text.
    pub metrics: String,
}

/// Reads all values once. Rates need two readings, so this takes half a second.
///
/// # Errors
/// Returns an error if the readers cannot start.
pub async fn snapshot(config: AgentConfig) -> Result<NodeSnapshot, AgentError> {
    let (samples, events) = (Samples::new(), Events::default());
    let sampler = Sampler::prepare(&config, &samples, &events)?;
    let (mut settled, inventory) = (sampler.settled.subscribe(), sampler.inventory.subscribe());
    let xid_inputs = XidInputs {
        position_file: None,
        is_stopping: Arc::new(|_| false),
    };
    let mut ticker = sampler.start(None, xid_inputs, None)?;
    ticker.tick(Tick::nth(0, now_ms()));
    // Values that do not arrive in time are missing from the text, and `lockstep_agent_nvml_up` reports why.
    let _ = tokio::time::timeout(ONCE_TIMEOUT, settled.wait_for(|settled| *settled)).await;
    tokio::time::sleep(ONCE_APART).await;
    ticker.tick(Tick::nth(0, now_ms()));
    ticker.finish(ONCE_TIMEOUT).await;
    let exporter = Exporter::new(samples, &config.node, config.metrics.dcgm_names);
    let inventory = inventory.borrow().clone();
    Ok(NodeSnapshot {
        inventory,
        metrics: exporter.text(),
    })
}

// === The data folder ===

/// Creates the folder and locks it. The lock is held until the returned file is dropped.
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
    let Some(mut lock) = shim::lock_file(&path.join(LOCK_FILE)).map_err(failed)? else {
        let path = path.to_owned();
        return Err(AgentError::Running { path });
    };
    lock.set_len(0).map_err(failed)?;
    writeln!(lock, "{}", std::process::id()).map_err(failed)?;
    Ok(lock)
}

fn open_spool(config: &AgentConfig) -> Result<Spool, AgentError> {
    let path = config.data_dir.join("spool");
    Spool::open(&path, config.spool_bytes_max).map_err(|source| AgentError::DataDir { path, source })
}

// === Sampling ===

/// Inputs of the reader of GPU errors that depend on how the agent runs.
struct XidInputs {
    /// The file that stores the position up to which the kernel log was read. `None`: the position is not stored.
    position_file: Option<PathBuf>,
    is_stopping: IsStopping,
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
        let inventory = Inventory {
            rack: config.rack.as_ref().map(ToString::to_string),
            ..host::describe(&config.root, config.collector.as_deref(), config.accepts_runs)
        };
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

    fn start(
        self,
        spool: Option<Spool>,
        xid_inputs: XidInputs,
        clock: Option<Clock>,
    ) -> Result<Ticker, AgentError> {
        let to = self.samples.clone();
        let (errors, sightings) = XidReader::new(xid::Setting {
            root: &self.root,
            position_file: xid_inputs.position_file,
            inventory: self.inventory.subscribe(),
            settled: self.settled.subscribe(),
            is_stopping: xid_inputs.is_stopping,
            samples: self.samples.clone(),
            events: self.events.clone(),
        });
        let watchdog = Watchdog::new(Arc::clone(&self.meter), self.samples.clone(), self.events.clone());
        let memory_limit = Arc::<MemoryLimit>::default();
        let agent_metrics = AgentMetricsReader::new(
            Arc::clone(&self.meter),
            spool.clone(),
            self.samples.clone(),
            Arc::clone(&memory_limit),
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
            memory_limit,
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
            agent_metrics,
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

/// Moves the samples from the sink to the spool, after each tick and once at the end. The burst's samples are added when they are due.
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
            self.burst.request(at_ms);
            samples.extend(self.burst.due(now_ms()));
        }
        spool.append(samples);
        self.samples.note_stored();
    }
}

/// Starts the readers at each tick.
struct Ticker {
    readers: Vec<Worker>,
    gatherer: Worker,
    watchdog: Watchdog,
    agent_metrics: AgentMetricsReader,
    /// The clock that measures the offset to the collector, and the sink for its samples.
    clock: Option<(Clock, Samples)>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

impl Ticker {
    async fn run(mut self, shutdown: CancellationToken) {
        let (held, timer) = StopTimer::while_held();
        let ticking = tokio::task::spawn_blocking(move || {
            self.tick_until_stopped(&timer);
            self
        });
        shutdown.cancelled().await;
        drop(held);
        if let Ok(ticker) = ticking.await {
            ticker.finish(FINISH_TIMEOUT).await;
        }
    }

    fn tick_until_stopped(&mut self, timer: &StopTimer) {
        // The first tick is immediate: the agent sends its hello only after the first reading.
        let mut next = Some(now_ms());
        for n in 0.. {
            let Some(at_ms) = next else { return };
            let tick = Tick::nth(n, at_ms);
            self.tick(tick);
            if n % RELEASE_EVERY == RELEASE_AT {
                program_pages::release();
            }
            if !timer.pass(GATHER_AFTER) {
                return;
            }
            self.gatherer.tick(tick);
            next = timer.next_second();
        }
    }

    fn tick(&mut self, tick: Tick) {
        self.readers.iter_mut().for_each(|reader| reader.tick(tick));
        let inventory = self.inventory.borrow().clone();
        self.watchdog.check(tick.at_ms, inventory.gpus.len() as u32);
        let late = self.readers.iter().map(Worker::late).sum();
        self.agent_metrics
            .read(&tick, late, inventory.simulated.as_deref());
        if let Some((clock, samples)) = &self.clock {
            clock.read(samples, tick.at_ms);
        }
    }

    /// Stops the readers first and then the gatherer, so that the last readings reach the disk.
    async fn finish(self, timeout: Duration) {
        for reader in self.readers {
            reader.finish(timeout).await;
        }
        self.gatherer.finish(timeout).await;
    }
}
