//! The state of the whole process: what is simulated, how many users there are, and which samples and event sets exist.
//!
//! The lock is never held while a call waits (for a slow driver, a hanging one, or an event).

use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CallResult;
use super::machine::{Machine, read_spec};
use super::objects::ObjectTable;
use crate::engine::driver::DriverState;
use crate::engine::spec::Spec;
use crate::engine::status::Status;

/// The environment variable with the specification. It is used if `lockstep_sim_configure` is not called.
const SPEC_VARIABLE: &str = "LOCKSTEP_SIMULATE";
const SPEC_DEFAULT: &str = "h100x8";

pub(super) struct Session {
    configured: Option<Spec>,
    /// Kept from the first initialisation on, so that simulated time continues across a shutdown.
    machine: Option<Arc<Machine>>,
    users: u32,
    /// The generation of the driver for which NVML was initialised.
    generation: usize,
    pub(super) objects: ObjectTable,
    error: Option<CString>,
}

static SESSION: Mutex<Session> = Mutex::new(Session {
    configured: None,
    machine: None,
    users: 0,
    generation: 0,
    objects: ObjectTable::EMPTY,
    error: None,
});

// === Start and end ===

/// Configures what to simulate. Refused while NVML is initialised.
pub(crate) fn configure(text: &str) -> CallResult {
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

/// Adds a user; the first one starts the machine. Only the first one gets an error if the driver does not match the library.
pub(crate) fn init() -> CallResult {
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

/// Removes a user. With the last one, all samples and event sets are freed.
pub(crate) fn shutdown() -> CallResult {
    let mut session = lock();
    session.current()?;
    session.users -= 1;
    if session.users == 0 {
        session.objects.free_all();
    }
    Ok(())
}

/// Returns why the last specification was refused, or an empty text. The text is valid until the next configure or init.
pub(crate) fn error() -> *const c_char {
    lock()
        .error
        .as_ref()
        .map_or(c"".as_ptr(), |message| message.as_ptr())
}

impl Session {
    /// Returns the specification: the configured one, otherwise that of the environment, otherwise the default.
    fn spec(&mut self) -> Result<Spec, Status> {
        if let Some(spec) = &self.configured {
            return Ok(spec.clone());
        }
        let text = std::env::var(SPEC_VARIABLE).ok().filter(|text| !text.is_empty());
        read_spec(text.as_deref().unwrap_or(SPEC_DEFAULT)).map_err(|error| {
            // Other clients would show only "Invalid Argument".
            eprintln!("NVML simulator: {SPEC_VARIABLE}: {error}");
            self.fail(&error.to_string());
            Status::InvalidArgument
        })
    }

    /// Returns the machine, if NVML is initialised for the current driver.
    fn current(&mut self) -> Result<Arc<Machine>, Status> {
        let machine = self.machine.clone().ok_or(Status::Uninitialized)?;
        self.forget_earlier_driver(&machine, machine.now());
        if self.users == 0 {
            return Err(Status::Uninitialized);
        }
        Ok(machine)
    }

    /// Ends an initialisation for a driver that has been unloaded since.
    fn forget_earlier_driver(&mut self, machine: &Machine, t: f64) {
        let generation = machine.node.driver.generation(t);
        if self.generation != generation {
            self.generation = generation;
            self.users = 0;
            self.objects.free_all();
        }
    }

    fn fail(&mut self, message: &str) {
        // A zero byte can only come from the specification itself. The text before it is enough.
        self.error = CString::new(message.split('\0').next().unwrap_or_default()).ok();
    }
}

pub(super) fn lock() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the machine, if NVML is initialised.
pub(crate) fn machine() -> Result<Arc<Machine>, Status> {
    lock().current()
}
