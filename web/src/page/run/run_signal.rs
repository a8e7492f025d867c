//! The state of the run that a page shows.

use leptos::prelude::*;

use crate::live::Run;

/// The newest state of the run; `None` until the first arrives.
pub(super) type RunSignal = RwSignal<Option<Run>>;
