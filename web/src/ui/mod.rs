//! Small pieces that several pages use.

mod copy;
mod diagnosis;
mod diagnosis_link;
mod dialog;
mod format;
mod heading;
mod memory;
mod order;
mod state;
mod time;
mod unknown;
mod when;
mod wish;
mod zone;

pub(crate) use copy::CopyLink;
pub(crate) use diagnosis::{DiagnosisCard, MeasuredValues};
pub(crate) use diagnosis_link::diagnosis_href;
pub(crate) use dialog::{Dialog, Question, choice};
pub(crate) use format::{bytes, chart_unit, fixed, number, show};
pub(crate) use heading::{Heading, Title};
pub(crate) use memory::{keep, recall};
pub(crate) use order::{highest_first, quantile, sorted};
pub(crate) use state::{StateBadge, alert_badge, severity_class, severity_word};
pub(crate) use time::{Ago, clock};
pub(crate) use unknown::UnknownAttempts;
pub(crate) use when::{Trouble, When, changing, nothing, text, whenever};
pub(crate) use wish::Wish;
pub(crate) use zone::{UTC, Zone, offset};
