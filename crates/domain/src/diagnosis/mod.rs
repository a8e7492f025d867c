//! What measurements mean: pure functions from measurements to findings.
//!
//! ```text
//! pools, positions, answers ──▶ analysis ──▶ hang, straggler, rare_stall ──▶ order ──▶ findings, scores (series `diagnosis_*`), questions
//! ```

pub mod analysis;
pub mod arrival;
pub mod finding;
pub mod input;
mod sentence;
