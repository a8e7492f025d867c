//! What lives as long as the process: the simulated machine, its clock, and the handles given out.
//!
//! Handles are numbers in a table, never addresses: a stale or invented one is refused, not followed.
//! The lock is never held while a call waits (a slow driver, a hung one, an event to come).

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Answer;
use crate::engine::events::Subscription;
use crate::engine::fault::Gate;
use crate::engine::gpu::Gpu;
use crate::engine::node::Node;
use crate::engine::spec::Spec;
use crate::engine::status::Status;

/// Where the spec comes from when nobody calls `lockstep_sim_configure`.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";
const SPEC_DEFAULT: &str = "h100x8";

/// Device handles: spread out and far from null, so that mixing them up with counts shows.
const DEVICE_BASE: usize = 0x1000_0000;
const DEVICE_STEP: usize = 0x1000;
/// Numbers of samples and event sets.
const TICKET_BASE: usize = 0x2000_0000;
const TICKET_STEP: usize = 0x10;
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

/// A GPM sample: when it was taken, and of which GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GpmSample {
    pub taken: Option<(u32, f64)>,
}

struct Session {
    configured: Option<Spec>,
    /// Kept from the first initialisation on, so that simulated time goes on over a shutdown.
    machine: Option<Arc<Machine>>,
    users: u32,
    tickets: usize,
    samples: Option<HashMap<usize, GpmSample>>,
    sets: Option<HashMap<usize, Subscription>>,
    error: Option<CString>,
}

static SESSION: Mutex<Session> = Mutex::new(Session {
    configured: None,
    machine: None,
    users: 0,
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
    match Spec::parse(text) {
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

/// One more user; the first starts the machine.
pub(crate) fn init() -> Answer {
    let mut session = lock();
    if session.machine.is_none() {
        let spec = session.spec()?;
        session.machine = Some(Arc::new(Machine::start(&spec)));
    }
    session.users += 1;
    Ok(())
}

/// One user fewer; with the last go all samples and event sets.
pub(crate) fn shutdown() -> Answer {
    let mut session = lock();
    session.users = session.users.checked_sub(1).ok_or(Status::Uninitialized)?;
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
        Spec::parse(text.as_deref().unwrap_or(SPEC_DEFAULT)).map_err(|error| {
            // A third-party client would show no more than "Invalid Argument".
            eprintln!("NVML simulator: {SPEC_VARIABLE}: {error}");
            self.fail(&error.to_string());
            Status::InvalidArgument
        })
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

/// The machine, if NVML is initialised.
pub(crate) fn machine() -> Result<Arc<Machine>, Status> {
    let session = lock();
    if session.users == 0 {
        return Err(Status::Uninitialized);
    }
    session.machine.clone().ok_or(Status::Uninitialized)
}

// === Devices ===

/// A GPU that answers, and the moment it does.
pub(crate) struct Device {
    pub machine: Arc<Machine>,
    index: usize,
    pub t: f64,
}

impl Device {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.machine.node.gpus[self.index]
    }

    pub(crate) fn node(&self) -> &Node {
        &self.machine.node
    }
}

/// The handle of a GPU.
pub(crate) fn handle_of(gpu: u32) -> usize {
    DEVICE_BASE + gpu as usize * DEVICE_STEP
}

/// The GPU behind a handle. Here a call meets what is wrong with the GPU: it is refused, slowed, or
/// does not come back.
pub(crate) fn device(handle: usize) -> Result<Device, Status> {
    let machine = machine()?;
    let offset = handle.checked_sub(DEVICE_BASE).ok_or(Status::InvalidArgument)?;
    let index = offset / DEVICE_STEP;
    if !offset.is_multiple_of(DEVICE_STEP) || index >= machine.node.gpus.len() {
        return Err(Status::InvalidArgument);
    }
    let t = pass_gate(&machine, &machine.node.gpus[index])?;
    Ok(Device { machine, index, t })
}

/// Waits as the GPU's fault demands; gives the moment after that.
fn pass_gate(machine: &Machine, gpu: &Gpu) -> Result<f64, Status> {
    let t = machine.now();
    match gpu.gate(t) {
        Gate::Open => return Ok(t),
        Gate::Lost => return Err(Status::GpuIsLost),
        Gate::Slow(delay) => thread::sleep(delay),
        Gate::Until(end) if end.is_finite() => thread::sleep(Duration::from_secs_f64(end - t)),
        Gate::Until(_) => loop {
            thread::park();
        },
    }
    Ok(machine.now())
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
