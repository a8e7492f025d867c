//! The pages, one file each.

mod compare;
mod diagnoses;
mod diagnosis;
pub(crate) mod lazy;
mod login;
mod new_run;
mod not_found;
mod overview;
mod polled;
mod rules;
mod run;
mod run_figures;
mod runs;

pub(crate) use login::Login;
pub(crate) use not_found::NotFound;
pub(crate) use overview::Overview;
