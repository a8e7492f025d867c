//! Event sets: what the driver reports by itself.

use std::thread;
use std::time::{Duration, Instant};

use super::exports;
use super::handle::{device, handle_of};
use super::pointer::Out;
use super::session;
use super::structs::{EventData, NO_INSTANCE};
use super::ticket::{self, with_set};
use crate::engine::events;
use crate::engine::status::Status;

/// A waiting thread looks again this often: soon enough to notice that its set was freed, and seldom enough that waiting costs next
/// to nothing, as with a real driver, which wakes nobody without an event.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

exports! {
    fn nvmlEventSetCreate(set: Out<usize>) {
        if set.is_null() {
            return Err(Status::InvalidArgument);
        }
        set.put(ticket::new_set()?)
    }

    fn nvmlEventSetFree(set: usize) {
        ticket::free_set(set)
    }

    fn nvmlDeviceGetSupportedEventTypes(handle: usize, kinds: Out<u64>) {
        kinds.put(events::supported(device(handle)?.gpu()))
    }

    /// From now on; what happened before is not reported.
    fn nvmlDeviceRegisterEvents(handle: usize, kinds: u64, set: usize) {
        let device = device(handle)?;
        if kinds & !events::supported(device.gpu()) != 0 {
            return Err(Status::NotSupported);
        }
        with_set(set, |subscription| subscription.register(device.gpu().index, kinds, device.t))
    }

    /// Waits without a handle, so it is served even when a GPU is lost or hangs.
    fn nvmlEventSetWait_v2(set: usize, data: Out<EventData>, timeout_ms: u32) {
        if data.is_null() {
            return Err(Status::InvalidArgument);
        }
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        loop {
            let machine = session::machine()?;
            let now = machine.now();
            let events = &machine.node.events;
            let (event, next) =
                with_set(set, |subscription| (subscription.take(events, now), subscription.until_next(events, now)))?;
            if let Some(event) = event {
                return data.put(EventData {
                    device: handle_of(&machine, event.gpu),
                    kind: event.kind,
                    data: event.data,
                    gpu_instance: NO_INSTANCE,
                    compute_instance: NO_INSTANCE,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Status::Timeout);
            }
            let next = next.map_or(LOOK_AGAIN, |seconds| Duration::from_secs_f64(seconds.min(LOOK_AGAIN.as_secs_f64())));
            thread::sleep(left.min(next));
        }
    }
}
