//! What lives as long as the process: the simulated machine, its clock, and the handles given out.
//!
//! Handles are numbers in a table, never addresses: a stale or invented one is refused, not followed. A number tells the
//! driver's generation too, so that what was handed out before the driver was reloaded is stale after it:
//!
//! ```text
//! 0x1GGG_NNII   G generation   NN GPU, from 0   II 00 the GPU itself, else its instance, from 1
//! ```
//!
//! The lock is never held while a call waits (a slow driver, a hung one, an event to come).

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use super::Answer;
use crate::engine::driver::DriverState;
use crate::engine::events::Subscription;
use crate::engine::fault::Gate;
use crate::engine::gpu::Gpu;
use crate::engine::mig::Instance;
use crate::engine::node::Node;
use crate::engine::spec::Spec;
use crate::engine::status::Status;

/// Where the spec comes from when nobody calls `lockstep_sim_configure`.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";
const SPEC_DEFAULT: &str = "h100x8";

/// Device handles: spread out and far from null, so that mixing them up with counts shows.
const DEVICE_BASE: usize = 0x1000_0000;
const GENERATION_STEP: usize = 0x1_0000;
/// Drivers told apart; after so many reloads an old handle would look like a new one again.
const GENERATIONS: usize = 0x1000;
const DEVICE_STEP: usize = 0x100;
/// Numbers of samples and event sets.
const TICKET_BASE: usize = 0x2000_0000;
const TICKET_STEP: usize = 0x10;
/// A scenario file is written by hand; one that is larger is something else.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;
/// A program that holds more samples or event sets than this has a leak.
const TICKETS_MAX: usize = 65_536;

/// The machine and its clock.
pub(crate) struct Machine {
    pub node: Node,
    started: Instant,
    started_unix_us: u64,
}

impl Machine {
    fn start(spec: &Spec) -> Machine {
        // A clock before 1970 is not worth failing for.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Machine {
            node: Node::new(spec),
            started: Instant::now(),
            started_unix_us: unix.as_micros() as u64,
        }
    }

    /// Seconds since the simulation began.
    pub(crate) fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A moment as microseconds since 1970. Runs with the monotonic clock, so it never jumps.
    pub(crate) fn unix_us(&self, t: f64) -> u64 {
        self.started_unix_us.saturating_add_signed((t * 1e6) as i64)
    }

    /// The moment of a time stamp that `unix_us` gave.
    pub(crate) fn moment(&self, unix_us: u64) -> f64 {
        (unix_us as f64 - self.started_unix_us as f64) / 1e6
    }
}

/// A GPM sample: when it was taken, and of which GPU or instance of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GpmSample {
    pub taken: Option<Taken>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Taken {
    pub gpu: u32,
    pub instance: Option<u32>,
    pub at: f64,
}

struct Session {
    configured: Option<Spec>,
    /// Kept from the first initialisation on, so that simulated time goes on over a shutdown.
    machine: Option<Arc<Machine>>,
    users: u32,
    /// The driver for which NVML was initialised.
    generation: usize,
    tickets: usize,
    samples: Option<HashMap<usize, GpmSample>>,
    sets: Option<HashMap<usize, Subscription>>,
    error: Option<CString>,
}

static SESSION: Mutex<Session> = Mutex::new(Session {
    configured: None,
    machine: None,
    users: 0,
    generation: 0,
    tickets: 0,
    samples: None,
    sets: None,
    error: None,
});

// === Beginning and end ===

/// Chooses what to simulate. Refused while NVML is initialised.
pub(crate) fn configure(text: &str) -> Answer {
    let mut session = lock();
    if session.users > 0 {
        session.fail("the simulator is in use: call nvmlShutdown before lockstep_sim_configure");
        return Err(Status::InUse);
    }
    match Spec::parse(text, read_scenario) {
        Ok(spec) => {
            session.configured = Some(spec);
            session.machine = None;
            session.error = None;
            Ok(())
        }
        Err(error) => {
            session.fail(&error.to_string());
            Err(Status::InvalidArgument)
        }
    }
}

