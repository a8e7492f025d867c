//! What is kept of each sender, told apart by their tokens: its series as it writes them, its shapes, and how many it has.
//!
//! Several senders may share a token: Prometheus opens up to 200 connections itself. They share one memory; since that predicts
//! by successor, they do not spoil each other's order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::series::Labels;
use store::SeriesStore;
use store::series::{APPEND_SAMPLES_MAX, AppendError, Block, Metadata, SeriesId};

use super::refused::{Refusal, Refused};
use super::remembered::Remembered;
use super::rows::{Repeats, Row, Sorted};
use super::sent::Sent;
use super::shapes::Shapes;
use super::translate::{Resolve, Translated, Unusable, Version, translate};

/// Live series one sender may have: half of what the store takes, so that a label flood from one of them leaves the agents and
/// the others theirs.
pub const SERIES_A_SENDER_MAX: usize = 500_000;
/// Remembered of one sender: all series it may have, at some 250 bytes each.
const REMEMBERED_BYTES_MAX: usize = 128 << 20;
/// Remembered of all senders. Past this the one not heard longest is forgotten; it costs it a slower request.
const REMEMBERED_BYTES_MAX_IN_ALL: usize = 256 << 20;
/// A full memory is begun anew after this: what it holds may be series that are gone.
const RENEW_AFTER: Duration = Duration::from_secs(10 * 60);
/// A sender that has not been heard for so long has no use for its memory.
const IDLE_AFTER: Duration = Duration::from_secs(10 * 60);
/// Senders whose series are counted. Tokens are made by the admin; past this the one not heard longest is forgotten.
const SENDERS_MAX: usize = 1_024;

/// All senders.
#[derive(Debug)]
pub(super) struct Senders {
    by_token: Mutex<HashMap<String, Arc<Sender>>>,
    series_max: usize,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Sender {
    state: Mutex<State>,
    heard: Mutex<Heard>,
    series_max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    remembered_bytes: usize,
}

#[derive(Debug)]
struct State {
    memory: Remembered,
    renewed: Instant,
    shapes: Shapes,
    sent: Sent,
}

/// A request that only has to be stored.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Each at most as large as the store takes.
    pub(super) appends: Vec<Vec<Block>>,
    pub(super) metadata: BTreeMap<String, Metadata>,
    pub(super) refused: Refused,
    pub(super) exemplars: u64,
    pub(super) histograms: u64,
    /// Samples at a time that the same request has a value for already.
    pub(super) repeats: Repeats,
    /// A series with the earliest and one with the latest time.
    pub(super) oldest: Option<(i64, SeriesId)>,
    pub(super) newest: Option<(i64, SeriesId)>,
}

/// Why a request is not ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The store has forgotten a series that is remembered here.
    #[error(transparent)]
    Store(#[from] AppendError),
}

impl Senders {
    pub(super) fn new(series_max: usize) -> Self {
        Self {
            by_token: Mutex::default(),
            series_max,
        }
    }

    /// The sender of a token.
    pub(super) fn of(&self, token: &str, now: Instant) -> Arc<Sender> {
        let mut by_token = lock(&self.by_token);
        if let Some(sender) = by_token.get(token) {
            lock(&sender.heard).at = now;
            return Arc::clone(sender);
        }
        if by_token.len() >= SENDERS_MAX {
            let longest = by_token.iter().min_by_key(|(_, sender)| lock(&sender.heard).at);
            if let Some(token) = longest.map(|(token, _)| token.clone()) {
                by_token.remove(&token);
            }
        }
        let sender = Arc::new(Sender::new(self.series_max, now));
        by_token.insert(token.to_owned(), Arc::clone(&sender));
        sender
    }

    /// Forgets what idle senders sent, and the idlest ones' when all is too much. How many series each has stays counted.
    pub(super) fn forget_idle(&self, now: Instant) {
        let mut by_age: Vec<(Heard, Arc<Sender>)> = lock(&self.by_token)
            .values()
            .map(|sender| (*lock(&sender.heard), Arc::clone(sender)))
            .collect();
        by_age.sort_by_key(|(heard, _)| std::cmp::Reverse(heard.at));
        let mut kept = 0;
        for (heard, sender) in by_age {
            kept += heard.remembered_bytes;
            let idle = now.saturating_duration_since(heard.at) >= IDLE_AFTER;
            if heard.remembered_bytes > 0 && (idle || kept > REMEMBERED_BYTES_MAX_IN_ALL) {
                kept -= heard.remembered_bytes;
                sender.forget(now);
            }
        }
    }

