//! Feeds the analysers of [`domain::diagnosis`] with what is stored, and publishes what they find.
//!
//! ```text
//! telemetry: a batch is durable ─▶ Feed ─(bounded queue)─▶ task ─▶ assembly: readings of one rank and time → one Tick
//! Runs::tell ─▶ Attempts: who takes part ────────────────▶  │       twice per second: Analysis::advance
//! ranks' answers ◀─ questions ◀──────────────────────────── │ ─▶ series `diagnosis_*`, which rules read
//!                                                           └ ─▶ Findings, which the API shows
//! ```
//! Nothing here waits for the analysers: when the queue is full, readings are dropped and counted.

mod assembly;
mod attempts;
mod column;
mod feed;
mod findings;
mod questions;
mod scores;
mod task;

pub(crate) use self::attempts::Attempts;
pub(crate) use self::column::Column;
pub(crate) use self::feed::{FedColumn, FedFrame, FedQueue, Feed, feed};
pub(crate) use self::findings::Findings;
pub(crate) use self::task::{Analysts, run};
