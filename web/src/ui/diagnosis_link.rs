//! The address of a diagnosis.

use domain::api::alerts::Diagnosis;

/// The page that shows a diagnosis with its evidence: that of its run, else the list of alerts.
pub(crate) fn diagnosis_href(diagnosis: &Diagnosis) -> String {
    match diagnosis.alert.labels.get("run") {
        Some(run) => format!("/runs/{run}"),
        None => "/rules".to_owned(),
    }
}
