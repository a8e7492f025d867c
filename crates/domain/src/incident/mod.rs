//! Diagnoses: an alert that fired, its culprit, the confidence in it, and what people did about it.
//!
//! ```text
//! labels, finding of an analyser ──▶ culprit, confidence ─┬▶ api::alerts::Diagnosis
//! entries (acknowledged, note, silence, action) ──▶ Handling ─┘
//! ```

pub mod action;
mod chart;
mod confidence;
mod context;
mod culprit;
mod entry;
mod id;
mod silence;

pub use chart::{THRESHOLD_PREFIX, charts};
pub use confidence::{Basis, Confidence, ConfidenceLevel, WitnessKind};
pub use context::{Context, finding_of};
pub use culprit::{CulpritKind, NamedCulprit};
pub use entry::{Entry, EntryKind, Handling, Mark, handling};
pub use id::{DiagnosisId, InvalidDiagnosisId};
pub use silence::{Silence, SilenceMatcher, SilenceState};
