//! Streams that have shown a valid token and not sent their hello: few at once, because a hello is up to half a megabyte, and most
//! of all few per address.
//!
//! An agent sends its hello at once, so a place is taken for some milliseconds, and a thousand agents behind one address are through
//! within seconds. The others are asked to come back, which they do at different times (`agent::uplink::link::Retry`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use listener::AddressKey;

/// Places of one address.
const PER_ADDRESS_MAX: usize = 8;
/// Places together: 64 MiB of hellos.
const WAITING_MAX: usize = 128;
/// When to come back.
pub(super) const RETRY_AFTER_S: u64 = 1;

/// Streams without a hello, by the address they come from.
#[derive(Clone, Default)]
pub(super) struct WaitingStreams(Arc<Mutex<HashMap<AddressKey, usize>>>);

/// A stream's place; free again when it is dropped.
pub(super) struct Place {
    streams: WaitingStreams,
    address: AddressKey,
}

impl WaitingStreams {
    /// A place for a stream from `address`; `None` when there is none.
    pub(super) fn take(&self, address: AddressKey) -> Option<Place> {
        let mut by_address = self.lock();
        if by_address.values().sum::<usize>() >= WAITING_MAX {
            return None;
        }
        let waiting = by_address.entry(address).or_default();
        if *waiting >= PER_ADDRESS_MAX {
            return None;
        }
        *waiting += 1;
        Some(Place {
            streams: self.clone(),
            address,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AddressKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.streams.lock();
        if let Some(waiting) = by_address.get_mut(&self.address) {
            *waiting -= 1;
            if *waiting == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// What an agent without a place is told.
pub(super) fn no_place() -> String {
    format!("{PER_ADDRESS_MAX} streams from this address are being let in already; come back in a moment")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn address(n: u32) -> AddressKey {
        IpAddr::V4(Ipv4Addr::from_bits(n)).into()
    }

    #[test]
    fn an_address_has_eight_places_and_all_have_128() {
        let streams = WaitingStreams::default();
        let mut places: Vec<_> = (0..PER_ADDRESS_MAX).map(|_| streams.take(address(0))).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(streams.take(address(0)).is_none());
        places.pop();
        places.push(streams.take(address(0)));
        let others = (1..=16).flat_map(|n| [n; PER_ADDRESS_MAX]);
        places.extend(others.map(|n| streams.take(address(n))));
        assert_eq!(places.iter().flatten().count(), WAITING_MAX);
        drop(places);
        assert!(streams.lock().is_empty());
    }
}
