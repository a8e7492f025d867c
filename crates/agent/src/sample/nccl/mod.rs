//! Collectives: what nccl-probe tells from inside a rank, and what NCCL RAS tells whoever asks.
//!
//! ```text
//! rank: libnccl_probe.so ──datagram──▶ shim ──probe/N.jsonl──▶ Report ──▶ CommSeries ──▶ Samples
//!                                                                 └─ arrivals ──▶ domain::diagnosis::arrival ─┘
//! localhost:28028 ◀──once a minute, first node of a run only── ras ──▶ Samples
//! ```
//! The plugin shares no code with this side: the datagrams in `crates/nccl-probe/testdata/` are made by its tests and read by these.

pub(crate) mod plugin;
pub(crate) mod ras;

mod report;
mod series;
mod watch;

pub(crate) use report::Report;
pub(crate) use series::NcclSeries;
pub(crate) use watch::{Plan, Watch};
