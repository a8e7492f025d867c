//! The open connections of a listener. Limits unauthenticated connections, and closes the oldest when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use ipnet::IpNet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::address::AddressKey;
use crate::http::HEAD_BYTES_MAX;

/// The maximum number of bytes read from an unauthenticated connection until the head of its next request is complete: the
/// head, and before it the body of the previous request, which is small for a log-in and not needed otherwise.
const UNAUTHENTICATED_BYTES_MAX: u64 = HEAD_BYTES_MAX as u64;
/// How long an unauthenticated connection may stay open after its last request: enough to load the dashboard over a slow line.
const UNAUTHENTICATED_WITHIN: Duration = Duration::from_secs(120);
/// The minimum interval between log lines about closed or refused connections. Otherwise an attack would fill the disk.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// No limit for reading.
const UNLIMITED: u64 = u64::MAX;

/// The maximum numbers of connections of a listener. If an unauthenticated connection exceeds the second or third limit, the
/// oldest one of its kind is closed, so that a client with many connections cannot keep others out.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// All connections. If all of them have authenticated, a new one is refused.
    pub total: usize,
    /// Unauthenticated connections.
    pub unauthenticated: usize,
    /// Unauthenticated connections of one address.
    pub unauthenticated_per_address: usize,
    /// The time within which a new connection must send the head of its first request, including TLS. [`crate::HEAD_TIMEOUT`]
    /// except in tests.
    pub head_timeout: Duration,
}

/// The open connections of one listener. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Registry>);

struct Registry {
    limits: Limits,
    /// The networks of proxies, whose connections carry many clients.
    proxies: Vec<IpNet>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    open: usize,
    /// By id, so that the first is the oldest.
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    /// The ids of unauthenticated connections. No set is empty.
    by_address: HashMap<AddressKey, BTreeSet<u64>>,
    warned: Option<Instant>,
}

struct Unauthenticated {
    /// `None` for a proxy, which has no limit per address.
    address: Option<AddressKey>,
    evicted: CancellationToken,
}

/// One connection. Each of its requests has it in the extensions.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    id: u64,
    connections: Connections,
    /// Cancelled when the connection is closed in favour of a newer one.
    evicted: CancellationToken,
    authenticated: AtomicBool,
    /// The number of bytes that may still be read.
    readable: AtomicU64,
    /// The task that waits until more bytes may be read.
    reader: AtomicWaker,
    opened: Instant,
    /// Milliseconds after `opened` at which the connection is closed, unless it has authenticated.
    deadline_ms: AtomicU64,
}

/// An open connection. Dropping it ends its count.
pub(crate) struct Slot(Connection);

impl Connections {
    /// Creates an empty registry. Connections from `proxies` have no limit per address.
    #[must_use]
    pub fn new(limits: Limits, proxies: Vec<IpNet>) -> Self {
        Self(Arc::new(Registry {
            limits,
            proxies,
            state: Mutex::default(),
        }))
    }