/// One more user; the first starts the machine. Only the first meets a driver that does not fit the library.
pub(crate) fn init() -> Answer {
    let mut session = lock();
    if session.machine.is_none() {
        let spec = session.spec()?;
        session.machine = Some(Arc::new(Machine::start(&spec)));
    }
    let Some(machine) = session.machine.clone() else {
        return Err(Status::Unknown);
    };
    let t = machine.now();
    session.forget_earlier_driver(&machine, t);
    match machine.node.driver.state(t) {
        DriverState::Unloaded => return Err(Status::DriverNotLoaded),
        DriverState::Mismatched if session.users == 0 => return Err(Status::LibraryMismatch),
        DriverState::Mismatched | DriverState::Loaded => {}
    }
    session.users += 1;
    Ok(())
}

/// One user fewer; with the last go all samples and event sets.
pub(crate) fn shutdown() -> Answer {
    let mut session = lock();
    session.current()?;
    session.users -= 1;
    if session.users == 0 {
        session.samples = None;
        session.sets = None;
    }
    Ok(())
}

/// Why the last spec was refused; empty text if it was not. Valid until the next configure or init.
pub(crate) fn error() -> *const c_char {
    lock()
        .error
        .as_ref()
        .map_or(c"".as_ptr(), |message| message.as_ptr())
}

impl Session {
    /// The spec by order of precedence: configured, environment, default.
    fn spec(&mut self) -> Result<Spec, Status> {
        if let Some(spec) = &self.configured {
            return Ok(spec.clone());
        }
        let text = std::env::var(SPEC_VARIABLE).ok().filter(|text| !text.is_empty());
        Spec::parse(text.as_deref().unwrap_or(SPEC_DEFAULT), read_scenario).map_err(|error| {
            // A third-party client would show no more than "Invalid Argument".
            eprintln!("NVML simulator: {SPEC_VARIABLE}: {error}");
            self.fail(&error.to_string());
            Status::InvalidArgument
        })
    }

    /// The machine, if NVML is initialised for the driver there is.
    fn current(&mut self) -> Result<Arc<Machine>, Status> {
        let machine = self.machine.clone().ok_or(Status::Uninitialized)?;
        self.forget_earlier_driver(&machine, machine.now());
        if self.users == 0 {
            return Err(Status::Uninitialized);
        }
        Ok(machine)
    }

    /// What was initialised for a driver that has been unloaded since is not initialised any more.
    fn forget_earlier_driver(&mut self, machine: &Machine, t: f64) {
        let generation = machine.node.driver.generation(t);
        if self.generation != generation {
            self.generation = generation;
            self.users = 0;
            self.samples = None;
            self.sets = None;
        }
    }

    fn fail(&mut self, message: &str) {
        // A zero byte inside can only come from the spec itself; what precedes it is enough to see.
        self.error = CString::new(message.split('\0').next().unwrap_or_default()).ok();
    }

    fn ticket(&mut self) -> usize {
        self.tickets += 1;
        TICKET_BASE + self.tickets * TICKET_STEP
    }
}

fn lock() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_scenario(path: &str) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > SCENARIO_BYTES_MAX {
        return Err(format!(
            "it has {size} bytes; a scenario has at most {SCENARIO_BYTES_MAX}"
        ));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}

/// The machine, if NVML is initialised.
pub(crate) fn machine() -> Result<Arc<Machine>, Status> {
    lock().current()
}

// === Devices ===

/// A GPU that answers, and the moment it does.
pub(crate) struct Device {
    pub machine: Arc<Machine>,
    index: usize,
    pub t: f64,
}

/// What a handle leads to: a GPU, or one instance of it.
pub(crate) struct Subject {
    pub device: Device,
    pub instance: Option<Instance>,
}

impl Device {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.machine.node.gpus[self.index]
    }

    pub(crate) fn node(&self) -> &Node {
        &self.machine.node
    }

    /// The handle of one of its instances.
    pub(crate) fn instance_handle(&self, instance: &Instance) -> usize {
        handle_of(&self.machine, self.gpu().index) + 1 + instance.id as usize
    }
}

/// The handle of a GPU.
pub(crate) fn handle_of(machine: &Machine, gpu: u32) -> usize {
    let generation = machine.node.driver.generation(machine.now());
    DEVICE_BASE + generation % GENERATIONS * GENERATION_STEP + gpu as usize * DEVICE_STEP
}

