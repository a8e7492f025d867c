//! Event sets: the events that the driver reports.

use std::thread;
use std::time::{Duration, Instant};

use super::exports;
use super::handle::{device, handle_of};
use super::objects::{self, with_set};
use super::pointer::Out;
use super::session;
use super::structs::{EventData, NO_INSTANCE};
use crate::engine::events;
use crate::engine::status::Status;

/// How often a waiting thread checks whether its set was freed. This is soon enough to notice it, and seldom enough that waiting costs
/// almost nothing, as with a real driver, which wakes a thread only for an event.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

exports! {
    fn nvmlEventSetCreate(set: Out<usize>) {
        if set.is_null() {
            return Err(Status::InvalidArgument);
        }
        set.put(objects::new_set()?)
    }

    fn nvmlEventSetFree(set: usize) {
        objects::free_set(set)
    }

    fn nvmlDeviceGetSupportedEventTypes(handle: usize, kinds: Out<u64>) {
        kinds.put(events::supported(device(handle)?.gpu()))
    }

    /// Reports events from now on; earlier ones are not reported.
    fn nvmlDeviceRegisterEvents(handle: usize, kinds: u64, set: usize) {
        let device = device(handle)?;
        if kinds & !events::supported(device.gpu()) != 0 {
            return Err(Status::NotSupported);
        }
        with_set(set, |subscription| subscription.register(device.gpu().index, kinds, device.t))
    }

    /// Waits without a device handle, so it works even when a GPU is lost or hangs.
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
