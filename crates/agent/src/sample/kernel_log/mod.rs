//! The kernel's log, `/dev/kmsg`: what the NVIDIA driver says there and nowhere else.
//!
//! ```text
//! Tap      opens without blocking, reads one record a call      ┐
//! record   priority,sequence,microseconds,flags;text             ├─▶ Spoken ──▶ sample::xid
//! nvrm     "NVRM: Xid (PCI:0000:05:00): 79, …" and its relatives ┘
//! ```

mod nvrm;
mod record;
mod tap;

pub(crate) use nvrm::Told;
pub(crate) use tap::{KernelLog, Tap};
