//! Memory errors, and the remapped rows that they cause.

use std::ops::{Add, Sub};

use super::fault::{Fault, FaultKind, MemoryKind};
use super::gpu::Gpu;

/// Error counts, by whether the errors could be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Errors {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// Which errors count: those since the driver was loaded, or all that the board has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    Volatile,
    Aggregate,
}

/// Corrected errors per second during a storm.
const DRAM_RATE: f64 = 40.0;
const SRAM_RATE: f64 = 2.0;
/// In SRAM, more uncorrectable errors follow the first one, at this interval in seconds.
const SRAM_NEXT_S: f64 = 5.0;
/// The number of uncorrectable errors in SRAM that exceeds the threshold.
const SRAM_THRESHOLD: u64 = 4;

impl Gpu {
    /// Returns the errors in DRAM and SRAM.
    pub(crate) fn ecc(&self, span: Span, t: f64) -> Errors {
        self.ecc_in(MemoryKind::Dram, span, t) + self.ecc_in(MemoryKind::Sram, span, t)
    }

    pub(crate) fn ecc_in(&self, memory: MemoryKind, span: Span, t: f64) -> Errors {
        let count = |t: f64| {
            let storms = self
                .faults
                .iter()
                .filter(|fault| fault.kind == FaultKind::Ecc(memory));
            storms
                .map(|storm| errors(*storm, memory, t))
                .fold(Errors::default(), Add::add)
        };
        match span {
            Span::Aggregate => count(t),
            Span::Volatile => self.since_load(count, t),
        }
    }

    /// Returns true if SRAM has had too many uncorrectable errors.
    pub(crate) fn sram_threshold_exceeded(&self, t: f64) -> bool {
        self.ecc_in(MemoryKind::Sram, Span::Aggregate, t).uncorrected >= SRAM_THRESHOLD
    }

    /// Returns the number of memory rows that were replaced by spare ones because of an uncorrectable error.
    pub(crate) fn rows_remapped(&self, t: f64) -> u32 {
        self.ecc_in(MemoryKind::Dram, Span::Aggregate, t).uncorrected as u32
    }

    /// Returns true if a row will be replaced at the next reset. Reloading the driver is a reset.
    pub(crate) fn is_remap_pending(&self, t: f64) -> bool {
        self.ecc_in(MemoryKind::Dram, Span::Volatile, t).uncorrected > 0
    }

    /// Returns `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`: 0 none, 1 reset the GPU.
    pub(crate) fn recovery_action(&self, t: f64) -> u32 {
        u32::from(self.ecc(Span::Volatile, t).uncorrected > 0)
    }
}

fn errors(storm: Fault, memory: MemoryKind, t: f64) -> Errors {
    let worst = storm.uncorrectable_at();
    let passed = storm.window.passed(t);
    let (rate, uncorrected) = match memory {
        MemoryKind::Dram => (DRAM_RATE, u64::from(t >= worst)),
        MemoryKind::Sram if t < worst => (SRAM_RATE, 0),
        MemoryKind::Sram => {
            let since_s = t.min(storm.window.end) - worst;
            (SRAM_RATE, 1 + (since_s / SRAM_NEXT_S) as u64)
        }
    };
    Errors {
        corrected: (rate * passed) as u64,
        uncorrected,
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

/// Returns the errors since an earlier count.
impl Sub for Errors {
    type Output = Errors;

    fn sub(self, earlier: Errors) -> Errors {
        Errors {
            corrected: self.corrected - earlier.corrected,
            uncorrected: self.uncorrected - earlier.uncorrected,
        }
    }
}