/// The GPU behind a handle; NVML answers for instances only what [`subject`] is used for.
pub(crate) fn device(handle: usize) -> Result<Device, Status> {
    let subject = subject(handle)?;
    match subject.instance {
        None => Ok(subject.device),
        Some(_) => Err(Status::NotSupported),
    }
}

/// The GPU or instance behind a handle. Here a call meets what is wrong with the GPU: it is refused, slowed, or
/// does not come back.
pub(crate) fn subject(handle: usize) -> Result<Subject, Status> {
    let machine = machine()?;
    let offset = handle
        .checked_sub(handle_of(&machine, 0))
        .ok_or(Status::InvalidArgument)?;
    let (index, part) = (offset / DEVICE_STEP, offset % DEVICE_STEP);
    let gpu = machine.node.gpus.get(index).ok_or(Status::InvalidArgument)?;
    let t = pass_gate(&machine, gpu)?;
    let instance = match (part as u32).checked_sub(1) {
        None => None,
        Some(id) => Some(*gpu.instance(id, t).ok_or(Status::InvalidArgument)?),
    };
    let device = Device { machine, index, t };
    Ok(Subject { device, instance })
}

/// Waits as the GPU's troubles demand; gives the moment after that. A driver that was replaced meanwhile knows nothing of
/// the call.
fn pass_gate(machine: &Machine, gpu: &Gpu) -> Result<f64, Status> {
    loop {
        let t = machine.now();
        let gate = gpu.gate(t);
        match gate {
            Gate::Open => return Ok(t),
            Gate::Lost => return Err(Status::GpuIsLost),
            Gate::Slow(delay) => thread::sleep(delay),
            Gate::Until(end) if end.is_finite() => thread::sleep(Duration::from_secs_f64(end - t)),
            Gate::Until(_) => loop {
                thread::park();
            },
        }
        lock().current()?;
        if matches!(gate, Gate::Slow(_)) {
            return Ok(machine.now());
        }
    }
}

// === Samples and event sets ===

pub(crate) fn new_sample() -> Result<usize, Status> {
    machine()?;
    let mut session = lock();
    let ticket = session.ticket();
    insert(&mut session.samples, ticket, GpmSample::default())?;
    Ok(ticket)
}

pub(crate) fn free_sample(ticket: usize) -> Answer {
    remove(&mut lock().samples, ticket)
}

/// Does something with a sample.
pub(crate) fn with_sample<R>(ticket: usize, act: impl FnOnce(&mut GpmSample) -> R) -> Result<R, Status> {
    with(&mut lock().samples, ticket, act)
}

pub(crate) fn new_set() -> Result<usize, Status> {
    machine()?;
    let mut session = lock();
    let ticket = session.ticket();
    insert(&mut session.sets, ticket, Subscription::default())?;
    Ok(ticket)
}

pub(crate) fn free_set(ticket: usize) -> Answer {
    remove(&mut lock().sets, ticket)
}

/// Does something with an event set.
pub(crate) fn with_set<R>(ticket: usize, act: impl FnOnce(&mut Subscription) -> R) -> Result<R, Status> {
    with(&mut lock().sets, ticket, act)
}

fn insert<T>(table: &mut Option<HashMap<usize, T>>, ticket: usize, value: T) -> Answer {
    let table = table.get_or_insert_default();
    if table.len() >= TICKETS_MAX {
        return Err(Status::Memory);
    }
    table.insert(ticket, value);
    Ok(())
}

fn remove<T>(table: &mut Option<HashMap<usize, T>>, ticket: usize) -> Answer {
    let found = table.as_mut().and_then(|table| table.remove(&ticket));
    found.map(drop).ok_or(Status::InvalidArgument)
}

fn with<T, R>(
    table: &mut Option<HashMap<usize, T>>,
    ticket: usize,
    act: impl FnOnce(&mut T) -> R,
) -> Result<R, Status> {
    table
        .as_mut()
        .and_then(|table| table.get_mut(&ticket))
        .map(act)
        .ok_or(Status::InvalidArgument)
}
