//! The rule table and what becomes of it: definitions as Prometheus writes them, alerts as they pend, fire and resolve.

pub mod alert;
pub mod definition;
pub mod shipped;
pub mod template;

pub use definition::{Group, Rule, RuleFile, RuleFileError};
