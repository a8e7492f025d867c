//! Xid errors: what NVIDIA publishes about each, and how bad one is where and when it happened.
//!
//! ```text
//! data/xid.tsv      number ─▶ family, NVIDIA's immediate and investigatory action            catalogue
//! data/nvlink5.tsv  (xid 144–150, unit, sub-code, status) ─▶ action, severity                nvlink
//!
//! number + what the line says + recurrence + companions + state of the job ─▶ Verdict       judge
//! ```
//! The number alone says little: 48 with 94 is one program's loss and 48 with 95 is the GPU's; 45 follows whatever ended a program;
//! 13 and 31 are bugs of programs. NVIDIA's bucket is the truth about *what to do*; how urgent that is comes from the context.

mod action;
mod catalogue;
mod judge;
mod nvlink;

pub use action::{Action, Recovery};
pub use catalogue::{CATALOGUE_XID_MAX, Entry, Family, entries, find};
pub use judge::{Cause, Job, Occurrence, Said, Verdict, judge};
pub use nvlink::{NvlinkFault, decode as decode_nvlink};
