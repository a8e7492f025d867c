//! A new run that is copied from another one: `/runs/new?from=RUN`.
//!
//! Values of secrets never reach the browser; the collector takes them from the copied run.

use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use super::document::Node;
use super::fields::SECRETS;
use super::form::{Form, of_a_new_run};
use super::secrets::Secrets;
use crate::api::{ApiError, unreadable};
use crate::json::read_field;
use crate::language::tr;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, When, dynamic_view, effect, empty_view};

/// The path for submitting a run.
const PATH: &str = "/api/runs";
/// The declaration that a folder belongs to the run. A copy may share the folder with the copied run, whose checkpoints must not be removed.
const NOT_COPIED: &str = "checkpoint_dir_is_mine";

/// The copied run, if the address names one. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct CopiedSpec {
    run: RwSignal<Option<String>>,
    /// Whether the run is being loaded.
    pub(super) is_loading: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl CopiedSpec {
    /// Loads the run that the address names into the form while the current owner lives.
    pub(super) fn followed(form: Form, secrets: Secrets, is_text: RwSignal<bool>) -> Self {
        let copy = Self {
            run: RwSignal::new(None),
            is_loading: RwSignal::new(false),
            problem: RwSignal::new(None),
        };
        let session = expect_context::<UserSession>();
        let asked = expect_context::<Route>().param("from");
        let show = move |run: Option<String>, document: Node| {
            secrets.copy(secret_names(&document));
            form.show(document);
            is_text.set(false);
            copy.run.set(run);
        };
        effect(move || {
            copy.problem.set(None);
            match asked.get() {
                None => {
                    copy.is_loading.set(false);
                    if copy.run.with_untracked(Option::is_some) {
                        show(None, of_a_new_run());
                    }
                }
                Some(run) => {
                    copy.is_loading.set(true);
                    spawn_local(async move {
                        let path = format!("{PATH}/{}", js_sys::encode_uri_component(&run));
                        let answer = session.fetch(&path).await;
                        // The address may have changed, or the page may be gone.
                        if asked.try_get_untracked() != Some(Some(run.clone())) {
                            return;
                        }
                        copy.is_loading.set(false);
                        match answer.and_then(|answer| document_of(&answer)) {
                            Ok(document) => show(Some(run), document),
                            Err(error) => copy.problem.set(Some(error.message)),
                        }
                    });
                }
            }
        });
        copy
    }

    /// Returns true if the form shows a copy; tracked.
    pub(super) fn is_copy(self) -> bool {
        self.run.with(Option::is_some)
    }

    /// Returns the path of the request that submits the run.
    pub(super) fn path(self) -> String {
        match self.run.get_untracked() {
            Some(run) => format!("{PATH}?secrets_from={}", js_sys::encode_uri_component(&run)),
            None => PATH.to_owned(),
        }
    }
}

/// The run that is copied.
#[component]
pub(super) fn CopyNotice(copy: CopiedSpec) -> impl IntoView {
    let words = dynamic_view(move || {
        let Some(run) = copy.run.get() else {
            return empty_view();
        };
        let href = format!("/runs/{run}");
        let why = tr(
            "Hidden values, such as those of secrets, are taken from that run. Choose another checkpoint folder unless that run has ended.",
        );
        view! {
            <p class="text-sm" data-testid="copied-from">{tr("A copy of run")} " " <a class="link font-mono" href=href>{run}</a> ". " {why}</p>
        }
        .into_any()
    });
    view! {
        <ErrorMessage what=copy.problem />
        <When on=copy.is_loading><p class="text-muted" role="status">{tr("Loading…")}</p></When>
        {words}
    }
}

fn document_of(run: &JsValue) -> Result<Node, ApiError> {
    let mut document: Node = read_field(run, "spec").map_err(|error| unreadable(&error))?;
    document.take(NOT_COPIED);
    Ok(document)
}

fn secret_names(document: &Node) -> Vec<String> {
    match document.get(SECRETS) {
        Some(Node::Table(entries)) => entries.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    }
}
