//! Whether a plan goes into a GPU.

use schemars::JsonSchema;
use serde::Serialize;

/// Below this share of the GPU's memory left over, a plan is called tight. An estimate: the allocator keeps memory in blocks that do
/// not always fit what is asked for next, and a plan's own error is of that size.
const TIGHT_SHARE: u64 = 10;

/// A peak against a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fit {
    /// Memory of the GPU, bytes.
    pub gpu_memory_bytes: u64,
    /// What is left over, bytes; negative when that much is missing.
    pub headroom_bytes: i64,
    /// In a word.
    pub verdict: Verdict,
}

/// In a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At least a tenth is left over.
    Fits,
    /// It may: less than a tenth is left over.
    Tight,
    /// More is needed than there is.
    DoesNotFit,
}

impl Fit {
    /// Judges a peak.
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
    /// For a person.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::DoesNotFit => "no",
        }
    }
}
