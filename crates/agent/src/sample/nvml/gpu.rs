//! One GPU: read tick by tick, given up when it is lost, tried again later.

use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::series::Labels;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::asker::{Asker, GpuLost};
use super::meter::Meter;
use super::processes::Naming;
use super::readings::Readings;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;
use crate::uplink::Events;

/// How long a lost GPU is left alone before the first try, and at most: a reset takes seconds, a repair does not hurry.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Series that outlive the GPU's answers: whether it answers, what it is, who used it, and what it complained of.
const OUTLIVING: [&str; 4] = [
    "gpu_up",
    "gpu_info",
    "gpu_assignment_info",
    "gpu_xid_errors_total",
];

/// Whether a series stops when this GPU (or, with `None`, any GPU) stops answering.
pub(crate) fn ends_with_gpu(series: &Labels, gpu: Option<u32>) -> bool {
    let of_gpu = series
        .get("gpu")
        .is_some_and(|index| gpu.is_none_or(|gpu| index == gpu.to_string()));
    of_gpu && !series.metric_name().is_some_and(|name| OUTLIVING.contains(&name))
}

/// Where readings go, and what they are made with.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) nvml: &'a Nvml,
    pub(crate) meter: &'a Meter,
    pub(crate) samples: &'a Samples,
    pub(crate) events: &'a Events,
}

/// A place for a GPU, whether it answers or not.
pub(crate) struct Slot<'a> {
    index: u32,
    around: Surroundings<'a>,
    reading: Option<Readings<'a>>,
    up: Family,
    lost: Option<Lost>,
}

/// Since when a GPU is not asked, and when it is asked again.
struct Lost {
    wait: Duration,
    retry_at: Instant,
}

impl<'a> Slot<'a> {
    /// A slot that has not been asked anything.
    pub(crate) fn new(index: u32, around: Surroundings<'a>) -> Self {
        let up = Family::new(vec![("gpu", index.to_string())]);
        Self {
            index,
            around,
            reading: None,
            up,
            lost: None,
        }
    }

    /// The device, while it answers.
    pub(crate) fn device(&self) -> Option<&Device<'a>> {
        self.reading.as_ref().map(Readings::device)
    }

    /// Reads what is due.
    pub(crate) fn read(&mut self, tick: &Tick, naming: &mut Naming<'_>) {
        if self
            .lost
            .as_ref()
            .is_some_and(|lost| Instant::now() < lost.retry_at)
        {
            return self.put_up(tick, false);
        }
        match self.try_read(tick, naming) {
            Ok(()) => self.answered(tick),
            Err(GpuLost(error)) => self.gave_up(tick, &error),
        }
    }

    fn try_read(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if self.reading.is_none() {
            let around = self.around;
            let device = around
                .meter
                .call(Some(self.index), || around.nvml.device_by_index(self.index));
            self.reading = Some(Readings::new(
                Asker::new(self.index, device.map_err(GpuLost)?, around.meter),
                around.samples,
            ));
        }
        self.reading
            .as_mut()
            .map_or(Ok(()), |reading| reading.read(tick, naming))
    }

    fn answered(&mut self, tick: &Tick) {
        if self.lost.take().is_some() {
            self.report(
                tick,
                Severity::Info,
                "gpu_recovered",
                format!("GPU {} answers again", self.index),
            );
        }
        self.put_up(tick, true);
    }

    fn gave_up(&mut self, tick: &Tick, error: &NvmlError) {
        let wait = match &self.lost {
            Some(lost) => (lost.wait * 2).min(RETRY_MAX),
            None => {
                let message = format!("GPU {} does not answer any more: {error}", self.index);
                self.report(tick, Severity::Critical, "gpu_lost", message);
                RETRY_MIN
            }
        };
        self.reading = None;
        self.lost = Some(Lost {
            wait,
            retry_at: Instant::now() + wait,
        });
        self.put_up(tick, false);
        self.around
            .samples
            .end_where(tick.at_ms, |series| ends_with_gpu(series, Some(self.index)));
    }

    fn put_up(&mut self, tick: &Tick, up: bool) {
        self.up.at(self.around.samples, tick.at_ms).put("gpu_up", up);
    }

    fn report(&self, tick: &Tick, severity: Severity, kind: &str, message: String) {
        let (at_ms, gpu) = (tick.at_ms, Some(self.index));
        self.around.events.report(Event {
            at_ms,
            severity,
            kind: kind.into(),
            node: None,
            gpu,
            run: None,
            message,
        });
    }
}
