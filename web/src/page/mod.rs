//! The pages, one file each.

mod diagnoses;
mod diagnosis;
mod login;
mod new_run;
mod not_found;
mod overview;
mod rules;
mod run;

pub(crate) use diagnoses::DiagnosesPage;
pub(crate) use diagnosis::OneDiagnosis;
pub(crate) use login::Login;
pub(crate) use new_run::NewRun;
pub(crate) use not_found::NotFound;
pub(crate) use overview::Overview;
pub(crate) use rules::RulesPage;
pub(crate) use run::OneRun;
