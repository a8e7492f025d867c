//! Whether a plan fits in the memory of a GPU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A plan is tight if less than one part in `TIGHT_SHARE` of the GPU's memory is free. An estimate: the allocator keeps memory in blocks
/// that do not always fit the next request, and the error of a plan is about that large.
const TIGHT_SHARE: u64 = 10;

/// Comparison of a peak with a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MemoryFit")]
pub struct Fit {
    /// Memory of the GPU in bytes.
    pub gpu_memory_bytes: u64,
    /// Memory that stays free, in bytes; negative if memory is missing.
    pub headroom_bytes: i64,
    /// Result of the comparison.
    pub verdict: Verdict,
}

/// Result of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MemoryVerdict")]
pub enum Verdict {
    /// At least a tenth of the memory stays free.
    Fits,
    /// The plan may fit: less than a tenth of the memory stays free.
    Tight,
    /// The plan needs more memory than the GPU has.
    DoesNotFit,
}

impl Fit {
    /// Compares a peak with a GPU's memory.
    #[must_use]
    pub fn of(peak_bytes: u64, gpu_memory_bytes: u64) -> Self {
        let headroom = i128::from(gpu_memory_bytes) - i128::from(peak_bytes);
        let verdict = match headroom {
            ..0 => Verdict::DoesNotFit,
            _ if headroom < i128::from(gpu_memory_bytes / TIGHT_SHARE) => Verdict::Tight,
            _ => Verdict::Fits,
        };
        let clamped = headroom.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self {
            gpu_memory_bytes,
            headroom_bytes: i64::try_from(clamped).expect("clamped"),
            verdict,
        }
    }
}

impl Verdict {
    /// Returns the text for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::DoesNotFit => "no",
        }
    }
}
