//! The state of each sender, identified by its token: its series as it writes them, its shapes, and how many series it has.
//!
//! Several senders may share a token: one Prometheus opens up to 200 connections. They share one state. Because the state predicts
//! successors, the senders do not disturb each other's order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::series::Labels;
use store::SeriesStore;
use store::series::{APPEND_SAMPLES_MAX, AppendError, Block, Metadata, SeriesId};

use super::known_series::KnownSeries;
use super::refused::{Refusal, Refused};
use super::rows::{Repeats, Row, Rows};
use super::sent_series::SentSeries;
use super::shapes::Shapes;
use super::translate::{Resolve, Translated, Unusable, Version, translate};

/// Bound of the live series of one sender: half of the store's limit, so that a sender with too many label values leaves room for agents
/// and other senders.
pub const SERIES_A_SENDER_MAX: usize = 500_000;
/// Bound of the memory for one sender's known series, in bytes: all series that it may have, about 250 bytes each.
const KNOWN_SERIES_BYTES_MAX: usize = 128 << 20;
/// Bound of the memory for the known series of all senders, in bytes. Beyond it, the memory of the least recently active sender is freed,
/// which makes its next request slower.
const KNOWN_SERIES_BYTES_MAX_IN_ALL: usize = 256 << 20;
/// After this time a full memory is cleared: its series may no longer exist.
const RENEW_AFTER: Duration = Duration::from_secs(10 * 60);
/// After this time without a request, the memory of a sender is freed.
const IDLE_AFTER: Duration = Duration::from_secs(10 * 60);
/// Bound of the senders whose series are counted. The admin creates the tokens. Beyond it, the least recently active sender is removed.
const SENDERS_MAX: usize = 1_024;

/// All senders.
#[derive(Debug)]
pub(super) struct Senders {
    by_token: Mutex<HashMap<String, Arc<Sender>>>,
    series_max: usize,
}

/// One sender.
#[derive(Debug)]
pub(super) struct Sender {
    state: Mutex<State>,
    activity: Mutex<Activity>,
    series_max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Activity {
    at: Instant,
    known_series_bytes: usize,
}

#[derive(Debug)]
struct State {
    memory: KnownSeries,
    renewed: Instant,
    shapes: Shapes,
    sent: SentSeries,
}

/// A request that is ready to be stored.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Appends, each at most as large as the store accepts.
    pub(super) appends: Vec<Vec<Block>>,
    pub(super) metadata: BTreeMap<String, Metadata>,
    pub(super) refused: Refused,
    pub(super) exemplars: u64,
    pub(super) histograms: u64,
    /// Samples at a time for which the same request already has a value.
    pub(super) repeats: Repeats,
    /// The earliest time and its series, and the latest time and its series.
    pub(super) oldest: Option<(i64, SeriesId)>,
    pub(super) newest: Option<(i64, SeriesId)>,
}

/// Why a request is not ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The store has removed a series that is still known here.
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

    /// Returns the sender of a token.
    pub(super) fn of(&self, token: &str, now: Instant) -> Arc<Sender> {
        let mut by_token = lock(&self.by_token);
        if let Some(sender) = by_token.get(token) {
            lock(&sender.activity).at = now;
            return Arc::clone(sender);
        }
        if by_token.len() >= SENDERS_MAX {
            let longest = by_token
                .iter()
                .min_by_key(|(_, sender)| lock(&sender.activity).at);
            if let Some(token) = longest.map(|(token, _)| token.clone()) {
                by_token.remove(&token);
            }
        }
        let sender = Arc::new(Sender::new(self.series_max, now));
        by_token.insert(token.to_owned(), Arc::clone(&sender));
        sender
    }

    /// Frees the memory of idle senders, and of the least recently active ones if all use too much. The number of series of each sender is
    /// kept.
    pub(super) fn forget_idle(&self, now: Instant) {
        let mut by_age: Vec<(Activity, Arc<Sender>)> = lock(&self.by_token)
            .values()
            .map(|sender| (*lock(&sender.activity), Arc::clone(sender)))
            .collect();
        by_age.sort_by_key(|(activity, _)| std::cmp::Reverse(activity.at));
        let mut kept = 0;
        for (activity, sender) in by_age {
            kept += activity.known_series_bytes;
            let idle = now.saturating_duration_since(activity.at) >= IDLE_AFTER;
            if activity.known_series_bytes > 0 && (idle || kept > KNOWN_SERIES_BYTES_MAX_IN_ALL) {
                kept -= activity.known_series_bytes;
                sender.forget(now);
            }
        }
    }

    /// Returns the memory for the known series of all senders, in bytes.
    #[cfg(test)]
    pub(super) fn known_series_bytes(&self) -> usize {
        lock(&self.by_token)
            .values()
            .map(|sender| lock(&sender.activity).known_series_bytes)
            .sum()
    }
}

impl Sender {
    fn new(series_max: usize, now: Instant) -> Self {
        let state = State {
            memory: KnownSeries::new(KNOWN_SERIES_BYTES_MAX),
            renewed: now,
            shapes: Shapes::default(),
            sent: SentSeries::default(),
        };
        let activity = Activity {
            at: now,
            known_series_bytes: 0,
        };
        Self {
            state: Mutex::new(state),
            activity: Mutex::new(activity),
            series_max,
        }
    }

    /// Prepares a request for the store.
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
        lock(&self.activity).known_series_bytes = memory.size();
        Ok(ready?)
    }

    /// Removes the known series, which are then resolved again.
    pub(super) fn forget(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.memory.clear();
        state.renewed = now;
        state.shapes = Shapes::default();
        lock(&self.activity).known_series_bytes = 0;
    }
}

fn ready(translated: Translated, shapes: &mut Shapes, store: &SeriesStore) -> Result<Ready, AppendError> {
    let Translated {
        rows,
        metadata,
        refused,
        exemplars,
        histograms,
    } = translated;
    let Rows {
        rows,
        mut repeats,
        oldest,
        newest,
        ..
    } = rows;
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

/// Packs blocks into appends that the store accepts.
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

/// Resolves series to their ids, within the sender's limit.
struct Ids<'a> {
    store: &'a SeriesStore,
    sent: &'a mut SentSeries,
    limit: usize,
    now: Instant,
}

impl Resolve for Ids<'_> {
    fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, Refusal> {
        let store = self.store;
        let known = store.id_of(labels);
        // A series that already exists is always accepted, whoever sent it first.
        if known.is_none() && !self.sent.has_room(self.limit, self.now, |id| store.knows(id)) {
            return Err(Refusal::SenderLimit);
        }
        let id = known.map_or_else(|| store.resolve(labels), Ok);
        let id = id.map_err(|_| Refusal::StoreLimit)?;
        self.sent.add(id);
        Ok(id)
    }
}

/// Locks, even after a panic elsewhere: at worst a sender's memory is incomplete, and every use of it compares the bytes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
