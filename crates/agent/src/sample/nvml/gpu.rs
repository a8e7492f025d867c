//! One GPU: read tick by tick, given up when it is lost, tried again later.

use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::series::Labels;
use domain::time::TimestampMs;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::asker::{Asker, GpuLost, is_of_driver};
use super::beat::Beat;
use super::burst::{COLUMNS, Row};
use super::fields::Numbering;
use super::inventory::Place;
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
const OUTLIVING: [&str; 5] = [
    "gpu_up",
    "gpu_info",
    "gpu_assignment_info",
    "gpu_xid_errors_total",
    "gpu_xid_judged_total",
];

/// Whether a series stops when this GPU (or, with `None`, any GPU) stops answering.
pub(crate) fn ends_with_gpu(series: &Labels, gpu: Option<u32>) -> bool {
    let of_gpu = series
        .get("gpu")
        .is_some_and(|index| gpu.is_none_or(|gpu| index == gpu.to_string()));
    of_gpu && !series.metric_name().is_some_and(|name| OUTLIVING.contains(&name))
}

/// The driver under all GPUs has gone.
pub(crate) struct DriverGone(pub(crate) NvmlError);

/// Where readings go, and what they are made with.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) nvml: &'a Nvml,
    pub(crate) numbering: Numbering,
    pub(crate) meter: &'a Meter,
    pub(crate) samples: &'a Samples,
    pub(crate) events: &'a Events,
}

/// A place for a GPU, whether it answers or not.
pub(crate) struct Slot<'a> {
    index: u32,
    around: Surroundings<'a>,
    reading: Option<Readings<'a>>,
    beat: Beat<'a>,
    up: Family,
    lost: Option<Lost>,
}

/// Since when a GPU is not asked, and when it is asked again.
struct Lost {
    since: Instant,
    wait: Duration,
    retry_at: Instant,
}

impl<'a> Slot<'a> {
    /// A slot that has not been asked anything; one whose GPU was lost before is not lost anew.
    pub(crate) fn new(index: u32, around: Surroundings<'a>, was_lost: bool) -> Self {
        let up = Family::new(vec![("gpu", index.to_string())]);
        let now = Instant::now();
        let lost = Lost {
            since: now,
            wait: RETRY_MIN,
            retry_at: now,
        };
        Self {
            index,
            around,
            reading: None,
            beat: Beat::new(),
            up,
            lost: was_lost.then_some(lost),
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// What the inventory needs to know.
    pub(crate) fn place(&self) -> Place<'_> {
        let reading = self.reading.as_ref();
        Place {
            index: self.index,
            device: reading.map(Readings::device),
            unanswered: reading.map(Readings::unanswered).unwrap_or_default(),
            instances: reading.map(Readings::instances).unwrap_or_default(),
        }
    }

    /// For how long the GPU has been lost.
    pub(crate) fn lost_for(&self) -> Option<Duration> {
        self.lost.as_ref().map(|lost| lost.since.elapsed())
    }

    /// Reads what is due.
    ///
    /// # Errors
    /// When it is not this GPU that is gone, but the driver.
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
            Ok(()) => self.answered(tick),
            Err(GpuLost(error)) if is_of_driver(&error) => return Err(DriverGone(error)),
            Err(GpuLost(error)) => self.gave_up(tick, &error),
        }
        Ok(())
    }

    /// Reads a row of the burst; an empty one of a GPU that does not answer. What is wrong with it shows in the next tick.
    pub(crate) fn beat(&mut self) -> Row {
        let reading = self.reading.as_mut();
        let row = reading.and_then(|reading| self.beat.read(&mut reading.asker).ok());
        row.unwrap_or([f32::NAN; COLUMNS])
    }

    fn try_read(&mut self, tick: &Tick, detail: bool, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if self.reading.is_none() {
            let around = self.around;
            let device = around
                .meter
                .call(Some(self.index), || around.nvml.device_by_index(self.index));
            self.reading = Some(Readings::new(
                Asker::new(self.index, device.map_err(GpuLost)?, around.meter),
                around.numbering,
                around.samples,
            ));
        }
        self.reading
            .as_mut()
            .map_or(Ok(()), |reading| reading.read(tick, detail, naming))
    }

    fn answered(&mut self, tick: &Tick) {
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

    fn gave_up(&mut self, tick: &Tick, error: &NvmlError) {
        let (since, wait) = match &self.lost {
            Some(lost) => (lost.since, (lost.wait * 2).min(RETRY_MAX)),
            None => {
                let message = format!("GPU {} does not answer any more: {error}", self.index);
                self.report(tick.at_ms, Severity::Critical, "gpu_lost", message);
                (Instant::now(), RETRY_MIN)
            }
        };
        self.reading = None;
        self.beat = Beat::new();
        self.lost = Some(Lost {
            since,
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

    fn report(&self, at_ms: TimestampMs, severity: Severity, kind: &str, message: String) {
        self.around.events.report(Event {
            at_ms,
            severity,
            kind: kind.into(),
            node: None,
            gpu: Some(self.index),
            run: None,
            message,
        });
    }
}
