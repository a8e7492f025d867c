//! Xid errors, as the driver reports them, on a thread that waits for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml};

use super::raw;
use crate::sample::Samples;
use crate::sample::series::series;
use crate::uplink::Events;
use crate::uplink::link::now_ms;

/// How long one wait lasts; the thread ends within this time.
const WAIT_MS: u32 = 1_000;
/// How often counts are written again, so that they do not go stale between errors.
const REPEAT: Duration = Duration::from_secs(10);
/// Errors of applications rather than of hardware, as NVIDIA's device plugin has them.
const OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Ends the thread when dropped.
pub(super) struct Watch(Arc<AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread. Without it (no events on this system, no thread to be had) all else goes on.
pub(super) fn watch(nvml: Arc<Nvml>, samples: Samples, events: Events) -> Watch {
    let ended = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&ended);
    let body = move || {
        if let Err(error) = (Xids {
            samples,
            events,
            counts: HashMap::new(),
        })
        .run(&nvml, &ending)
        {
            tracing::warn!(%error, "Xid errors cannot be watched on this node");
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("xid".into())
        .stack_size(256 << 10)
        .spawn(body)
    {
        tracing::warn!(%error, "cannot start the thread that waits for Xid errors");
    }
    Watch(ended)
}

struct Xids {
    samples: Samples,
    events: Events,
    counts: HashMap<(u32, u64), f64>,
}

impl Xids {
    fn run(mut self, nvml: &Nvml, ended: &AtomicBool) -> Result<(), NvmlError> {
        let set = nvml.create_event_set()?;
        let count = nvml.device_count()?;
        let gpus: Vec<_> = (0..count)
            .filter_map(|index| Some((index, nvml.device_by_index(index).ok()?)))
            .collect();
        for (index, gpu) in &gpus {
            if let Err(error) = raw::register_xid(&set, gpu) {
                tracing::debug!(gpu = index, %error, "this GPU reports no Xid errors");
            }
        }
        let mut repeat_at = Instant::now() + REPEAT;
        while !ended.load(Ordering::Relaxed) {
            self.wait(&set, &gpus);
            if Instant::now() >= repeat_at {
                self.repeat();
                repeat_at = Instant::now() + REPEAT;
            }
        }
        Ok(())
    }

    fn wait(&mut self, set: &EventSet<'_>, gpus: &[(u32, Device<'_>)]) {
        match set.wait(WAIT_MS) {
            Ok(event) => {
                let gpu = gpus
                    .iter()
                    .find(|(_, gpu)| raw::is_same_device(gpu, &event.device));
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) => 999,
                    None => return,
                };
                self.seen(gpu.map_or(0, |(index, _)| *index), xid);
            }
            Err(NvmlError::Timeout) => {}
            // A lost GPU makes the wait fail at once, again and again.
            Err(_) => thread::sleep(Duration::from_millis(WAIT_MS.into())),
        }
    }

    fn seen(&mut self, gpu: u32, xid: u64) {
        let at_ms = now_ms();
        let count = self.counts.entry((gpu, xid)).or_default();
        if *count == 0.0 {
            // A counter that is born at one shows no increase.
            put(&self.samples, gpu, xid, at_ms - 1_000, 0.0);
        }
        *count += 1.0;
        put(&self.samples, gpu, xid, at_ms, *count);
        let severity = if OF_APPLICATIONS.contains(&xid) {
            Severity::Warning
        } else {
            Severity::Critical
        };
        let message = format!("GPU {gpu} reports Xid {xid}: {}", meaning(xid));
        let kind = "xid".to_owned();
        self.events.report(Event {
            at_ms,
            severity,
            kind,
            node: None,
            gpu: Some(gpu),
            run: None,
            message,
        });
    }

    fn repeat(&self) {
        let at_ms = now_ms();
        self.counts
            .iter()
            .for_each(|(&(gpu, xid), &count)| put(&self.samples, gpu, xid, at_ms, count));
    }
}

fn put(samples: &Samples, gpu: u32, xid: u64, at_ms: i64, count: f64) {
    let (gpu, xid) = (gpu.to_string(), xid.to_string());
    samples.push(
        &series("gpu_xid_errors_total", &[("gpu", &gpu), ("xid", &xid)]),
        at_ms,
        count,
    );
}

/// The common ones in words, after NVIDIA's Xid catalogue.
fn meaning(xid: u64) -> &'static str {
    match xid {
        13 => "an exception in the graphics engine, mostly an application error",
        31 => "a memory page fault, mostly an application error",
        43 => "an application's channel stopped after an error",
        45 => "cleanup after an application was stopped",
        48 => "a double-bit memory error that cannot be corrected",
        63 => "a row of device memory will be remapped at the next reset",
        64 => "a row of device memory could not be remapped",
        68 => "an exception in the video decoder",
        74 => "an NVLink error",
        79 => "the GPU has fallen off the bus",
        92 => "many single-bit memory errors",
        94 => "a memory error, contained to one application",
        95 => "a memory error that was not contained; reset the GPU",
        109 => "an application's context switch timed out",
        119 | 120 => "the GPU's system processor (GSP) does not respond",
        _ => "see NVIDIA's Xid catalogue",
    }
}
