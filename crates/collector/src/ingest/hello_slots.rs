//! Slots for streams that have sent a valid token but no hello. Few streams may wait at once, because a hello can be half a megabyte, and
//! even fewer per address.
//!
//! An agent sends its hello at once, so a slot is taken for some milliseconds, and a thousand agents behind one address are connected
//! within seconds. Other streams get the request to retry, which agents do at different times (`agent::uplink::link::Retry`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use listener::AddressKey;

/// Slots per address.
const PER_ADDRESS_MAX: usize = 8;
/// Slots in total: 64 MiB of hellos.
const SLOTS_MAX: usize = 128;
/// After how many seconds an agent without a slot retries.
pub(super) const RETRY_AFTER_S: u64 = 1;

/// The number of streams without a hello, by address.
#[derive(Clone, Default)]
pub(super) struct HelloSlots(Arc<Mutex<HashMap<AddressKey, usize>>>);

/// The slot of a stream. Dropping it frees the slot.
pub(super) struct HelloSlot {
    slots: HelloSlots,
    address: AddressKey,
}

impl HelloSlots {
    /// Takes a slot for a stream from `address`. Returns `None` if none is free.
    pub(super) fn take(&self, address: AddressKey) -> Option<HelloSlot> {
        let mut by_address = self.lock();
        if by_address.values().sum::<usize>() >= SLOTS_MAX {
            return None;
        }
        let waiting = by_address.entry(address).or_default();
        if *waiting >= PER_ADDRESS_MAX {
            return None;
        }
        *waiting += 1;
        Some(HelloSlot {
            slots: self.clone(),
            address,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AddressKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HelloSlot {
    fn drop(&mut self) {
        let mut by_address = self.slots.lock();
        if let Some(waiting) = by_address.get_mut(&self.address) {
            *waiting -= 1;
            if *waiting == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// The message to an agent that gets no slot.
pub(super) fn no_free_slot() -> String {
    format!("{PER_ADDRESS_MAX} streams from this address are already connecting; try again in a moment")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn address(n: u32) -> AddressKey {
        IpAddr::V4(Ipv4Addr::from_bits(n)).into()
    }

    #[test]
    fn an_address_has_eight_slots_and_all_have_128() {
        let slots = HelloSlots::default();
        let mut taken: Vec<_> = (0..PER_ADDRESS_MAX).map(|_| slots.take(address(0))).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(slots.take(address(0)).is_none());
        taken.pop();
        taken.push(slots.take(address(0)));
        let others = (1..=16).flat_map(|n| [n; PER_ADDRESS_MAX]);
        taken.extend(others.map(|n| slots.take(address(n))));
        assert_eq!(taken.iter().flatten().count(), SLOTS_MAX);
        drop(taken);
        assert!(slots.lock().is_empty());
    }
}
