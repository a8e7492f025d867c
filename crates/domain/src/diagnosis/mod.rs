//! What raw records mean: one file an analyser, each a pure function from records to findings.

pub mod arrival;
pub mod input;
