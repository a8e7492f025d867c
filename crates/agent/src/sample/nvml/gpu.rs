//! One GPU: reads it at each tick, stops when it is lost, and tries again later.

use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::series::Labels;
use domain::time::TimestampMs;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::burst::{COLUMNS, Row};
use super::burst_reader::BurstReader;
use super::fields::Numbering;
use super::inventory::GpuState;
use super::meter::Meter;
use super::processes::Naming;
use super::queries::{GpuLost, GpuQueries, is_driver_gone};
use super::readings::Readings;
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::Family;
use crate::uplink::Events;

/// The first wait before a lost GPU is tried again. A reset takes seconds.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// The longest wait before a lost GPU is tried again: a repair takes long anyway. See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Series that continue while the GPU does not answer: whether it answers, what it is, who used it, and its errors.
const CONTINUES_WHEN_LOST: [&str; 5] = [
    "gpu_up",
    "gpu_info",
    "gpu_assignment_info",
    "gpu_xid_errors_total",
    "gpu_xid_judged_total",
];

/// Returns true if the series stops when this GPU (or, with `None`, any GPU) stops answering.
pub(crate) fn ends_with_gpu(series: &Labels, gpu: Option<u32>) -> bool {
    let of_gpu = series
        .get("gpu")
        .is_some_and(|index| gpu.is_none_or(|gpu| index == gpu.to_string()));
    of_gpu
        && !series
            .metric_name()
            .is_some_and(|name| CONTINUES_WHEN_LOST.contains(&name))
}

/// The driver of all GPUs has gone.
pub(crate) struct DriverGone(pub(crate) NvmlError);

/// What a reading uses, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct GpuContext<'a> {
    pub(crate) nvml: &'a Nvml,
    pub(crate) numbering: Numbering,
    pub(crate) meter: &'a Meter,
    pub(crate) samples: &'a Samples,
    pub(crate) events: &'a Events,
}

/// One GPU of the machine, whether it answers or not.
pub(crate) struct Slot<'a> {
    index: u32,
    context: GpuContext<'a>,
    reading: Option<Readings<'a>>,
    burst_reader: BurstReader<'a>,
    up: Family,
    lost: Option<Lost>,
}

/// When a GPU was lost, and when it is tried again.
struct Lost {
    since: Instant,
    wait: Duration,
    retry_at: Instant,
}

impl<'a> Slot<'a> {
    /// Creates a slot. If `was_lost` is set, the GPU is not reported as lost again.
    pub(crate) fn new(index: u32, context: GpuContext<'a>, was_lost: bool) -> Self {
        let up = Family::new(vec![("gpu", index.to_string())]);
        let now = Instant::now();
        let lost = Lost {
            since: now,
            wait: RETRY_MIN,
            retry_at: now,
        };
        Self {
            index,
            context,
            reading: None,
            burst_reader: BurstReader::new(),
            up,
            lost: was_lost.then_some(lost),
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the data for the inventory.
    pub(crate) fn state(&self) -> GpuState<'_> {
        let reading = self.reading.as_ref();
        GpuState {
            index: self.index,
            device: reading.map(Readings::device),
            unanswered: reading.map(Readings::unanswered).unwrap_or_default(),
            instances: reading.map(Readings::instances).unwrap_or_default(),
        }
    }

    /// Returns how long the GPU has been lost.
    pub(crate) fn lost_for(&self) -> Option<Duration> {
        self.lost.as_ref().map(|lost| lost.since.elapsed())
    }

    /// Reads the values that are due.
    ///
    /// # Errors
    /// Returns an error if the driver is gone, not only this GPU.
    pub(crate) fn read(
        &mut self,
        tick: &Tick,
        detail: bool,
        naming: &mut Naming<'_>,
    ) -> Result<(), DriverGone> {
        if self
            .lost
            .as_ref()
            .is_some_and(|lost| Instant::now() < lost.retry_at)
        {
            self.put_up(tick, false);
            return Ok(());
        }
        match self.try_read(tick, detail, naming) {
            Ok(()) => self.record_answer(tick),
            Err(GpuLost(error)) if is_driver_gone(&error) => return Err(DriverGone(error)),
            Err(GpuLost(error)) => self.record_loss(tick, &error),
        }
        Ok(())
    }

    /// Reads a row for the burst. If the GPU does not answer, all values are NaN; the next tick reports the problem.
    pub(crate) fn read_burst(&mut self) -> Row {
        let reading = self.reading.as_mut();
        let row = reading.and_then(|reading| self.burst_reader.read(&mut reading.queries).ok());
        row.unwrap_or([f32::NAN; COLUMNS])
    }

    fn try_read(&mut self, tick: &Tick, detail: bool, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if self.reading.is_none() {
            let context = self.context;
            let device = context
                .meter
                .call(Some(self.index), || context.nvml.device_by_index(self.index));
            self.reading = Some(Readings::new(
                GpuQueries::new(self.index, device.map_err(GpuLost)?, context.meter),
                context.numbering,
                context.samples,
            ));
        }
        self.reading
            .as_mut()
            .map_or(Ok(()), |reading| reading.read(tick, detail, naming))
    }

    fn record_answer(&mut self, tick: &Tick) {
        if self.lost.take().is_some() {
            self.report(
                tick.at_ms,
                Severity::Info,
                "gpu_recovered",
                format!("GPU {} answers again", self.index),
            );
        }
        self.put_up(tick, true);
    }

    fn record_loss(&mut self, tick: &Tick, error: &NvmlError) {
        let (since, wait) = match &self.lost {
            Some(lost) => (lost.since, (lost.wait * 2).min(RETRY_MAX)),
            None => {
                let message = format!("GPU {} no longer answers: {error}", self.index);
                self.report(tick.at_ms, Severity::Critical, "gpu_lost", message);
                (Instant::now(), RETRY_MIN)
            }
        };
        self.reading = None;
        self.burst_reader = BurstReader::new();
        self.lost = Some(Lost {
            since,
            wait,
            retry_at: Instant::now() + wait,
        });
        self.put_up(tick, false);
        self.context
            .samples
            .end_where(tick.at_ms, |series| ends_with_gpu(series, Some(self.index)));
    }

    fn put_up(&mut self, tick: &Tick, up: bool) {
        self.up.at(self.context.samples, tick.at_ms).put("gpu_up", up);
    }

    fn report(&self, at_ms: TimestampMs, severity: Severity, kind: &str, message: String) {
        self.context.events.report(Event {
            gpu: Some(self.index),
            ..Event::new(at_ms, severity, kind, message)
        });
    }
}
