//! Diagnoses that have ended: asked for when the page opens and whenever one begins or ends, since the stream carries the firing ones
//! only.

use domain::api::alerts::Diagnosis;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api::{ApiError, unreadable};
use crate::live::{List, Live, read_diagnoses};
use crate::session::Who;
use crate::ui::whenever;

/// How many are listed.
const PATH: &str = "/api/diagnoses?state=resolved&limit=100";

/// The list, and why it could not be had. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) list: List<Diagnosis>,
    pub(super) problem: RwSignal<Option<String>>,
}

impl Ended {
    /// Asks for as long as the current owner lives.
    pub(super) fn of() -> Self {
        let live = expect_context::<Live>();
        let who = expect_context::<Who>();
        let ended = Self {
            list: List::new(),
            problem: RwSignal::new(None),
        };
        whenever(move || {
            live.connected.track();
            let _changes = live.diagnoses.rows();
            spawn_local(async move { ended.take(asked(who).await) });
        });
        ended
    }

    fn take(self, answer: Result<Vec<Diagnosis>, ApiError>) {
        let problem = answer.as_ref().err().map(|error| error.message.clone());
        // The page may be another one by now.
        if self.problem.try_set(problem).is_none()
            && let Ok(all) = answer
        {
            self.list.take(all);
        }
    }
}

async fn asked(who: Who) -> Result<Vec<Diagnosis>, ApiError> {
    let answer = who.fetch(PATH).await?;
    read_diagnoses(&answer).map_err(|error| unreadable(&error))
}
