//! Small pieces that several pages use.

mod diagnosis;
mod format;
mod state;

pub(crate) use diagnosis::DiagnosisCard;
pub(crate) use format::{Unit, ago, clock, show};
pub(crate) use state::{severity_class, state_class};
