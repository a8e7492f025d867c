//! Reads collectives from two sources: nccl-probe inside the ranks, and NCCL RAS.
//!
//! ```text
//! rank: libnccl_probe.so ──datagram──▶ shim ──probe/N.jsonl──▶ Report ──▶ CommSeries ──▶ Samples
//!                                                                 └─ arrivals ──▶ domain::diagnosis::arrival ─┘
//! localhost:28028 ◀──once per minute, only on a run's first node── ras ──▶ Samples
//! ```
//! The plugin shares no code with this side. Its tests write the datagrams in `crates/nccl-probe/testdata/`, and the tests here read them.

pub(crate) mod plugin;
pub(crate) mod ras;

mod report;
mod series;
mod watch;

pub(crate) use report::Report;
pub(crate) use series::NcclSeries;
pub(crate) use watch::{Plan, Watch};
