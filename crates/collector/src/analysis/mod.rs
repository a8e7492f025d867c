//! Feeds the analysers of [`domain::diagnosis`] with stored values, and publishes their findings.
//!
//! ```text
//! telemetry: a batch is durable ─▶ Feed ─(bounded queue)─▶ task ─▶ assembly: values of one rank and time → one Measurement
//! Runs::publish ─▶ Attempts: who takes part ─────────────▶  │       twice per second: Analysis::advance
//! ranks' answers ◀─ requests ◀───────────────────────────── │ ─▶ series `diagnosis_*`, which rules read
//!                                                           └ ─▶ Findings, which the API shows
//! ```
//! Nothing here waits for the analysers: if the queue is full, values are dropped and counted.

mod active_attempt;
mod alone_before;
mod assembly;
mod attempts;
mod column;
mod feed;
mod findings;
mod hangs_before;
mod rank_requests;
mod scores;
mod task;

pub(crate) use self::attempts::Attempts;
pub(crate) use self::column::Column;
pub(crate) use self::feed::{FedColumn, FedFrame, FedQueue, Feed, feed};
pub(crate) use self::findings::Findings;
pub(crate) use self::hangs_before::hangs_before;
pub(crate) use self::task::{AnalysisParts, run};