    /// Returns the number of open connections, and how many of them have not authenticated.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let state = self.lock();
        (state.open, state.unauthenticated.len())
    }

    /// Returns the time within which a new connection must send the head of its first request.
    pub(crate) fn head_timeout(&self) -> Duration {
        self.0.limits.head_timeout
    }

    /// Counts a new connection. Returns `None` if there is no room for it.
    pub(crate) fn open(&self, peer: IpAddr) -> Option<Slot> {
        let peer = peer.to_canonical();
        let is_proxy = self.0.proxies.iter().any(|network| network.contains(&peer));
        let address = (!is_proxy).then(|| AddressKey::from(peer));
        let limits = self.0.limits;
        let mut state = self.lock();
        if let Some(ids) = address.and_then(|address| state.by_address.get(&address))
            && ids.len() >= limits.unauthenticated_per_address
            && let Some(oldest) = ids.first().copied()
        {
            state.warn(
                peer,
                "closed the oldest unauthenticated connection of this address: the address has too many",
            );
            state.evict(oldest);
        }
        if (state.unauthenticated.len() >= limits.unauthenticated || state.open >= limits.total)
            && let Some(oldest) = state.unauthenticated.keys().next().copied()
        {
            state.warn(
                peer,
                "closed the oldest unauthenticated connection: too many are open",
            );
            state.evict(oldest);
        }
        if state.open >= limits.total {
            state.warn(
                peer,
                "refused a connection: too many are open, and all of them have authenticated",
            );
            return None;
        }
        let id = state.next_id;
        let evicted = CancellationToken::new();
        state.next_id += 1;
        state.open += 1;
        let connection = Unauthenticated {
            address,
            evicted: evicted.clone(),
        };
        state.unauthenticated.insert(id, connection);
        if let Some(address) = address {
            state.by_address.entry(address).or_default().insert(id);
        }
        drop(state);
        Some(Slot(Connection(Arc::new(Inner {
            id,
            connections: self.clone(),
            evicted,
            authenticated: AtomicBool::new(false),
            readable: AtomicU64::new(UNAUTHENTICATED_BYTES_MAX),
            reader: AtomicWaker::new(),
            opened: Instant::now(),
            deadline_ms: AtomicU64::new(limits.head_timeout.as_millis() as u64),
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn warn(&mut self, peer: IpAddr, message: &str) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| now - warned >= WARN_INTERVAL) {
            self.warned = Some(now);
            tracing::warn!(%peer, open = self.open, "{message}");
        }
    }

    /// Closes an unauthenticated connection. It no longer counts, although its task ends a little later.
    fn evict(&mut self, id: u64) {
        if let Some(connection) = self.forget(id) {
            self.open -= 1;
            connection.evicted.cancel();
        }
    }

    /// Removes a connection from the unauthenticated ones.
    fn forget(&mut self, id: u64) -> Option<Unauthenticated> {
        let connection = self.unauthenticated.remove(&id)?;
        if let Some(address) = connection.address
            && let Some(ids) = self.by_address.get_mut(&address)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(connection)
    }
}

impl Connection {
    /// Records that a request on this connection had a valid token. From now on the connection is not closed in favour of
    /// others, and has no limit for reading.
    pub fn authenticate(&self) {
        if self.is_authenticated() {
            return;
        }
        let mut state = self.0.connections.lock();
        // A connection that was just evicted ends all the same.
        if state.forget(self.0.id).is_some() {
            self.0.authenticated.store(true, Ordering::Release);
            self.limit_reading(UNLIMITED);
        }
    }

    /// Limits how many bytes are read from now on from an authenticated connection, over all its requests. Reading more fails.
    pub fn limit_reading(&self, bytes: u64) {
        self.0.readable.store(bytes, Ordering::Release);
        self.0.reader.wake();
    }

    /// Removes the limit for reading.
    pub fn read_without_limit(&self) {
        self.limit_reading(UNLIMITED);
    }

    /// Returns true if a limit for reading is used up.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.readable() == Some(0)
    }

    /// Records that the head of a request was read.
    pub(crate) fn request_began(&self) {
        if self.is_authenticated() {
            return;
        }
        self.limit_reading(UNAUTHENTICATED_BYTES_MAX);
        let deadline = self.0.opened.elapsed() + UNAUTHENTICATED_WITHIN;
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.0.deadline_ms.store(deadline_ms, Ordering::Release);
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.0.authenticated.load(Ordering::Acquire)
    }

    /// Returns when the connection is closed if it has not authenticated.
    pub(crate) fn deadline(&self) -> Instant {
        self.0.opened + Duration::from_millis(self.0.deadline_ms.load(Ordering::Acquire))
    }

    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.0.evicted
    }

    /// Returns how many bytes may be read now, or `None` for no limit.
    pub(crate) fn readable(&self) -> Option<usize> {
        let bytes = self.0.readable.load(Ordering::Acquire);
        (bytes != UNLIMITED).then(|| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Wakes `waker` when more bytes may be read.
    pub(crate) fn wake_when_readable(&self, waker: &Waker) {
        self.0.reader.register(waker);
    }

    /// Counts bytes that were read under a limit. A limit that was removed in the meantime stays removed.
    pub(crate) fn count_read(&self, bytes: usize) {
        let _lifted = self
            .0
            .readable
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                (left != UNLIMITED).then(|| left.saturating_sub(bytes as u64))
            });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.0.id).finish()
    }
}

