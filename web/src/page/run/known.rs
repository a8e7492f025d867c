//! What is known of the run that a page shows.

use leptos::prelude::*;

use crate::live::Run;

/// The newest state of the run; `None` until the first one has come.
pub(super) type Known = RwSignal<Option<Run>>;
