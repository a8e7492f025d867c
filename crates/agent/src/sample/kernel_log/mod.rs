//! The kernel's log, `/dev/kmsg`: what the NVIDIA driver says there and nowhere else.
//!
//! ```text
//! Tap      opens without blocking, reads one record a call                      ┐
//! record   priority,sequence,microseconds,flags;text                             ├─▶ Heard ──▶ sample::xid
//! nvrm     "NVRM: Xid (PCI:0000:05:00): 79, …" and its relatives: of GPUs        │
//! nvswitch "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, …": of switches    ┘
//! ```

mod nvrm;
mod nvswitch;
mod record;
mod tap;

pub(crate) use nvrm::{Spoken, Told};
pub(crate) use nvswitch::SwitchError;
pub(crate) use tap::{KernelLog, Tap};

/// What the NVIDIA driver says in one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Of a GPU.
    Gpu(Spoken),
    /// Of an NVSwitch.
    Switch(SwitchError),
}

/// What follows a number is kept this far: a page fault's addresses fit.
const WORDS_BYTES_MAX: usize = 240;

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(WORDS_BYTES_MAX)]
        .trim_end()
        .to_owned()
}
