//! Xid errors: what NVIDIA publishes about each, and an assessment of each error in its context.
//!
//! ```text
//! data/xid.tsv      number ─▶ family, NVIDIA's immediate and investigatory action            catalogue
//! data/nvlink5.tsv  (xid 144–150, unit, sub-code, status) ─▶ action, severity                nvlink
//!
//! number + what the line says + recurrence + companions + state of the job ─▶ Assessment       assess
//! ```
//! The number alone is not enough: 48 with 94 affects one program, and 48 with 95 the whole GPU; 45 follows any error that ended a program;
//! 13 and 31 are bugs of programs. NVIDIA's action decides *what to do*; the context decides how urgent it is.

mod action;
mod assess;
mod catalogue;
mod nvlink;

pub use action::{Action, Recovery};
pub use assess::{Assessment, Cause, Job, LogDetails, Occurrence, assess};
pub use catalogue::{CATALOGUE_XID_MAX, Entry, Family, entries, find};
pub use nvlink::{NvlinkFault, decode as decode_nvlink};
