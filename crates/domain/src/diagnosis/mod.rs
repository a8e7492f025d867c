//! Analysers: pure functions from measurements to findings.
//!
//! ```text
//! pools, positions, answers ──▶ analysis ──▶ hang, straggler, rare_stall, uneven_learning, gradient_outlier, replicas, loss_trend ──▶ root_causes ──▶ findings, scores (series `diagnosis_*`), requests
//! ```

pub mod analysis;
pub mod arrival;
mod causes;
pub(crate) mod clock_reasons;
mod draft_finding;
pub mod finding;
mod gradient_outlier;
mod hang;
pub mod input;
mod loss_trend;
mod members;
pub mod messages;
mod rank_status;
mod rare_stall;
mod replicas;
mod resources;
mod root_causes;
mod sentence;
mod statistics;
mod straggler;
#[cfg(test)]
mod tests;
mod uneven_learning;
mod wait_graph;
mod window;
