//! Small components that several pages use.

mod canvas;
mod copy;
mod diagnosis;
mod diagnosis_link;
mod dialog;
mod focus;
mod format;
mod heading;
mod language_choice;
mod memory;
mod order;
mod pending_request;
mod shade;
mod state;
mod time;
mod unknown;
mod when;
mod zone;

pub(crate) use canvas::canvas_in;
pub(crate) use copy::CopyLink;
pub(crate) use diagnosis::{DiagnosisCard, MeasuredValues};
pub(crate) use diagnosis_link::diagnosis_href;
pub(crate) use dialog::{Dialog, Modal, choice};
pub(crate) use focus::focus;
pub(crate) use format::{bytes, chart_unit, fixed, number, show};
pub(crate) use heading::{Heading, Title};
pub(crate) use language_choice::LanguageChoice;
pub(crate) use memory::{keep, recall};
pub(crate) use order::{highest_first, quantile, sorted};
pub(crate) use pending_request::PendingRequest;
pub(crate) use shade::{UNMEASURED, shade};
pub(crate) use state::{StateBadge, alert_badge, severity_class, severity_word};
pub(crate) use time::{Ago, clock};
pub(crate) use unknown::UnknownAttempts;
pub(crate) use when::{ErrorMessage, When, dynamic_view, effect, empty_view, text};
pub(crate) use zone::{UTC, Zone, offset};
