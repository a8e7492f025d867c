//! The collector checks what is typed, after a pause in typing, and converts between the two views.

use domain::api::runs::{MemoryForecast, PlacementPreview, SettingView, SpecProblem};
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::Deserialize;

use super::document::{Node, quoted};
use crate::api::{ApiError, unreadable};
use crate::json::read;
use crate::session::UserSession;
use crate::ui::effect;

const PATH: &str = "/api/runs/check";
/// How long nothing must be typed before a check.
const PAUSE_MS: u32 = 300;

/// A view of the specification, to be checked.
pub(super) enum Draft {
    /// The document of the form.
    Form(Node),
    /// The text.
    Text(String),
}

/// The result of a check. See [`domain::api::runs::CheckedSpec`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    pub(super) spec: Option<Node>,
    pub(super) toml: Option<String>,
    pub(super) problems: Vec<SpecProblem>,
    pub(super) hints: Vec<String>,
    pub(super) settings: Vec<SettingView>,
    pub(super) memory: Option<MemoryForecast>,
    pub(super) memory_unknown: Option<String>,
    pub(super) placement: Option<PlacementPreview>,
}

/// Why a check has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The request failed, and the page shows why. Or the page is gone.
    Failed,
    /// A later check began meanwhile.
    Outdated,
}

/// The checks of this page. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Check {
    session: UserSession,
    /// The last result.
    pub(super) answer: RwSignal<Answer>,
    /// Why the last check failed.
    pub(super) failure: RwSignal<Option<String>>,
    /// The number of the newest request: older answers are not shown.
    newest: StoredValue<u32>,
}

impl Check {
    pub(super) fn new() -> Self {
        Self {
            session: expect_context::<UserSession>(),
            answer: RwSignal::new(Answer::default()),
            failure: RwSignal::new(None),
            newest: StoredValue::new(0),
        }
    }

    /// Checks the draft now, and after each change.
    pub(super) fn follow(self, body: impl Fn() -> String + 'static) {
        effect(move || {
            let body = body();
            let number = self.next();
            spawn_local(async move {
                TimeoutFuture::new(PAUSE_MS).await;
                if self.order(number).is_ok() {
                    // The page shows the answer, or why there is none.
                    let _shown = self.request(body, number).await;
                }
            });
        });
    }

    /// Checks a draft at once.
    pub(super) async fn now(self, body: String) -> Result<Answer, Unanswered> {
        let number = self.next();
        self.request(body, number).await
    }

    async fn request(self, body: String, number: u32) -> Result<Answer, Unanswered> {
        let answer = self.session.send(PATH, body).await;
        self.order(number)?;
        let answer: Result<Answer, ApiError> =
            answer.and_then(|answer| read(&answer).map_err(|error| unreadable(&error)));
        match answer {
            Ok(answer) => {
                self.failure.set(None);
                self.show(answer.clone());
                Ok(answer)
            }
            Err(error) => {
                self.failure.set(Some(error.message));
                Err(Unanswered::Failed)
            }
        }
    }

    /// A text that is not TOML has no program: what was known about it stays.
    fn show(self, mut answer: Answer) {
        self.answer.update(|known| {
            if answer.settings.is_empty() {
                answer.settings = std::mem::take(&mut known.settings);
                answer.memory = known.memory.take();
                answer.memory_unknown = known.memory_unknown.take();
            }
            *known = answer;
        });
    }

    fn next(self) -> u32 {
        let number = self.newest.get_value() + 1;
        self.newest.set_value(number);
        number
    }

    /// Returns an error unless this is the newest check of a page that is still there.
    fn order(self, number: u32) -> Result<(), Unanswered> {
        in_order(number, self.newest.try_get_value())
    }
}

/// Compares a check with the newest one; `None` if the page is gone.
fn in_order(number: u32, newest: Option<u32>) -> Result<(), Unanswered> {
    match newest {
        Some(newest) if newest == number => Ok(()),
        Some(_) => Err(Unanswered::Outdated),
        None => Err(Unanswered::Failed),
    }
}

impl Draft {
    /// Returns the body of the request.
    pub(super) fn body(&self, is_copy: bool) -> String {
        let (name, value) = match self {
            Self::Form(document) => ("spec", document.json()),
            Self::Text(toml) => ("toml", quoted(toml)),
        };
        format!("{{\"{name}\":{value},\"copied\":{is_copy}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_check_counts() {
        for (newest, expected) in [
            (Some(3), Ok(())),
            (Some(4), Err(Unanswered::Outdated)),
            (None, Err(Unanswered::Failed)),
        ] {
            assert_eq!(in_order(3, newest), expected, "{newest:?}");
        }
    }

    #[test]
    fn the_body_has_one_of_the_views() {
        let text = Draft::Text("nodes = 1\n".to_owned());
        assert_eq!(text.body(true), r#"{"toml":"nodes = 1\n","copied":true}"#);
        let form = Draft::Form(Node::table());
        assert_eq!(form.body(false), r#"{"spec":{},"copied":false}"#);
    }
}
