//! Rules: definitions in Prometheus' format, recorded series, and alerts with their states pending, firing and resolved.
//!
//! ```text
//! text ─ file ─▶ RuleFile ─┬─ recording: samples of the expression ─ record ─▶ series under the rule's name
//!                          └─ alerting:  samples ─ instance (templates) ─▶ alert::step ─┬─▶ changes, for people
//!                                                                                       └─ alert_series ─▶ ALERTS, ALERTS_FOR_STATE
//! ```

pub mod definition;
mod file;
pub mod schedule;

pub mod alert;
pub mod alert_series;
pub mod instance;
pub mod record;

pub mod evidence;
pub mod template;

pub mod shipped;

pub use definition::{Group, Kind, Rule, RuleFile};
pub use file::{FILE_BYTES_MAX, Mistake, RuleFileError};
