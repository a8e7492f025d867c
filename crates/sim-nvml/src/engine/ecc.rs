//! Memory errors, and the rows they cost.

use std::ops::{Add, Sub};

use super::fault::{Fault, Place, Trouble};
use super::gpu::Gpu;

/// Errors, by whether they could be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Errors {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// Which errors count: those since the driver was loaded, or all that the board remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    Volatile,
    Aggregate,
}

/// Corrected errors a second in a storm.
const DRAM_RATE: f64 = 40.0;
const SRAM_RATE: f64 = 2.0;
/// In SRAM the first uncorrectable error is followed by others, this many seconds apart.
const SRAM_NEXT_S: f64 = 5.0;
/// So many uncorrectable errors in SRAM are too many.
const SRAM_THRESHOLD: u64 = 4;

impl Gpu {
    /// Errors everywhere.
    pub(crate) fn ecc(&self, span: Span, t: f64) -> Errors {
        self.ecc_in(Place::Dram, span, t) + self.ecc_in(Place::Sram, span, t)
    }

    pub(crate) fn ecc_in(&self, place: Place, span: Span, t: f64) -> Errors {
        let count = |t: f64| {
            let storms = self
                .faults
                .iter()
                .filter(|fault| fault.trouble == Trouble::Ecc(place));
            storms
                .map(|storm| errors(*storm, place, t))
                .fold(Errors::default(), Add::add)
        };
        match span {
            Span::Aggregate => count(t),
            Span::Volatile => self.since_load(count, t),
        }
    }

    /// Whether SRAM has had more uncorrectable errors than it should.
    pub(crate) fn sram_threshold_exceeded(&self, t: f64) -> bool {
        self.ecc_in(Place::Sram, Span::Aggregate, t).uncorrected >= SRAM_THRESHOLD
    }

    /// Rows of memory replaced by spare ones because of an uncorrectable error.
    pub(crate) fn rows_remapped(&self, t: f64) -> u32 {
        self.ecc_in(Place::Dram, Span::Aggregate, t).uncorrected as u32
    }

    /// Whether a row waits for the next reset to be replaced: reloading the driver resets.
    pub(crate) fn is_remap_pending(&self, t: f64) -> bool {
        self.ecc_in(Place::Dram, Span::Volatile, t).uncorrected > 0
    }

    /// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`: 0 none, 1 reset the GPU.
    pub(crate) fn recovery_action(&self, t: f64) -> u32 {
        u32::from(self.ecc(Span::Volatile, t).uncorrected > 0)
    }
}

fn errors(storm: Fault, place: Place, t: f64) -> Errors {
    let worst = storm.uncorrectable_at();
    let passed = storm.window.passed(t);
    match place {
        Place::Dram => Errors {
            corrected: (DRAM_RATE * passed) as u64,
            uncorrected: u64::from(t >= worst),
        },
        Place::Sram if t < worst => Errors {
            corrected: (SRAM_RATE * passed) as u64,
            uncorrected: 0,
        },
        Place::Sram => Errors {
            corrected: (SRAM_RATE * passed) as u64,
            uncorrected: 1 + ((t.min(storm.window.end) - worst) / SRAM_NEXT_S) as u64,
        },
    }
}

impl Add for Errors {
    type Output = Errors;

    fn add(self, other: Errors) -> Errors {
        Errors {
            corrected: self.corrected + other.corrected,
            uncorrected: self.uncorrected + other.uncorrected,
        }
    }
}

/// What has been added since an earlier count.
impl Sub for Errors {
    type Output = Errors;

    fn sub(self, earlier: Errors) -> Errors {
        Errors {
            corrected: self.corrected - earlier.corrected,
            uncorrected: self.uncorrected - earlier.uncorrected,
        }
    }
}
