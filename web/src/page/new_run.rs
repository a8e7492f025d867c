//! The form for a new run; checked while one types by the code the server uses.

use std::collections::BTreeMap;

use domain::api::runs::RunView;
use domain::api::session::Role;
use domain::run::spec::{FieldError, RECIPES, Spec};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_navigate;

use crate::api;
use crate::app::Who;

/// What stands in the form's fields.
#[derive(Clone, Copy)]
struct Fields {
    name: RwSignal<String>,
    recipe: RwSignal<String>,
    script: RwSignal<String>,
    args: RwSignal<String>,
    settings: RwSignal<String>,
    nodes: RwSignal<String>,
    nproc: RwSignal<String>,
    python: RwSignal<String>,
    workdir: RwSignal<String>,
    max_restarts: RwSignal<String>,
}

/// The recipe field's value for "a script of one's own".
const OWN_SCRIPT: &str = "";

impl Fields {
    fn new() -> Self {
        let text = |value: &str| RwSignal::new(value.to_owned());
        Self {
            name: text(""),
            recipe: text(RECIPES[0].0),
            script: text(""),
            args: text(""),
            settings: text("steps=200"),
            nodes: text("1"),
            nproc: text(""),
            python: text(""),
            workdir: text(""),
            max_restarts: text("0"),
        }
    }

    /// The spec these fields ask for, and what cannot be read as one.
    fn spec(self) -> (Spec, Vec<FieldError>) {
        let mut problems = Vec::new();
        let optional =
            |signal: RwSignal<String>| Some(signal.get().trim().to_owned()).filter(|text| !text.is_empty());
        let mut number = |field: &str, signal: RwSignal<String>| {
            let parsed = optional(signal).map(|text| text.parse::<u32>());
            if let Some(Err(_)) = parsed {
                problems.push(FieldError {
                    field: field.to_owned(),
                    message: "write a whole number".to_owned(),
                });
            }
            parsed.and_then(Result::ok)
        };
        let (nodes, nproc_per_node) = (number("nodes", self.nodes), number("nproc_per_node", self.nproc));
        let max_restarts = number("max_restarts", self.max_restarts).unwrap_or(0);
        let recipe = optional(self.recipe);
        let (set, mut unread) = if recipe.is_some() {
            settings(&self.settings.get())
        } else {
            Default::default()
        };
        problems.append(&mut unread);
        let own = recipe.is_none();
        let spec = Spec {
            name: self.name.get().trim().to_owned(),
            script: optional(self.script).filter(|_| own),
            args: if own {
                self.args
                    .get()
                    .lines()
                    .map(str::to_owned)
                    .filter(|line| !line.is_empty())
                    .collect()
            } else {
                vec![]
            },
            recipe,
            set,
            nodes,
            nproc_per_node,
            max_restarts,
            python: optional(self.python),
            workdir: optional(self.workdir),
            ..Spec::default()
        };
        (spec, problems)
    }
}

fn settings(text: &str) -> (BTreeMap<String, String>, Vec<FieldError>) {
    let mut problems = Vec::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let pairs = lines.filter_map(|line| {
        let pair = line
            .split_once('=')
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        if pair.is_none() {
            problems.push(FieldError {
                field: "set".to_owned(),
                message: format!("{line:?} is not NAME=VALUE"),
            });
        }
        pair
    });
    (pairs.collect(), problems)
}

