//! The driver's sample rings: recent utilization, power and clocks at a higher resolution than one reading.

use super::gpu::Gpu;
use super::power::Clock;
use super::status::Status;

/// The number of samples in the ring, which therefore covers ten seconds.
pub(crate) const RING: usize = 72;
const PERIOD_S: f64 = 10.0 / RING as f64;
/// How often the utilization of processes is sampled, in seconds.
const PROCESS_PERIOD_S: f64 = 1.0;

/// A sample and its time, in seconds since the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub t: f64,
    pub value: u32,
}

/// Returns the samples of ring `kind` (`nvmlSamplingType_t`) taken after `seen`, oldest first.
pub(crate) fn since(gpu: &Gpu, kind: u32, seen: f64, now: f64) -> Result<Vec<Sample>, Status> {
    if is_utilization(kind) && gpu.instances(now).is_some() {
        return Err(Status::NotSupported);
    }
    if is_utilization(kind) && !gpu.job.is_training(now) {
        // The ring of an idle GPU has no new samples.
        return Err(Status::NotFound);
    }
    let newest = (now / PERIOD_S).floor();
    let taken = (0..RING)
        .rev()
        .map(|back| (newest - back as f64) * PERIOD_S)
        .filter(|t| *t > seen);
    let samples: Vec<Sample> = taken
        .map(|t| {
            Ok(Sample {
                t,
                value: value(gpu, kind, t)?,
            })
        })
        .collect::<Result<_, Status>>()?;
    if samples.is_empty() {
        Err(Status::NotFound)
    } else {
        Ok(samples)
    }
}

/// Returns when the utilization of processes was last sampled.
pub(crate) fn processes_sampled_at(now: f64) -> f64 {
    (now / PROCESS_PERIOD_S).floor() * PROCESS_PERIOD_S
}

fn is_utilization(kind: u32) -> bool {
    matches!(kind, 1..=4 | 8 | 9)
}

fn value(gpu: &Gpu, kind: u32, t: f64) -> Result<u32, Status> {
    Ok(match kind {
        0 => gpu.power_mw(t, PERIOD_S),
        1 => gpu.utilization(t),
        2 => gpu.memory_utilization(t),
        3 | 4 | 8 | 9 => 0,
        5 => gpu.clock_mhz(Clock::Sm, t),
        6 => gpu.clock_mhz(Clock::Memory, t),
        7 => return Err(Status::NotSupported),
        _ => return Err(Status::InvalidArgument),
    })
}
