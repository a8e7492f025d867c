//! A new run that is copied from another one: `/runs/new?from=RUN`.
//!
//! The form shows some fields of a specification. A copy keeps the others as they are, as JSON: the form neither reads nor shows them. Values
//! of secrets never reach the browser; the collector takes them from the copied run.

use domain::run::spec::Spec;
use js_sys::{JSON, Object, Reflect};
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use super::fields::Fields;
use super::form_spec::FormSpec;
use crate::api::{ApiError, unreadable};
use crate::json::{Unreadable, field, parse, read};
use crate::language::{tr, tr_with};
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, When, dynamic_view, effect, empty_view};

/// The path for submitting a run.
const PATH: &str = "/api/runs";
/// The fields that the form has in place of those of the copied run.
pub(super) const FORM_FIELDS: [&str; 11] = [
    "name",
    "recipe",
    "script",
    "args",
    "set",
    "nodes",
    "nproc_per_node",
    "max_restarts",
    "python",
    "workdir",
    "checkpoint_dir",
];
/// The declaration that a folder belongs to the run. A copy may share the folder with the copied run, whose checkpoints must not be removed.
pub(super) const NOT_COPIED: &str = "checkpoint_dir_is_mine";
/// Values of fields that mean "not set".
const UNSET: [&str; 6] = ["null", "{}", "[]", "false", "\"auto\"", "\"agent\""];

/// The run that is copied.
#[derive(Debug, Clone, PartialEq)]
struct Source {
    run: String,
    /// The fields that are copied and that the form does not show.
    others: Vec<String>,
    has_folder: bool,
}

/// The copied specification, if the address names a run. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct CopiedSpec {
    source: RwSignal<Option<Source>>,
    spec: StoredValue<JsValue, LocalStorage>,
    /// Whether the run is being loaded.
    pub(super) is_loading: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl CopiedSpec {
    /// Loads the run that the address names into the form while the current owner lives.
    pub(super) fn followed(fields: Fields) -> Self {
        let copy = Self {
            source: RwSignal::new(None),
            spec: StoredValue::new_local(JsValue::NULL),
            is_loading: RwSignal::new(false),
            problem: RwSignal::new(None),
        };
        let session = expect_context::<UserSession>();
        let asked = expect_context::<Route>().param("from");
        effect(move || match asked.get() {
            None => copy.forget(fields),
            Some(run) => {
                copy.is_loading.set(true);
                spawn_local(async move {
                    let path = format!("{PATH}/{}", js_sys::encode_uri_component(&run));
                    let answer = session.fetch(&path).await;
                    // The address may have changed, or the page may be gone.
                    if asked.try_get_untracked() == Some(Some(run.clone())) {
                        copy.take(fields, run, answer);
                    }
                });
            }
        });
        copy
    }

    /// Returns true if the form shows a copy; tracked.
    pub(super) fn is_copy(self) -> bool {
        self.source.with(Option::is_some)
    }

    /// Returns true if the copied run has a folder for checkpoints; tracked.
    pub(super) fn has_folder(self) -> bool {
        self.source
            .with(|source| source.as_ref().is_some_and(|source| source.has_folder))
    }

    /// Returns the path and the body of the request that submits the form.
    pub(super) fn request(self, form: &Spec) -> (String, String) {
        // Serialisation fails only for maps whose keys are not strings, and a specification has none.
        let text = serde_json::to_string(form).unwrap_or_default();
        let source = self.source.get_untracked();
        let merged = source.and_then(|source| {
            let body = self.spec.with_value(|spec| merged(spec, &text))?;
            let from = js_sys::encode_uri_component(&source.run);
            Some((format!("{PATH}?secrets_from={from}"), body))
        });
        merged.unwrap_or_else(|| (PATH.to_owned(), text))
    }

    /// Shows an empty form again, if it showed a copy.
    fn forget(self, fields: Fields) {
        self.is_loading.set(false);
        self.problem.set(None);
        if self.source.with_untracked(Option::is_some) {
            self.source.set(None);
            fields.show(&FormSpec::of_a_new_run());
        }
    }

    fn take(self, fields: Fields, run: String, answer: Result<JsValue, ApiError>) {
        self.is_loading.set(false);
        let read = answer.and_then(|answer| read_spec(&answer).map_err(|error| unreadable(&error)));
        let problem = match read {
            Ok((_, form)) if !form.can_be_shown() => Some(tr_with(
                "Run {run} has arguments or settings with line breaks, which this form cannot show. Copy it with the API.",
                &[("run", &run)],
            )),
            Ok((spec, form)) => {
                fields.show(&form);
                self.source.set(Some(Source {
                    others: others(&spec),
                    has_folder: form.checkpoint_dir.is_some(),
                    run,
                }));
                self.spec.set_value(spec);
                None
            }
            Err(error) => Some(error.message),
        };
        self.problem.set(problem);
    }
}

