//! Small pieces that several pages use.

mod diagnosis;
mod format;
mod heading;
mod state;
mod time;
mod when;

pub(crate) use diagnosis::DiagnosisCard;
pub(crate) use format::{Unit, show};
pub(crate) use heading::{Heading, Title};
pub(crate) use state::{StateBadge, alert_badge, severity_class, severity_word};
pub(crate) use time::{Ago, clock};
pub(crate) use when::{When, text};