/// The page.
#[component]
pub(crate) fn NewRun() -> impl IntoView {
    let who = expect_context::<Who>();
    let navigate = use_navigate();
    let fields = Fields::new();
    let refused = RwSignal::new(None::<api::ApiError>);
    let busy = RwSignal::new(false);
    let problems = Memo::new(move |_| {
        let (spec, mut problems) = fields.spec();
        problems.extend(spec.problems());
        if let Some(error) = refused.get() {
            problems.extend(error.fields);
        }
        problems
    });
    // What the server said is about what was sent, not about what is typed now.
    Effect::new(move || {
        let _typed = fields.spec();
        refused.set(None);
    });
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let navigate = navigate.clone();
        let (spec, _) = untrack(|| fields.spec());
        busy.set(true);
        spawn_local(async move {
            match api::post::<RunView>("/api/runs", &who.csrf(), &spec).await {
                Ok(run) => navigate(&format!("/runs/{}", run.summary.id), Default::default()),
                Err(error) => refused.set(Some(error)),
            }
            busy.set(false);
        });
    };
    let own_script = move || fields.recipe.with(|recipe| recipe == OWN_SCRIPT);
    let allowed = move || who.may(Role::Operator);
    view! {
        <form class="grid gap-4 max-w-2xl" on:submit=submit novalidate data-testid="new-run">
            <h1 class="text-2xl font-bold">"New run"</h1>
            <label class="fieldset">
                <span class="label">"Program"</span>
                <select class="select w-full" name="recipe" bind:value=fields.recipe>
                    {RECIPES.iter().map(|(name, what)| view! { <option value=*name>{*name} ": " {*what}</option> }).collect_view()}
                    <option value=OWN_SCRIPT>"a script of my own"</option>
                </select>
                <Mistakes field="recipe" problems />
            </label>
            <Show when=own_script>
                <Text label="Script" hint="absolute path on the nodes, or relative to the working directory" field="script" value=fields.script problems />
                <Area label="Arguments" hint="one a line, as they are" field="args" value=fields.args problems />
            </Show>
            <Show when=move || !own_script()>
                <Area label="Settings" hint="NAME=VALUE, one a line; like steps=200 or lr=0.001" field="set" value=fields.settings problems />
            </Show>
            <div class="grid grid-cols-1 sm:grid-cols-3 gap-3">
                <Text label="Nodes" hint="" field="nodes" value=fields.nodes problems />
                <Text label="Processes a node" hint="one a GPU when empty" field="nproc_per_node" value=fields.nproc problems />
                <Text label="Restarts" hint="after a failure" field="max_restarts" value=fields.max_restarts problems />
            </div>
            <details>
                <summary class="cursor-pointer">"More"</summary>
                <Text label="Name" hint="the run's id is made from it" field="name" value=fields.name problems />
                <Text label="Python" hint="interpreter or virtual environment on the nodes" field="python" value=fields.python problems />
                <Text label="Working directory" hint="absolute path on the nodes" field="workdir" value=fields.workdir problems />
            </details>
            <Show when=move || refused.with(Option::is_some)>
                <p class="alert alert-error" role="alert">{move || refused.get().map(|error| error.message)}</p>
            </Show>
            <Show when=move || !allowed()><p class="alert alert-warning">"Your token may look, but not start runs."</p></Show>
            <button class="btn btn-primary" type="submit" data-testid="submit-run"
                disabled=move || busy.get() || !allowed() || problems.with(|problems| !problems.is_empty())>
                "Start"
            </button>
        </form>
    }
}

/// What is wrong with a field, `set` also standing for `set.NAME`.
#[component]
fn Mistakes(field: &'static str, problems: Memo<Vec<FieldError>>) -> impl IntoView {
    let about = move |problem: &FieldError| {
        problem.field == field
            || problem
                .field
                .strip_prefix(field)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    let shown = move || {
        let ours = problems.get().into_iter().filter(|problem| about(problem));
        ours.map(|problem| {
            let name = problem.field.split_once('.').map(|(_, name)| format!("{name}: ")).unwrap_or_default();
            view! { <span class="text-error text-sm" role="alert" data-testid="mistake">{name}{problem.message}</span> }
        }).collect_view()
    };
    view! { {shown} }
}

#[component]
fn Text(
    label: &'static str,
    hint: &'static str,
    field: &'static str,
    value: RwSignal<String>,
    problems: Memo<Vec<FieldError>>,
) -> impl IntoView {
    view! {
        <label class="fieldset">
            <span class="label">{label} " " <span class="opacity-60">{hint}</span></span>
            <input class="input w-full" name=field bind:value=value />
            <Mistakes field problems />
        </label>
    }
}

#[component]
fn Area(
    label: &'static str,
    hint: &'static str,
    field: &'static str,
    value: RwSignal<String>,
    problems: Memo<Vec<FieldError>>,
) -> impl IntoView {
    view! {
        <label class="fieldset">
            <span class="label">{label} " " <span class="opacity-60">{hint}</span></span>
            <textarea class="textarea w-full font-mono" rows="3" name=field bind:value=value></textarea>
            <Mistakes field problems />
        </label>
    }
}
