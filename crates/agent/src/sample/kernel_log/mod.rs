//! Reads the kernel log, `/dev/kmsg`, for messages that the NVIDIA driver writes only there.
//!
//! ```text
//! Kmsg     opens without blocking, reads one record per call                    ┐
//! record   priority,sequence,microseconds,flags;text                             ├─▶ KernelMessage ──▶ sample::xid
//! nvrm     "NVRM: Xid (PCI:0000:05:00): 79, …" and similar lines: about GPUs     │
//! nvswitch "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, …": about switches ┘
//! ```

mod kmsg;
mod nvrm;
mod nvswitch;
mod record;

pub(crate) use kmsg::{KernelLog, Kmsg};
pub(crate) use nvrm::{XidDetails, XidMessage};
pub(crate) use nvswitch::SwitchError;

/// A message of the NVIDIA driver in one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KernelMessage {
    /// About a GPU.
    Gpu(XidMessage),
    /// About an NVSwitch.
    Switch(SwitchError),
}

/// The maximum length of the kept text after a number. The addresses of a page fault fit.
const WORDS_BYTES_MAX: usize = 240;

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(WORDS_BYTES_MAX)]
        .trim_end()
        .to_owned()
}
