//! NVML's events with all their data. The wrapper drops every type newer than MIG's, and the data of the events.
#![allow(
    unsafe_code,
    reason = "NVML is a C library; this file contains the calls for events that the wrapper restricts"
)]

use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::event::EventSet;
use nvml_wrapper_sys::bindings::nvmlEventData_t;

/// `nvmlEventTypeXidCriticalError`.
pub(super) const XID: u64 = 0x8;

/// NVML's value for "no instance".
const NO_INSTANCE: u32 = u32::MAX;

/// An event of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawEvent {
    /// The index of the GPU.
    pub(super) gpu: u32,
    /// One of `nvmlEventType…`.
    pub(super) kind: u64,
    /// The Xid, or other data that belongs to the type.
    pub(super) data: u64,
    /// The GPU instance, if the GPU is divided (MIG).
    pub(super) instance: Option<u32>,
}

/// GPUs registered for events.
pub(super) struct Listener<'nvml> {
    nvml: &'nvml Nvml,
    set: EventSet<'nvml>,
    gpus: Vec<(u32, Device<'nvml>)>,
}

impl<'nvml> Listener<'nvml> {
    /// Registers those of `types` that each GPU supports. GPUs that support none of them are left out.
    pub(super) fn register(nvml: &'nvml Nvml, types: u64) -> Result<Self, NvmlError> {
        // The wrapper frees the set with this symbol, and panics if it is missing.
        nvml_sym(nvml.lib().nvmlEventSetFree.as_ref())?;
        let set = nvml.create_event_set()?;
        let mut gpus = Vec::new();
        for index in 0..nvml.device_count()? {
            let Ok(gpu) = nvml.device_by_index(index) else {
                continue;
            };
            match register(&set, &gpu, types) {
                Ok(()) => gpus.push((index, gpu)),
                Err(error) => tracing::debug!(gpu = index, %error, "this GPU reports no events"),
            }
        }
        Ok(Self { nvml, set, gpus })
    }

    /// Waits for the next event. An event of an unknown GPU counts for GPU 0.
    pub(super) fn wait(&self, timeout_ms: u32) -> Result<RawEvent, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        // SAFETY: a pointer and numbers; all zeroes is a value of each.
        let mut event: nvmlEventData_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set lives, and the event is ours.
        nvml_try(unsafe { call(self.set.handle(), &mut event, timeout_ms) })?;
        // SAFETY: the handles are compared, never used.
        let known = self
            .gpus
            .iter()
            .find(|(_, gpu)| unsafe { gpu.handle() } == event.device);
        Ok(RawEvent {
            gpu: known.map_or(0, |(index, _)| *index),
            kind: event.eventType,
            data: event.eventData,
            instance: Some(event.gpuInstanceId).filter(|instance| *instance != NO_INSTANCE),
        })
    }
}

fn register(set: &EventSet<'_>, gpu: &Device<'_>, types: u64) -> Result<(), NvmlError> {
    let lib = gpu.nvml().lib();
    let mut supported = 0;
    // SAFETY: the handle lives, and the number is ours.
    let queried = nvml_sym(lib.nvmlDeviceGetSupportedEventTypes.as_ref())
        .and_then(|call| nvml_try(unsafe { call(gpu.handle(), &mut supported) }));
    // If the GPU does not report its types, try Xid errors: they have always been supported.
    let types = if queried.is_ok() { types & supported } else { XID };
    let call = nvml_sym(lib.nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: device and set live.
    nvml_try(unsafe { call(gpu.handle(), types, set.handle()) })
}
