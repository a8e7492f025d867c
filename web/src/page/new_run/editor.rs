//! The specification that is being written, its two views, and its submission.

use domain::api::runs::SpecProblem;
use leptos::prelude::*;
use wasm_bindgen::JsValue;

use super::check::{Answer, Check, Draft, Unanswered};
use super::copied::CopiedSpec;
use super::fields::{RECIPE, SCRIPT, SECRETS, SET};
use super::form::{Form, problem};
use super::secrets::Secrets;
use crate::api::{ApiError, unreadable};
use crate::json::read_field;
use crate::language::tr;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::effect;

/// The state of the page. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Editor {
    pub(super) form: Form,
    pub(super) secrets: Secrets,
    pub(super) check: Check,
    pub(super) copy: CopiedSpec,
    /// All errors: of the texts, from the check, and from the last submission.
    pub(super) problems: Memo<Vec<SpecProblem>>,
    /// True while the text is shown, and the form is not.
    pub(super) is_text: RwSignal<bool>,
    /// The specification as TOML, if the text is or was shown.
    pub(super) toml: RwSignal<String>,
    /// The document of the form when the text was last the same. While it does not change, the text keeps its comments and order.
    same: StoredValue<String>,
    /// The settings that were typed for a script while a recipe is chosen, or the other way round.
    other_settings: StoredValue<String>,
    /// Why the last submission failed.
    pub(super) refused: RwSignal<Option<ApiError>>,
    /// True while the run is submitted.
    pub(super) busy: RwSignal<bool>,
}

impl Editor {
    /// Creates the state, and checks the specification after each change.
    pub(super) fn new() -> Self {
        let (form, secrets, check) = (Form::new(), Secrets::new(), Check::new());
        let is_text = RwSignal::new(false);
        let refused = RwSignal::new(None::<ApiError>);
        let problems = Memo::new(move |_| {
            let local = if is_text.get() {
                Vec::new()
            } else {
                local_problems(form, secrets)
            };
            let found = check.answer.with(|answer| answer.problems.clone());
            let refused = refused.with(|error| error.as_ref().map(|error| error.fields.clone()));
            let refused = refused.into_iter().flatten();
            let refused = refused.map(|error| problem(&error.field, error.message));
            all_problems(local, found.into_iter().chain(refused))
        });
        let editor = Self {
            form,
            secrets,
            check,
            copy: CopiedSpec::followed(form, secrets, is_text),
            problems,
            is_text,
            toml: RwSignal::new(String::new()),
            same: StoredValue::new(String::new()),
            other_settings: StoredValue::new(String::new()),
            refused,
            busy: RwSignal::new(false),
        };
        check.follow(move || editor.body());
        // The collector's errors refer to what was sent, not to the current text.
        effect(move || {
            let _typed = editor.body();
            refused.set(None);
        });
        editor
    }

    /// Chooses a recipe, or a script by an empty name. Settings of recipes are none of scripts: each kind keeps its own.
    pub(super) fn choose_program(self, recipe: String) {
        let is_script = || untrack(|| self.form.is_own_script());
        let was_script = is_script();
        self.form.text(RECIPE).set(recipe);
        if is_script() != was_script {
            let settings = self.form.text(SET);
            let other = self.other_settings.get_value();
            self.other_settings.set_value(settings.get_untracked());
            settings.set(other);
        }
    }

    /// Returns true if the program has this setting or knob; tracked.
    pub(super) fn has_setting(self, name: &str) -> bool {
        let answer = self.check.answer;
        answer.with(|answer| answer.settings.iter().any(|setting| setting.name == name))
    }

    /// Shows the text, with what is typed meanwhile. If the form cannot be checked, it stays, with the reason.
    pub(super) async fn show_text(self) {
        loop {
            let ((document, problems), is_copy) = untrack(|| (self.form.document(), self.copy.is_copy()));
            // Their names are not in the document, so the text would lose them.
            if let Some(wrong) = problems.into_iter().find(|problem| problem.field == SECRETS) {
                self.check.failure.set(Some(wrong.message));
                return;
            }
            let json = document.json();
            if self.same.get_value() == json {
                break;
            }
            match self.check.now(Draft::Form(document).body(is_copy)).await {
                Ok(Answer { toml: Some(toml), .. }) => {
                    self.toml.set(toml);
                    self.same.set_value(json);
                    break;
                }
                Err(Unanswered::Outdated) if self.form_json() != json => {}
                // If the form is the same, another click has begun the later check.
                Ok(_) | Err(_) => return,
            }
        }
        self.is_text.set(true);
    }

