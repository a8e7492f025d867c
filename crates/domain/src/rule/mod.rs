//! The rule table and what becomes of it: definitions as Prometheus writes them, recorded series, alerts as they pend, fire and
//! resolve.
//!
//! ```text
//! text ─ file ─▶ RuleFile ─┬─ recording: samples of the expression ─ record ─▶ series under the rule's name
//!                          └─ alerting:  samples ─ instance (templates) ─▶ alert::step ─┬─▶ changes, for people
//!                                                                                       └─ trace ─▶ ALERTS, ALERTS_FOR_STATE
//! ```

pub mod definition;
mod file;
pub mod schedule;

pub mod alert;
pub mod instance;
pub mod record;
pub mod trace;

pub mod evidence;
pub mod template;

pub mod shipped;

pub use definition::{Group, Kind, Rule, RuleFile};
pub use file::{FILE_BYTES_MAX, Mistake, RuleFileError};
