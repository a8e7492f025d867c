//! What lives as long as the process: what to simulate, who uses it, and what is out.
//!
//! The lock is never held while a call waits (a slow driver, a hung one, an event to come).

use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Answer;
use super::machine::{Machine, read_spec};
use super::ticket::Tickets;
use crate::engine::driver::DriverState;
use crate::engine::spec::Spec;
use crate::engine::status::Status;

/// Where the spec comes from when nobody calls `lockstep_sim_configure`.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";
const SPEC_DEFAULT: &str = "h100x8";

pub(super) struct Session {
    configured: Option<Spec>,
    /// Kept from the first initialisation on, so that simulated time goes on over a shutdown.
    machine: Option<Arc<Machine>>,
    users: u32,
    /// The driver for which NVML was initialised.
    generation: usize,
    pub(super) tickets: Tickets,
    error: Option<CString>,
}

static SESSION: Mutex<Session> = Mutex::new(Session {
    configured: None,
    machine: None,
    users: 0,
    generation: 0,
    tickets: Tickets::NONE,
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
    match read_spec(text) {
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
        session.tickets.void_all();
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
        read_spec(text.as_deref().unwrap_or(SPEC_DEFAULT)).map_err(|error| {
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
            self.tickets.void_all();
        }
    }

    fn fail(&mut self, message: &str) {
        // A zero byte inside can only come from the spec itself; what precedes it is enough to see.
        self.error = CString::new(message.split('\0').next().unwrap_or_default()).ok();
    }
}

pub(super) fn lock() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, if NVML is initialised.
pub(crate) fn machine() -> Result<Arc<Machine>, Status> {
    lock().current()
}
