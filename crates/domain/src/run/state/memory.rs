//! The memory of a rank when an allocation failed, and the reason for the failure.
//!
//! ```text
//! held by others | allocated: in use by tensors | unallocated: torch's, in blocks | free
//!                |<------------------ reserved by torch ------------------->|
//! ```
//! Before an allocation fails, torch frees every block that is completely unused. So if more memory is unallocated than was requested, it
//! is in blocks that are too small. The sizes come from a training process and are only as reliable as that process.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::DisplayBytes;

/// Memory at the moment of a failed allocation. Values that are not known are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Memory {
    /// `cuda:0`, or `cpu` for the memory of the host.
    pub device: String,
    /// Size of the failed allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// Memory in use by tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Memory that torch reserved but does not use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unallocated_bytes: Option<u64>,
    /// The part of `unallocated_bytes` that is left over in blocks that are partly in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive_split_bytes: Option<u64>,
    /// Size of the largest unused block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_free_bytes: Option<u64>,
    /// All memory of this process; on the host, its resident memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    /// Memory that no process holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Total memory of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The highest amount that was in use at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_allocated_bytes: Option<u64>,
    /// The highest amount that torch reserved at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_reserved_bytes: Option<u64>,
    /// How often torch had emptied its cache before, to satisfy an allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// The tensor sizes that use the most memory: pairs of bytes per tensor and number of tensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(u64, u64)>,
}

/// Why there was too little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// There was enough memory, but in blocks that were too small.
    Fragmented,
    /// Other processes hold the missing memory.
    Shared,
    /// The allocation alone is larger than the memory of the device.
    TooLarge,
    /// The model, its optimizer and the batch need more than there is.
    Full,
}

impl Memory {
    /// Returns true if this is the memory of the host, not of a GPU.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.device == "cpu"
    }

    /// Returns why there was too little memory; `None` if the sizes needed for that are not known.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        let requested = self.requested_bytes?;
        if self.total_bytes.is_some_and(|total| requested > total) {
            return Some(Shortage::TooLarge);
        }
        if self.unallocated_bytes.is_some_and(|rest| rest >= requested) {
            return Some(Shortage::Fragmented);
        }
        if self.others_bytes().is_some_and(|others| others >= requested) {
            return Some(Shortage::Shared);
        }
        self.allocated_bytes.or(self.process_bytes)?;
        Some(Shortage::Full)
    }

    fn others_bytes(&self) -> Option<u64> {
        self.total_bytes?
            .checked_sub(self.free_bytes?)?
            .checked_sub(self.process_bytes?)
    }

    fn advice(&self, shortage: Shortage) -> &'static str {
        match (shortage, self.is_host()) {
            (Shortage::Fragmented, _) => {
                "set cuda_alloc_conf to expandable_segments:True, or keep the shapes of batches constant"
            }
            (Shortage::Shared, false) => "end the other processes on this GPU, or take another",
            (Shortage::Full, false) => {
                "take a smaller micro_batch, turn on activation_checkpointing, or shard the model over more ranks"
            }
            (Shortage::TooLarge, false) => {
                "look at the shape of that tensor: no GPU of this kind can hold it"
            }
            (Shortage::TooLarge, true) => "look at the shape of that tensor: this machine cannot hold it",
            (Shortage::Shared | Shortage::Full, true) => {
                "take a smaller batch or fewer num_workers, or a machine with more memory"
            }
        }
    }
}

