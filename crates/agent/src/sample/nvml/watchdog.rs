//! Detects an NVML call that does not return, reports it, and reports when it returns.
//!
//! ```text
//! answering ──a call takes too long──▶ hung: gpu_up 0, lockstep_agent_nvml_up 0, event nvml_unresponsive
//!     ▲                                  │ at every tick again: gpu_up 0, lockstep_agent_nvml_up 0
//!     └───────another call, or none──────┘ event nvml_responsive
//! ```
//! The series of the other GPUs end as well: the same thread reads them, and their last values must not look current.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::time::TimestampMs;

use super::gpu::ends_with_gpu;
use super::meter::{Call, Meter};
use crate::sample::Samples;
use crate::sample::series::series;
use crate::uplink::Events;

/// The minimum time between two reports. A driver that is late with every call must cause one event, not hundreds.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Checks the meter once per second.
pub(crate) struct Watchdog {
    pub(crate) meter: Arc<Meter>,
    pub(crate) samples: Samples,
    pub(crate) events: Events,
    hung: Option<Call>,
    reported: Option<Instant>,
}

impl Watchdog {
    /// Creates a watchdog.
    pub(crate) fn new(meter: Arc<Meter>, samples: Samples, events: Events) -> Self {
        Self {
            meter,
            samples,
            events,
            hung: None,
            reported: None,
        }
    }

    /// Checks the meter once. `gpus` is the number of known GPUs.
    pub(crate) fn check(&mut self, at_ms: TimestampMs, gpus: u32) {
        let late = self.meter.under_way().filter(Call::is_late);
        if late != self.hung {
            if let (Some(hung), None) = (self.hung, late) {
                self.recovered(at_ms, hung);
            } else if let (None, Some(call)) = (self.hung, late) {
                self.stuck(at_ms, call);
            }
            self.hung = late;
        }
        if let Some(call) = self.hung {
            concerned(call, gpus).for_each(|gpu| self.put_down(at_ms, gpu));
        }
        if self.hung.is_some() || self.meter.is_open() {
            let up = if self.hung.is_some() { 0.0 } else { 1.0 };
            self.samples
                .push(&series("lockstep_agent_nvml_up", &[]), at_ms, up);
        }
    }

    fn put_down(&self, at_ms: TimestampMs, gpu: u32) {
        self.samples
            .push(&series("gpu_up", &[("gpu", &gpu.to_string())]), at_ms, 0.0);
    }

    fn stuck(&mut self, at_ms: TimestampMs, call: Call) {
        let up = |name: Option<&str>| name == Some("gpu_up");
        self.samples.end_where(at_ms, |series| {
            ends_with_gpu(series, None) || up(series.metric_name())
        });
        if self
            .reported
            .is_some_and(|reported| reported.elapsed() < REPORT_EVERY)
        {
            return;
        }
        self.reported = Some(Instant::now());
        let whom = call
            .gpu
            .map_or("The NVIDIA driver".to_owned(), |gpu| format!("GPU {gpu}"));
        let message = format!(
            "{whom} has not answered for {} s; no GPU of this node is read until it does",
            call.timeout.as_secs()
        );
        self.report(at_ms, Severity::Critical, "nvml_unresponsive", call.gpu, message);
    }

    fn recovered(&self, at_ms: TimestampMs, call: Call) {
        let message = format!("the NVIDIA driver answers again after {} s", call.age().as_secs());
        self.report(at_ms, Severity::Info, "nvml_responsive", call.gpu, message);
    }

    fn report(&self, at_ms: TimestampMs, severity: Severity, kind: &str, gpu: Option<u32>, message: String) {
        self.events.report(Event {
            gpu,
            ..Event::new(at_ms, severity, kind, message)
        });
    }
}

/// Returns the GPU that the call queries, or all GPUs if it is a call to the library as a whole.
fn concerned(call: Call, gpus: u32) -> impl Iterator<Item = u32> {
    let all = if call.gpu.is_none() { 0..gpus } else { 0..0 };
    call.gpu.into_iter().chain(all)
}