/// What the copy contains besides the form.
#[component]
pub(super) fn CopyNotice(copy: CopiedSpec) -> impl IntoView {
    let words = dynamic_view(move || {
        let Some(Source { run, others, .. }) = copy.source.get() else {
            return empty_view();
        };
        let href = format!("/runs/{run}");
        let others = (!others.is_empty()).then(|| {
            let names = others.join(", ");
            tr_with(
                "These settings are copied too, and not shown here: {names}. Values of secrets are taken from that run.",
                &[("names", &names)],
            )
        });
        view! {
            <p class="text-sm" data-testid="copied-from">{tr("A copy of run")} " " <a class="link font-mono" href=href>{run}</a> ". " {others}</p>
        }
        .into_any()
    });
    view! {
        <ErrorMessage what=copy.problem />
        <When on=copy.is_loading><p class="text-muted" role="status">{tr("Loading…")}</p></When>
        {words}
    }
}

fn read_spec(run: &JsValue) -> Result<(JsValue, FormSpec), Unreadable> {
    let spec = field(run, "spec")?;
    let form = read(&spec)?;
    Ok((spec, form))
}

/// Returns the names of the fields that are set and that the form does not show.
fn others(spec: &JsValue) -> Vec<String> {
    let is_set = |name: &String| {
        let value = field(spec, name)
            .ok()
            .and_then(|value| JSON::stringify(&value).ok());
        value.is_some_and(|text| !UNSET.contains(&String::from(text).as_str()))
    };
    let mut names = copied_names(spec);
    names.push(hidden_field(spec).to_owned());
    names.into_iter().filter(is_set).collect()
}

/// Returns the names of the fields that a copy takes from the copied run.
fn copied_names(spec: &JsValue) -> Vec<String> {
    let names = Object::keys(&Object::from(spec.clone()));
    let names = names.iter().filter_map(|name| name.as_string());
    names
        .filter(|name| !FORM_FIELDS.contains(&name.as_str()) && name != NOT_COPIED)
        .collect()
}

/// Returns true if the program is a script, not a recipe.
fn is_script(spec: &JsValue) -> bool {
    field(spec, "recipe").is_ok_and(|recipe| recipe.is_null() || recipe.is_undefined())
}

/// Returns the field that the form does not show for this kind of program.
fn hidden_field(spec: &JsValue) -> &'static str {
    if is_script(spec) { "set" } else { "args" }
}

/// Returns the copied specification with the fields of the form, as JSON; `None` if it is not an object.
fn merged(copied: &JsValue, form: &str) -> Option<String> {
    let form = parse(form).ok()?;
    let merged: JsValue = Object::new().into();
    let put = |name: &str, value: &JsValue| Reflect::set(&merged, &JsValue::from_str(name), value).ok();
    for name in copied_names(copied) {
        put(&name, &field(copied, &name).ok()?)?;
    }
    let hidden = (is_script(copied) == is_script(&form)).then(|| hidden_field(copied));
    for name in FORM_FIELDS {
        let from = if hidden == Some(name) { copied } else { &form };
        let value = field(from, name).ok()?;
        if !value.is_undefined() && !value.is_null() {
            put(name, &value)?;
        }
    }
    JSON::stringify(&merged).map(String::from).ok()
}