impl Slot {
    pub(crate) fn connection(&self) -> &Connection {
        &self.0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let inner = &self.0.0;
        let mut state = inner.connections.lock();
        let was_waiting = state.forget(inner.id).is_some();
        if was_waiting || inner.authenticated.load(Ordering::Acquire) {
            state.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: Limits = Limits {
        total: 6,
        unauthenticated: 5,
        unauthenticated_per_address: 3,
        head_timeout: Duration::from_secs(10),
    };

    fn peer(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn is_evicted(slot: &Slot) -> bool {
        slot.0.evicted().is_cancelled()
    }

    #[tokio::test]
    async fn the_oldest_unauthenticated_one_of_an_address_gives_way() {
        let connections = Connections::new(LIMITS, Vec::new());
        let of_others = connections.open(peer(9)).expect("room");
        let mut slots: Vec<_> = (0..3).map(|_| connections.open(peer(1)).expect("room")).collect();
        slots[0].connection().authenticate();
        slots.extend((0..2).map(|_| connections.open(peer(1)).expect("room")));
        let evicted: Vec<_> = slots.iter().map(is_evicted).collect();
        assert_eq!(evicted, [false, true, false, false, false]);
        assert!(!is_evicted(&of_others));
        assert_eq!(connections.count(), (5, 4));
        drop((slots, of_others));
        assert_eq!(connections.count(), (0, 0));
        assert!(connections.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_of_all_gives_way_and_authenticated_ones_never_do() {
        let connections = Connections::new(LIMITS, Vec::new());
        let slots: Vec<_> = (0..6).map(|n| connections.open(peer(n)).expect("room")).collect();
        assert!(is_evicted(&slots[0]));
        for slot in &slots {
            slot.connection().authenticate();
        }
        let last = connections.open(peer(9)).expect("the evicted one does not count");
        last.connection().authenticate();
        assert!(connections.open(peer(10)).is_none(), "all have authenticated");
        assert_eq!(connections.count(), (6, 0));
        drop(slots);
        assert_eq!(connections.count(), (1, 0));
    }

    #[tokio::test]
    async fn a_proxy_has_no_limit_per_address() {
        let network = "10.0.0.0/24".parse().expect("a network");
        let connections = Connections::new(LIMITS, vec![network]);
        let slots: Vec<_> = (0..5).map(|_| connections.open(peer(1)).expect("room")).collect();
        assert!(!slots.iter().any(is_evicted));
    }

    #[tokio::test]
    async fn reading_is_limited_until_it_is_authenticated() {
        let connections = Connections::new(LIMITS, Vec::new());
        let slot = connections.open(peer(1)).expect("room");
        let connection = slot.connection();
        assert_eq!(connection.readable(), Some(8_192));
        connection.count_read(8_000);
        assert_eq!(connection.readable(), Some(192));
        connection.request_began();
        assert_eq!(connection.readable(), Some(8_192));
        connection.authenticate();
        assert_eq!(connection.readable(), None);
        connection.count_read(5);
        connection.request_began();
        assert_eq!(connection.readable(), None);
        connection.limit_reading(10);
        connection.count_read(11);
        assert!(connection.is_exhausted());
        connection.read_without_limit();
        assert_eq!(connection.readable(), None);
    }
}
