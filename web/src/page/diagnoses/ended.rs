//! Diagnoses that have ended. They are requested when the page opens and whenever a diagnosis starts or ends, because the stream contains
//! only firing ones.

use domain::api::alerts::Diagnosis;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api::{ApiError, unreadable};
use crate::live::{List, Live, read_diagnoses};
use crate::session::UserSession;
use crate::ui::{AnswerOrder, effect};

/// The request, with the number of diagnoses listed.
const PATH: &str = "/api/diagnoses?state=resolved&limit=100";

/// The list, and the error of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) list: List<Diagnosis>,
    pub(super) problem: RwSignal<Option<String>>,
}

impl Ended {
    /// Requests the list while the current owner lives.
    pub(super) fn of() -> Self {
        let live = expect_context::<Live>();
        let session = expect_context::<UserSession>();
        let ended = Self {
            list: List::new(),
            problem: RwSignal::new(None),
        };
        let answers = AnswerOrder::new();
        effect(move || {
            live.connected.track();
            let _changes = live.diagnoses.rows();
            let number = answers.begin();
            spawn_local(async move {
                let answer = request(session).await;
                if answers.accept(number) {
                    ended.take(answer);
                }
            });
        });
        ended
    }

    fn take(self, answer: Result<Vec<Diagnosis>, ApiError>) {
        let problem = answer.as_ref().err().map(|error| error.message.clone());
        self.problem.set(problem);
        if let Ok(all) = answer {
            self.list.take(all);
        }
    }
}

async fn request(session: UserSession) -> Result<Vec<Diagnosis>, ApiError> {
    let answer = session.fetch(PATH).await?;
    read_diagnoses(&answer).map_err(|error| unreadable(&error))
}