    /// What is remembered of all senders.
    #[cfg(test)]
    pub(super) fn remembered_bytes(&self) -> usize {
        lock(&self.by_token)
            .values()
            .map(|sender| lock(&sender.heard).remembered_bytes)
            .sum()
    }
}

impl Sender {
    fn new(series_max: usize, now: Instant) -> Self {
        let state = State {
            memory: Remembered::new(REMEMBERED_BYTES_MAX),
            renewed: now,
            shapes: Shapes::default(),
            sent: Sent::default(),
        };
        let heard = Heard {
            at: now,
            remembered_bytes: 0,
        };
        Self {
            state: Mutex::new(state),
            heard: Mutex::new(heard),
            series_max,
        }
    }

    /// Makes a request ready for the store.
    pub(super) fn prepare(
        &self,
        version: Version,
        request: &[u8],
        store: &SeriesStore,
        now: Instant,
    ) -> Result<Ready, NotReady> {
        let mut state = lock(&self.state);
        let State {
            memory,
            renewed,
            shapes,
            sent,
        } = &mut *state;
        if memory.is_full() && now.saturating_duration_since(*renewed) >= RENEW_AFTER {
            memory.clear();
            *renewed = now;
        }
        let mut ids = Ids {
            store,
            sent,
            limit: self.series_max,
            now,
        };
        let translated = translate(version, request, memory, &mut ids)?;
        let ready = ready(translated, shapes, store);
        lock(&self.heard).remembered_bytes = memory.size();
        Ok(ready?)
    }

    /// Forgets the series as they were sent, which are then resolved anew.
    pub(super) fn forget(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.memory.clear();
        state.renewed = now;
        state.shapes = Shapes::default();
        lock(&self.heard).remembered_bytes = 0;
    }
}

fn ready(translated: Translated, shapes: &mut Shapes, store: &SeriesStore) -> Result<Ready, AppendError> {
    let Translated {
        sorted,
        metadata,
        refused,
        exemplars,
        histograms,
    } = translated;
    let Sorted {
        rows,
        mut repeats,
        oldest,
        newest,
    } = sorted;
    let mut blocks = Vec::with_capacity(rows.len());
    for row in rows.into_iter().flat_map(Row::into_appendable) {
        repeats += shapes.blocks(row, store, &mut blocks)?;
    }
    Ok(Ready {
        appends: pack(blocks),
        metadata,
        refused,
        exemplars,
        histograms,
        repeats,
        oldest,
        newest,
    })
}

/// Puts blocks into appends that the store takes.
fn pack(blocks: Vec<Block>) -> Vec<Vec<Block>> {
    let (mut appends, mut samples) = (Vec::new(), usize::MAX);
    for block in blocks {
        if samples.saturating_add(block.values.len()) > APPEND_SAMPLES_MAX {
            appends.push(Vec::new());
            samples = 0;
        }
        samples += block.values.len();
        appends.last_mut().expect("the first block opens one").push(block);
    }
    appends
}

/// Gives series their ids, within the sender's limit.
struct Ids<'a> {
    store: &'a SeriesStore,
    sent: &'a mut Sent,
    limit: usize,
    now: Instant,
}

impl Resolve for Ids<'_> {
    fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, Refusal> {
        let store = self.store;
        let known = store.id_of(labels);
        // A series that is there already costs nothing, whoever sent it first.
        if known.is_none() && !self.sent.has_room(self.limit, self.now, |id| store.knows(id)) {
            return Err(Refusal::SenderLimit);
        }
        let id = known.map_or_else(|| store.resolve(labels), Ok);
        let id = id.map_err(|_| Refusal::StoreLimit)?;
        self.sent.add(id);
        Ok(id)
    }
}

/// Locks, also after a panic elsewhere: at worst a sender's memory is incomplete, and every use of it compares the bytes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
