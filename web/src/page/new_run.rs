//! The form for a new run. The code that the server uses also checks the form while the user types.

mod copied;
mod field;
mod fields;
mod form_spec;

use domain::api::session::Role;
use domain::run::recipe::RECIPES;
use domain::run::spec::FieldError;
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;

use crate::api::{ApiError, unreadable};
use crate::json::read_field;
use crate::language::tr;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{Title, When, effect, text};
use copied::{CopiedSpec, CopyNotice};
use field::{Area, Mistakes, Text};
use fields::{Fields, OWN_SCRIPT};

/// The page with the form.
#[component]
pub(crate) fn NewRun() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let route = expect_context::<Route>();
    let fields = Fields::new();
    let copy = CopiedSpec::followed(fields);
    let refused = RwSignal::new(None::<ApiError>);
    let busy = RwSignal::new(false);
    let problems = Memo::new(move |_| problems(fields, copy, refused));
    // The server's errors refer to the sent form, not to the current text.
    effect(move || {
        let _typed = fields.spec();
        refused.set(None);
    });
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let (spec, _) = untrack(|| fields.spec());
        let (path, body) = copy.request(&spec);
        busy.set(true);
        spawn_local(async move {
            match session.send(&path, body).await.and_then(|run| id_of(&run)) {
                Ok(id) => route.go(&format!("/runs/{id}")),
                Err(error) => {
                    // The log-in page may have replaced this page.
                    let _gone = refused.try_set(Some(error));
                    let _gone = busy.try_set(false);
                }
            }
        });
    };
    let allowed = move || session.may(Role::Operator);
    view! {
        <Title of=tr("New run") />
        <form class="grid grid-cols-1 gap-4 max-w-3xl" method="post" on:submit=submit novalidate data-testid="new-run">
            <div>
                <h1 class="text-2xl font-bold">{tr("New run")}</h1>
                <p class="text-sm opacity-70">{tr("Starts a training run with torchrun, one process per GPU. Your script needs no changes. A recipe is a small built-in training program.")}</p>
            </div>
            <CopyNotice copy />
            <Program fields problems />
            <div class="grid grid-cols-1 sm:grid-cols-3 gap-3">
                <Text label=tr("Nodes") hint=tr("number of nodes") field="nodes" value=fields.nodes problems />
                <Text label=tr("Processes per node") hint=tr("default: one per GPU") field="nproc_per_node" value=fields.nproc problems />
                <Text label=tr("Restarts") hint=tr("maximum, after failures") field="max_restarts" value=fields.max_restarts problems />
            </div>
            <When on=move || copy.has_folder()><Text label=tr("Checkpoint folder") hint=tr("The copied run saves there too: choose another folder unless it has ended.") field="checkpoint_dir" value=fields.checkpoint_dir problems /></When>
            <details>
                <summary class="cursor-pointer">{tr("More: name, Python, working directory")}</summary>
                <div class="grid grid-cols-1 gap-2 mt-2">
                    <Text label=tr("Name") hint=tr("part of the run ID") field="name" value=fields.name problems />
                    <Text label=tr("Python") hint=tr("interpreter or virtual environment on the nodes") field="python" value=fields.python problems />
                    <Text label=tr("Working directory") hint=tr("absolute path on the nodes") field="workdir" value=fields.workdir problems />
                </div>
            </details>
            <When on=move || refused.with(Option::is_some)>
                <p class="alert alert-error" role="alert">{text(move || refused.get().map(|error| error.message).unwrap_or_default())}</p>
            </When>
            <When on=move || !allowed()><p class="alert alert-warning">{tr("You need the operator role to start runs.")}</p></When>
            <button class="btn btn-primary justify-self-start" type="submit" data-testid="submit-run"
                disabled=move || busy.get() || copy.is_loading.get() || !allowed() || problems.with(|problems| !problems.is_empty())>
                {text(move || if busy.get() { tr("Starting…") } else { tr("Start") })}
            </button>
        </form>
    }
}

/// Fields that can be checked without the fields that a copy does not show; the server checks the others when the form is sent.
const CHECKED_ALONE: [&str; 5] = ["name", "nodes", "nproc_per_node", "max_restarts", "recipe"];

/// Returns the id of the new run; the stream delivers the rest to the run's page.
fn id_of(run: &JsValue) -> Result<String, ApiError> {
    read_field(run, "id").map_err(|error| unreadable(&error))
}

/// The choice between a recipe with its settings and a script with its arguments.
#[component]
fn Program(fields: Fields, problems: Memo<Vec<FieldError>>) -> impl IntoView {
    view! {
        <div class="fieldset">
            <label class="label" for="recipe">{tr("Program")}</label>
            <select class="select w-full" id="recipe" name="recipe" aria-describedby="recipe-mistakes" bind:value=fields.recipe>
                {RECIPES.iter().map(|recipe| view! { <option value=recipe.name>{format!("{}: {}", recipe.name, recipe.summary)}</option> }).collect_view()}
                <option value=OWN_SCRIPT>{tr("your own script")}</option>
            </select>
            <Mistakes field="recipe" problems />
        </div>
        <When on=move || !fields.is_own_script()><Area label=tr("Settings") hint=tr("NAME=VALUE, one per line; such as steps=200 or lr=0.001") field="set" value=fields.settings problems /></When>
        <When on=move || fields.is_own_script()>
            <Text label=tr("Script") hint=tr("absolute path on the nodes, or relative to the working directory") field="script" value=fields.script problems />
            <Area label=tr("Arguments") hint=tr("one per line, unquoted") field="args" value=fields.args problems />
        </When>
    }
}

/// Returns all errors of the form: from the code that the server uses, and from the server itself.
fn problems(fields: Fields, copy: CopiedSpec, refused: RwSignal<Option<ApiError>>) -> Vec<FieldError> {
    let (spec, mut problems) = fields.spec();
    let is_copy = copy.is_copy();
    let found = spec.problems().into_iter();
    problems.extend(found.filter(|problem| !is_copy || CHECKED_ALONE.contains(&problem.field.as_str())));
    problems.extend(refused.get().map(|error| error.fields).unwrap_or_default());
    if fields.is_own_script() {
        // The user has chosen a script; its path is missing.
        let missing = problems.iter_mut().filter(|problem| problem.field == "recipe");
        missing.for_each(|problem| {
            problem.field = "script".to_owned();
            problem.message = tr("enter the path of the script").to_owned();
        });
    }
    problems
}
