//! Objects that a client allocates and frees: GPM samples and event sets. They are numbered, so a freed one is refused.

use std::collections::HashMap;

use super::{CallResult, session};
use crate::engine::events::Subscription;
use crate::engine::status::Status;

/// The base of ids, far from device handles.
const ID_BASE: usize = 0x2000_0000;
const ID_STEP: usize = 0x10;
/// The maximum number of samples or event sets. A program with more has a leak.
const OBJECTS_MAX: usize = 65_536;

/// All allocated samples and event sets.
pub(crate) struct ObjectTable {
    issued: usize,
    samples: Option<HashMap<usize, GpmSample>>,
    sets: Option<HashMap<usize, Subscription>>,
}

/// A GPM sample: when it was taken, and the GPU or instance that it covers.
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

impl ObjectTable {
    pub(crate) const EMPTY: ObjectTable = ObjectTable {
        issued: 0,
        samples: None,
        sets: None,
    };

    /// Frees all samples and event sets. Their numbers are not used again.
    pub(crate) fn free_all(&mut self) {
        self.samples = None;
        self.sets = None;
    }

    fn next(&mut self) -> usize {
        self.issued += 1;
        ID_BASE + self.issued * ID_STEP
    }
}

pub(crate) fn new_sample() -> Result<usize, Status> {
    session::machine()?;
    let objects = &mut session::lock().objects;
    let id = objects.next();
    insert(&mut objects.samples, id, GpmSample::default())?;
    Ok(id)
}

pub(crate) fn free_sample(id: usize) -> CallResult {
    remove(&mut session::lock().objects.samples, id)
}

/// Calls `act` with a sample.
pub(crate) fn with_sample<R>(id: usize, act: impl FnOnce(&mut GpmSample) -> R) -> Result<R, Status> {
    with(&mut session::lock().objects.samples, id, act)
}

pub(crate) fn new_set() -> Result<usize, Status> {
    session::machine()?;
    let objects = &mut session::lock().objects;
    let id = objects.next();
    insert(&mut objects.sets, id, Subscription::default())?;
    Ok(id)
}

pub(crate) fn free_set(id: usize) -> CallResult {
    remove(&mut session::lock().objects.sets, id)
}

/// Calls `act` with an event set.
pub(crate) fn with_set<R>(id: usize, act: impl FnOnce(&mut Subscription) -> R) -> Result<R, Status> {
    with(&mut session::lock().objects.sets, id, act)
}

fn insert<T>(table: &mut Option<HashMap<usize, T>>, id: usize, value: T) -> CallResult {
    let table = table.get_or_insert_default();
    if table.len() >= OBJECTS_MAX {
        return Err(Status::Memory);
    }
    table.insert(id, value);
    Ok(())
}

fn remove<T>(table: &mut Option<HashMap<usize, T>>, id: usize) -> CallResult {
    let found = table.as_mut().and_then(|table| table.remove(&id));
    found.map(drop).ok_or(Status::InvalidArgument)
}

fn with<T, R>(
    table: &mut Option<HashMap<usize, T>>,
    id: usize,
    act: impl FnOnce(&mut T) -> R,
) -> Result<R, Status> {
    table
        .as_mut()
        .and_then(|table| table.get_mut(&id))
        .map(act)
        .ok_or(Status::InvalidArgument)
}
