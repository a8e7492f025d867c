//! What measurements mean: pure functions from measurements to findings.
//!
//! ```text
//! pools, positions, answers ──▶ analysis ──▶ hang, straggler, rare_stall, uneven, loss_trend ──▶ order ──▶ findings, scores (series `diagnosis_*`), questions
//! ```

pub mod analysis;
pub mod arrival;
mod causes;
pub mod exchange;
pub mod finding;
mod found;
mod hang;
pub mod input;
mod loss_trend;
mod members;
mod order;
mod rare_stall;
mod resources;
mod seat;
mod sentence;
mod spread;
mod straggler;
#[cfg(test)]
mod tests;
mod uneven;
mod wait_graph;
mod window;
