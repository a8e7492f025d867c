//! The address of a diagnosis.

use domain::api::alerts::Diagnosis;

/// Returns the address of the page that shows a diagnosis with its evidence.
pub(crate) fn diagnosis_href(diagnosis: &Diagnosis) -> String {
    format!("/diagnoses/{}", diagnosis.id)
}