/// A text like `it asked for 2.0 GiB while 5.0 GiB lay unused, in pieces that were too small (the largest 512 MiB): …`; empty if nothing is
/// known.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(requested), Some(shortage)) = (self.requested_bytes, self.shortage()) else {
            return Ok(());
        };
        write!(f, "it asked for {}", DisplayBytes(requested))?;
        match shortage {
            Shortage::Fragmented => {
                let rest = DisplayBytes(self.unallocated_bytes.unwrap_or_default());
                write!(f, " while {rest} lay unused, in pieces that were too small")?;
                if let Some(largest) = self.largest_free_bytes.filter(|largest| *largest < requested) {
                    write!(f, " (the largest {})", DisplayBytes(largest))?;
                }
                f.write_str(": fragmented memory")?;
            }
            Shortage::Shared => {
                let others = DisplayBytes(self.others_bytes().unwrap_or_default());
                write!(f, " while other processes held {others} of {}", self.device)?;
            }
            Shortage::TooLarge => {
                let total = DisplayBytes(self.total_bytes.unwrap_or_default());
                write!(f, " and {} has {total}", self.place())?;
            }
            Shortage::Full => {
                let used = DisplayBytes(self.allocated_bytes.or(self.process_bytes).unwrap_or_default());
                write!(f, " on top of the {used} it used")?;
                if let Some(total) = self.total_bytes {
                    write!(f, ", and {} has {}", self.place(), DisplayBytes(total))?;
                }
            }
        }
        write!(f, "; {}", self.advice(shortage))
    }
}

impl Memory {
    fn place(&self) -> &str {
        if self.is_host() { "the host" } else { &self.device }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu() -> Memory {
        Memory {
            device: "cuda:0".into(),
            requested_bytes: Some(2 * GIB),
            allocated_bytes: Some(70 * GIB),
            unallocated_bytes: Some(GIB),
            process_bytes: Some(72 * GIB),
            free_bytes: Some(GIB),
            total_bytes: Some(74 * GIB),
            ..Memory::default()
        }
    }

    #[test]
    fn fragments_neighbours_and_a_batch_too_large_are_distinguished() {
        let fragmented = Memory {
            allocated_bytes: Some(60 * GIB),
            unallocated_bytes: Some(11 * GIB),
            largest_free_bytes: Some(GIB / 2),
            ..gpu()
        };
        let shared = Memory {
            process_bytes: Some(40 * GIB),
            allocated_bytes: Some(38 * GIB),
            ..gpu()
        };
        let too_large = Memory {
            requested_bytes: Some(75 * GIB),
            ..gpu()
        };
        let host = Memory {
            device: "cpu".into(),
            requested_bytes: Some(8 * GIB),
            process_bytes: Some(30 * GIB),
            free_bytes: Some(GIB),
            total_bytes: Some(32 * GIB),
            ..Memory::default()
        };
        let cases = [
            (
                gpu(),
                Shortage::Full,
                "it asked for 2.0 GiB on top of the 70.0 GiB it used, and cuda:0 has 74.0 GiB; take a smaller micro_batch",
            ),
            (
                fragmented,
                Shortage::Fragmented,
                "it asked for 2.0 GiB while 11.0 GiB lay unused, in pieces that were too small (the largest 512 MiB): fragmented memory; set cuda_alloc_conf",
            ),
            (
                shared,
                Shortage::Shared,
                "it asked for 2.0 GiB while other processes held 33.0 GiB of cuda:0; end the other processes",
            ),
            (
                too_large,
                Shortage::TooLarge,
                "it asked for 75.0 GiB and cuda:0 has 74.0 GiB; look at the shape",
            ),
            (
                host,
                Shortage::Full,
                "it asked for 8.0 GiB on top of the 30.0 GiB it used, and the host has 32.0 GiB; take a smaller batch",
            ),
        ];
        for (memory, shortage, beginning) in cases {
            assert_eq!(memory.shortage(), Some(shortage), "{memory:?}");
            let said = memory.to_string();
            assert!(said.starts_with(beginning), "{said}");
        }
    }

    #[test]
    fn unknown_values_are_not_mentioned() {
        let unknown = Memory {
            device: "cuda:1".into(),
            total_bytes: Some(GIB),
            ..Memory::default()
        };
        assert_eq!((unknown.shortage(), unknown.to_string().as_str()), (None, ""));
        let nonsense = Memory {
            free_bytes: Some(u64::MAX),
            process_bytes: Some(u64::MAX),
            ..gpu()
        };
        assert_eq!(nonsense.shortage(), Some(Shortage::Full));
    }
}