    /// Returns the document of the form.
    fn form_json(self) -> String {
        untrack(|| self.form.document().0.json())
    }

    /// Shows the form, with what is typed meanwhile. Returns false if the text cannot be read: it stays, with its errors.
    pub(super) async fn show_form(self) -> bool {
        let document = loop {
            let (toml, is_copy) = untrack(|| (self.toml.get(), self.copy.is_copy()));
            match self.check.now(Draft::Text(toml.clone()).body(is_copy)).await {
                Ok(answer) => break answer.spec,
                Err(Unanswered::Outdated) if self.toml.with_untracked(|newest| *newest != toml) => {}
                // If the text is the same, another click has begun the later check.
                Err(_) => return false,
            }
        };
        let Some(document) = document else {
            let why = tr("Correct the text before you return to the form. Nothing is lost.");
            self.check.failure.set(Some(why.to_owned()));
            return false;
        };
        self.form.show(document);
        self.same.set_value(self.form_json());
        self.is_text.set(false);
        true
    }

    /// Submits the run and opens its page. Values of secrets are added to this request only.
    pub(super) async fn submit(self, session: UserSession, route: Route) {
        if self.is_text.get_untracked() && !self.show_form().await {
            return;
        }
        if self.problems.with_untracked(|problems| !problems.is_empty()) {
            return;
        }
        let mut document = untrack(|| self.form.document().0);
        self.secrets.fill(&mut document);
        self.busy.set(true);
        let answer = session.send(&self.copy.path(), document.json()).await;
        match answer.and_then(|run| id_of(&run)) {
            Ok(id) => route.go(&format!("/runs/{id}")),
            Err(error) => {
                // The log-in page may have replaced this page.
                let _gone = self.refused.try_set(Some(error));
                let _gone = self.busy.try_set(false);
            }
        }
    }

    /// Returns the body of a check; tracked.
    fn body(self) -> String {
        let draft = if self.is_text.get() {
            Draft::Text(self.toml.get())
        } else {
            Draft::Form(self.form.document().0)
        };
        draft.body(self.copy.is_copy())
    }
}

/// Returns the id of the new run; the stream delivers the rest to the run's page.
fn id_of(run: &JsValue) -> Result<String, ApiError> {
    read_field(run, "id").map_err(|error| unreadable(&error))
}

/// Returns the errors that need no collector.
fn local_problems(form: Form, secrets: Secrets) -> Vec<SpecProblem> {
    let (_, mut problems) = form.document();
    problems.extend(secrets.problems(form));
    if form.is_own_script() && form.text(SCRIPT).with(|path| path.trim().is_empty()) {
        // The collector would say this of the recipe, which the user has not chosen.
        problems.push(problem(SCRIPT, tr("enter the path of the script").to_owned()));
        problems.push(problem(RECIPE, String::new()));
    }
    problems
}

/// Returns the local errors, and the others of fields without a local one. Errors without a sentence only hide others.
fn all_problems(local: Vec<SpecProblem>, found: impl Iterator<Item = SpecProblem>) -> Vec<SpecProblem> {
    let mut problems = local.clone();
    for problem in found {
        let is_hidden = local.iter().any(|known| known.field == problem.field);
        if !is_hidden && !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems.retain(|problem| !problem.message.is_empty());
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_error_of_its_text_or_those_of_the_check() {
        let sentence = |field: &str, message: &str| problem(field, message.to_owned());
        let local = vec![sentence("script", "enter the path"), sentence("recipe", "")];
        let found = [
            sentence("recipe", "choose a recipe"),
            sentence("nodes", "too many"),
            sentence("script", "is empty"),
        ];
        let all = all_problems(local, found.into_iter());
        assert_eq!(
            all,
            [
                sentence("script", "enter the path"),
                sentence("nodes", "too many")
            ]
        );
    }
}
