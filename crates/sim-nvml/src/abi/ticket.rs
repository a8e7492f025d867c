//! What a client asked for and gives back: GPM samples and event sets, numbered, so that one that was freed is refused.

use std::collections::HashMap;

use super::{Answer, session};
use crate::engine::events::Subscription;
use crate::engine::status::Status;

/// Spread out, and far from device handles.
const TICKET_BASE: usize = 0x2000_0000;
const TICKET_STEP: usize = 0x10;
/// A program that holds more samples or event sets than this has a leak.
const TICKETS_MAX: usize = 65_536;

/// All that is out.
pub(crate) struct Tickets {
    given: usize,
    samples: Option<HashMap<usize, GpmSample>>,
    sets: Option<HashMap<usize, Subscription>>,
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

impl Tickets {
    pub(crate) const NONE: Tickets = Tickets {
        given: 0,
        samples: None,
        sets: None,
    };

    /// Nothing is out any more; numbers are not given twice all the same.
    pub(crate) fn void_all(&mut self) {
        self.samples = None;
        self.sets = None;
    }

    fn next(&mut self) -> usize {
        self.given += 1;
        TICKET_BASE + self.given * TICKET_STEP
    }
}

pub(crate) fn new_sample() -> Result<usize, Status> {
    session::machine()?;
    let tickets = &mut session::lock().tickets;
    let ticket = tickets.next();
    insert(&mut tickets.samples, ticket, GpmSample::default())?;
    Ok(ticket)
}

pub(crate) fn free_sample(ticket: usize) -> Answer {
    remove(&mut session::lock().tickets.samples, ticket)
}

/// Does something with a sample.
pub(crate) fn with_sample<R>(ticket: usize, act: impl FnOnce(&mut GpmSample) -> R) -> Result<R, Status> {
    with(&mut session::lock().tickets.samples, ticket, act)
}

pub(crate) fn new_set() -> Result<usize, Status> {
    session::machine()?;
    let tickets = &mut session::lock().tickets;
    let ticket = tickets.next();
    insert(&mut tickets.sets, ticket, Subscription::default())?;
    Ok(ticket)
}

pub(crate) fn free_set(ticket: usize) -> Answer {
    remove(&mut session::lock().tickets.sets, ticket)
}

/// Does something with an event set.
pub(crate) fn with_set<R>(ticket: usize, act: impl FnOnce(&mut Subscription) -> R) -> Result<R, Status> {
    with(&mut session::lock().tickets.sets, ticket, act)
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
